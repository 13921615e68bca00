//! Pickles of real Pythons (`fixtures/make.py`), and some that no Python would write.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ckpt_engine::ErrorKind;
use ckpt_engine::blob::{DType, Tensor};

use super::*;
use crate::formats::Imported;

/// Every writer and protocol that there are fixtures of.
const WRITERS: [&str; 9] = [
    "py2_p0",
    "py2_p2",
    "numpy1_p2",
    "numpy1_p5",
    "numpy2_p0",
    "numpy2_p2",
    "numpy2_p3",
    "numpy2_p4",
    "numpy2_p5",
];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/formats/pickle/fixtures")
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(fixtures().join(name).with_extension("pkl")).unwrap()
}

/// Reads a pickle that is in memory.
fn read_bytes(data: &[u8]) -> Result<Imported> {
    let (workspace, metadata) = read(&Bytes::copy_from_slice(data))?;
    Ok(Imported { workspace, metadata, file_bytes: data.len() as u64 })
}

/// All of them.
fn all() -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().path());
    let pickles: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "pkl")).collect();
    assert_eq!(pickles.len(), 3 * WRITERS.len() + 13);
    pickles.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn strings<const N: usize>(strings: [&[u8]; N]) -> Tensor {
    Tensor::from_strings([N as u64], &strings).unwrap()
}

/// Compares all blobs with what they should be.
fn check(imported: &Imported, expected: &[(&str, Tensor)], from: &str) {
    for (name, tensor) in expected {
        let found = imported.workspace.tensor(name).unwrap();
        assert_eq!((found.dtype(), found.shape()), (tensor.dtype(), tensor.shape()), "{name} of {from}");
        assert_eq!(found, tensor, "{name} of {from}");
    }
    assert_eq!(imported.workspace.len(), expected.len(), "{from}: {:?}", imported.workspace);
}

fn matrix() -> Tensor {
    Tensor::from_slice([2, 3], &[0f32, 0.5, 1.0, 1.5, 2.0, 2.5]).unwrap()
}

#[test]
fn every_dtype_is_read_from_every_protocol() {
    let expected = [
        ("f2", Tensor::scalar(half::f16::from_f32(1.5))),
        ("f4", matrix()),
        ("f8_big", Tensor::from_slice([2], &[0.5f64, -0.25]).unwrap()),
        ("i8_big", Tensor::from_slice([2], &[1i64, -2]).unwrap()),
        ("bool", Tensor::from_slice([2], &[true, false]).unwrap()),
        ("c8", Tensor::from_slice([1], &[[1f32, -2.0]]).unwrap()),
        ("S5", strings([b"ab", b"", b"a\nb'\\"])),
        ("U3", strings(["gr\u{fc}".as_bytes(), "\u{1f600}".as_bytes()])),
    ];
    for writer in WRITERS {
        let imported = read_bytes(&fixture(&format!("dtypes_{writer}"))).unwrap();
        check(&imported, &expected, writer);
        // Elements can be read in place.
        assert_eq!(imported.workspace.tensor("f8_big").unwrap().as_slice::<f64>().unwrap(), [0.5, -0.25]);
        assert!(imported.metadata.is_empty());
    }
}

#[test]
fn every_layout_is_brought_to_rows() {
    let turned: Vec<u8> = vec![0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11];
    let expected = [
        ("columns", matrix()),
        ("turned", Tensor::from_vec([3, 2, 2], turned).unwrap()),
        ("strided", Tensor::from_slice([3], &[0u16, 2, 4]).unwrap()),
        ("empty", Tensor::from_slice::<i32>([0, 2], &[]).unwrap()),
        ("all_bytes", Tensor::from_vec([52], (0..52u8).map(|at| at * 5).collect()).unwrap()),
    ];
    for writer in WRITERS {
        check(&read_bytes(&fixture(&format!("layouts_{writer}"))).unwrap(), &expected, writer);
    }
}

#[test]
fn a_checkpoint_of_the_playground_is_read_whole() {
    let momentum = Tensor::from_slice([2, 3], &[0f32, 1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
    let expected = [
        ("conv1_w", matrix()),
        ("conv1_w_momentum", momentum),
        ("tied", matrix()),
        ("note", Tensor::from_strings([], &["a string"]).unwrap()),
        ("epoch", Tensor::scalar(12i64)),
        ("lr", Tensor::scalar(0.01f64)),
        ("best_metric", Tensor::scalar(0.75f32)),
        ("done", Tensor::scalar(false)),
        ("seed", Tensor::scalar((1u64 << 63) + 1)),
        ("minus", Tensor::scalar(-300i64)),
        ("z", Tensor::scalar([1f64, -2.0])),
        ("losses", Tensor::from_slice([2], &[1f64, 2.5]).unwrap()),
        ("epochs", Tensor::from_slice([3], &[1i64, -70000, 1 << 40]).unwrap()),
        ("flags", Tensor::from_slice([2], &[true, false]).unwrap()),
        ("names", strings([b"x", "gr\u{fc}\\u\n".as_bytes()])),
        ("metrics", Tensor::from_slice([2], &[1f64, 0.5]).unwrap()),
        ("none_of_these", Tensor::from_slice::<f64>([0], &[]).unwrap()),
        ("raw", Tensor::from_strings([], &[b"\xff\x00"]).unwrap()),
        ("array", Tensor::from_strings([], &[b"\xfe"]).unwrap()),
        ("set", Tensor::from_slice([1], &[7i64]).unwrap()),
        ("frozen", Tensor::from_slice([1], &[8i64]).unwrap()),
        ("state/a/b", Tensor::from_slice([1], &[3i64]).unwrap()),
    ];
    let metadata = [("cfg", "MODEL:\n  TYPE: 'generalized_rcnn'\n"), ("state/5", "five")];
    let metadata = BTreeMap::from(metadata.map(|(key, text)| (key.to_owned(), text.to_owned())));
    for writer in WRITERS {
        let file = fixture(&format!("playground_{writer}"));
        let imported = read_bytes(&file).unwrap();
        check(&imported, &expected, writer);
        assert_eq!(imported.metadata, metadata, "{writer}");
        assert_eq!(imported.file_bytes, file.len() as u64);
        let [one, other] = ["conv1_w", "tied"].map(|name| imported.workspace.tensor(name).unwrap().data());
        assert!(one.shares(other), "{writer}");
    }
}

#[test]
fn a_pickle_put_together_by_hand_is_read() {
    let imported = read_bytes(&fixture("by_hand")).unwrap();
    let expected = [
        ("conv1_w", Tensor::from_slice([2, 1], &[1.5f32, -2.0]).unwrap()),
        ("conv1_w_momentum", Tensor::from_slice([2], &[0.25f32, 8.0]).unwrap()),
    ];
    check(&imported, &expected, "by hand");
    assert_eq!(imported.metadata["cfg"], "MODEL: {}\n");
}

#[test]
fn a_file_is_read_by_its_name() {
    let imported = crate::formats::read(&fixtures().join("by_hand.pkl")).unwrap();
    assert_eq!(imported.workspace.len(), 2);
    assert_eq!(imported.file_bytes, 238);
}

/// `{"x": …}` with this program for the value.
fn dict(value: &[u8]) -> Vec<u8> {
    [b"}U\x01x", value, b"s."].concat()
}

#[test]
fn opcodes_that_are_rare_do_what_they_do_in_python() {
    let ints = |ints: &[i64]| Tensor::from_slice([ints.len() as u64], ints).unwrap();
    let cases: [(&[u8], Tensor); 16] = [
        (b"(I1\nI-2\nL3L\nl", ints(&[1, -2, 3])),
        (b"](K\x01N1(K\x022e", ints(&[2, 2])),
        (b"(K\x01(0t", ints(&[1])),
        (b"]K\x07r\x00\x01\x00\x000j\x00\x01\x00\x00a", ints(&[7])),
        (b"K\x05p70000\n0g70000\n", Tensor::scalar(5i64)),
        (b"K\x05\x94K\x06\x9400h\x00", Tensor::scalar(5i64)),
        (b"\x8b\x02\x00\x00\x00\xff\xff", Tensor::scalar(-1i64)),
        (b"\x8a\x00", Tensor::scalar(0i64)),
        (b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00", Tensor::scalar(u64::MAX)),
        (
            b"(\x8d\x01\x00\x00\x00\x00\x00\x00\x00a\x8e\x01\x00\x00\x00\x00\x00\x00\x00bt",
            strings([b"a", b"b"]),
        ),
        (b"F-1e3\n", Tensor::scalar(-1000f64)),
        (
            b"(Fnan\nFinf\nF-inf\nt",
            Tensor::from_slice([3], &[f64::NAN, f64::INFINITY, -f64::INFINITY]).unwrap(),
        ),
        (b"(F1.0\nI2\ni__builtin__\ncomplex\n", Tensor::scalar([1f64, 2.0])),
        (b"(cbuiltins\ncomplex\nK\x01K\x02o", Tensor::scalar([1f64, 2.0])),
        (b"(I00\nI01\n\x91", Tensor::from_slice([2], &[false, true]).unwrap()),
        (b"c__builtin__\nset\n]K\x01a\x85\x81", ints(&[1])),
    ];
    for (program, expected) in cases {
        let found = read_bytes(&dict(program)).unwrap();
        let found = found.workspace.tensor("x").unwrap();
        // Of a NaN only the bytes can be compared.
        let same = found.shape() == expected.shape() && found.data() == expected.data();
        assert!(same && found.dtype() == expected.dtype(), "{}", program.escape_ascii());
    }
    let nested = read_bytes(b"(Va\\u0062\n(Vc\n(K\x01K\x02ddd.").unwrap();
    assert_eq!(nested.workspace.tensor("ab/c/1").unwrap(), &Tensor::scalar(2i64));
}

#[test]
fn a_class_that_is_not_data_is_refused_and_not_run() {
    let mark = Path::new("/tmp/a_pickle_was_run");
    let by_text = b"}S'x'\ncos\nsystem\n(S'touch /tmp/a_pickle_was_run'\ntRs.";
    let by_inst = b"}S'x'\n(S'touch /tmp/a_pickle_was_run'\nios\nsystem\ns.";
    let cases = [
        (fixture("os_system"), "global=`posix.system`"),
        (by_text.to_vec(), "global=`os.system`"),
        (by_inst.to_vec(), "global=`os.system`"),
        (b"c__builtin__\neval\n.".to_vec(), "global=`__builtin__.eval`"),
        (b"cnumpy\nload\n.".to_vec(), "global=`numpy.load`"),
        (b"cnumpy.core.multiarray\n_reconstruct.__globals__\n.".to_vec(), "_reconstruct.__globals__`"),
        (b"c\xff\x07\n`\n.".to_vec(), r"global=`\xff\x07.`"),
        (fixture("refused_class"), "global=`collections.defaultdict`"),
    ];
    for (file, says) in cases {
        let error = read_bytes(&file).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("never run") && error.to_string().contains(says), "{error}");
    }
    assert!(!mark.exists());
}

#[test]
fn what_is_no_tensor_is_refused_by_its_name() {
    let cases = [
        ("object", "Python objects"),
        ("structured", "structured"),
        ("datetime", "descr=`<M8`"),
        ("longdouble", "descr=`<f16`"),
        ("large", "64 bits"),
        ("larger", "64 bits"),
        ("mixed", "neither"),
        ("lists", "neither"),
        ("dtype", "dtype"),
        ("key", "key"),
    ];
    for (name, says) in cases {
        let error = read_bytes(&fixture(&format!("refused_{name}"))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("`it`") && error.to_string().contains(says), "{error}");
    }
}

#[test]
fn what_no_python_writes_is_an_error() {
    let cases: [(&[u8], &str); 29] = [
        (b"", "ends early"),
        (b"}", "ends early"),
        (b".", "nothing"),
        (b"}}.", "left on its stack"),
        (b"(}.", "left on its stack"),
        (b"}.}.", "bytes=`2`"),
        (b"].", "not a dict"),
        (b"\x80\x06}.", "protocol=`6`"),
        (b"\x7f.", "opcode=`0x7f`"),
        (b"Pid\n.", "outside"),
        (b"}\x97.", "buffers"),
        (b"\x82\x01.", "never run"),
        (b"0", "stack is empty"),
        (b"}(0a.", "stack is empty"),
        (b"1", "no mark"),
        (b"}h\x05.", "number=`5`"),
        (b"pnone\n", "memo"),
        (b"}p99999999999\n.", "memo"),
        (b"I1x\n.", "number"),
        (b"I\xff\n.", "number"),
        (b"F1.5x\n.", "number"),
        (b"Sx\n.", "string"),
        (b"S'\\x0'\n.", "string"),
        (b"V\\u00g0\n.", "string"),
        (b"V\\ud800\n.", "string"),
        (b"X\x01\x00\x00\x00\xff.", "UTF-8"),
        (b"X\xff\xff\xff\xff.", "ends early"),
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff.", "ends early"),
        (b"\x95\xff\xff\xff\xff\xff\xff\xff\xff.", "ends early"),
    ];
    for (file, says) in cases {
        let error = read_bytes(file).unwrap_err();
        assert!(error.to_string().contains(says), "{error}: {}", file.escape_ascii());
        assert!(!error.to_string().contains('\n'));
    }
    let values: [(&[u8], &str); 15] = [
        (b"cnumpy\nndarray\n", "no data"),
        (b"K\x01)R", "no function"),
        (b"cnumpy\nndarray\n]R", "tuple"),
        (b"cnumpy\nndarray\n)R", "NdArray"),
        (b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00NtR", "never filled"),
        (b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00NtR)b", "numpy pickles it"),
        (b"cnumpy\ndtype\n(S\"f4', 'x\"\ntR", "numpy pickles it"),
        (b"cnumpy\ndtype\n(S'f4'\ntRNb", "numpy pickles it"),
        (b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'f4'\ntRS'abc'\ntR", "another length"),
        (b"cnumpy.core.multiarray\nscalar\n(NS'abcd'\ntR", "numpy pickles it"),
        (b"c_codecs\nencode\n(V\\u0100\nVlatin1\ntR", "Encode"),
        (b"c_codecs\nencode\n(Va\nVhex\ntR", "Encode"),
        (b"c__builtin__\nset\n(K\x01tR", "Set"),
        (b"]N)b", "array or dtype"),
        (b"(K\x01d", "key without a value"),
    ];
    for (value, says) in values {
        let error = read_bytes(&dict(value)).unwrap_err();
        assert!(error.to_string().contains(says), "{error}: {}", value.escape_ascii());
    }
}

#[test]
fn equal_names_are_an_error() {
    let cases: [&[u8]; 5] = [
        b"}(S'a'\nK\x01S'a'\nK\x02u.",
        b"}(K\x01K\x01S'1'\nK\x02u.",
        b"}(S'a'\n}S'b'\nK\x01sS'a/b'\nK\x02u.",
        b"}(S'blobs'\n}S'lr'\nK\x01sS'lr'\nK\x02u.",
        b"}(S'cfg'\nS'x'\nS'cfg'\nS'y'\nu.",
    ];
    for file in cases {
        let error = read_bytes(file).unwrap_err();
        assert!(error.to_string().contains("same name name=`"), "{error}: {}", file.escape_ascii());
    }
}

#[test]
fn an_array_may_be_called_blobs() {
    let imported = read_bytes(b"}S'blobs'\n]K\x01as.").unwrap();
    assert_eq!(imported.workspace.tensor("blobs").unwrap().dtype(), DType::I64);
}

#[test]
fn a_cut_file_is_an_error_at_every_byte() {
    let started = Instant::now();
    for file in all() {
        for len in 0..file.len() {
            assert!(read_bytes(&file[..len]).is_err(), "{len}");
        }
    }
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}

#[test]
fn a_flipped_bit_is_an_error_or_another_sound_pickle() {
    let started = Instant::now();
    for name in ["by_hand", "dtypes_py2_p0", "layouts_numpy2_p5", "playground_numpy2_p2"] {
        let mut file = fixture(name);
        for bit in 0..file.len() * 8 {
            file[bit / 8] ^= 1 << (bit % 8);
            // What can be read has tensors as long as their shapes say: `Tensor::new` sees to that.
            if let Err(error) = read_bytes(&file) {
                let kinds = [ErrorKind::Corrupt, ErrorKind::Unsupported, ErrorKind::InvalidInput];
                assert!(kinds.contains(&error.kind()), "{error:?} at bit {bit}");
            }
            file[bit / 8] ^= 1 << (bit % 8);
        }
    }
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}

/// A program that pushes `value` and memoizes it as 0.
fn shared(value: &[u8]) -> Vec<u8> {
    [value, b"q\x000"].concat()
}

#[test]
fn what_unfolds_to_far_more_than_its_length_is_refused() {
    let key = |number: u32| [&b"M"[..], &(number as u16).to_le_bytes()].concat();
    // Dicts of ten times the dict before: 10^100 entries.
    let mut nested = b"}q\x00K\x01K\x02s0".to_vec();
    for level in 1..100u8 {
        nested.extend_from_slice(b"}(");
        for number in 0..10 {
            nested.extend_from_slice(&[b'K', number, b'h', level - 1]);
        }
        nested.extend_from_slice(&[b'u', b'q', level, b'0']);
    }
    nested.extend_from_slice(b"h\x63.");

    let large = [&b"X\x00\x00\x10\x00"[..], &[b'a'; 1 << 20]].concat();
    let strings = [shared(&large), dict(&[b"(", &b"h\x00".repeat(1000)[..], b"l"].concat())].concat();
    let entries: Vec<u8> = (0..1000).flat_map(|number| [key(number), b"h\x00".to_vec()].concat()).collect();
    let binary = [&b"B\x00\x00\x10\x00"[..], &[b'a'; (1 << 20) - 1], b"\xff"].concat();
    let binaries = [shared(&binary), b"}(".to_vec(), entries.clone(), b"u.".to_vec()].concat();
    let texts = [shared(&large), b"}(".to_vec(), entries, b"u.".to_vec()].concat();
    let encoded = b"c_codecs\nencode\nh\x00Vlatin1\n\x86R0".repeat(1000);
    let encoded = [shared(&large), encoded, b"}.".to_vec()].concat();
    let sets = b"c__builtin__\nset\nh\x00\x85R0".repeat(1000);
    let sets = [shared(&[&b"("[..], &[b'N'; 1 << 18], b"l"].concat()), sets, b"}.".to_vec()].concat();
    let arrays =
        b"cnumpy._core.numeric\n_frombuffer\n(h\x00cnumpy\ndtype\nU\x02i1\x85RJ\x00\x00\x10\x00\x85U\x01CtR";
    let arrays: Vec<u8> = (0..1000).flat_map(|number| [&key(number)[..], arrays].concat()).collect();
    let bytes = [&b"B\x00\x00\x10\x00"[..], &[0; 1 << 20]].concat();
    let arrays = [shared(&bytes), b"}(".to_vec(), arrays, b"u.".to_vec()].concat();
    let names = [
        ("nested dicts", nested),
        ("strings in a list", strings),
        ("texts under many names", texts),
        ("bytes that are no text under many names", binaries),
        ("encoded strings", encoded),
        ("sets", sets),
        ("arrays over the same bytes", arrays),
        ("empty lists", vec![b']'; 8 << 20]),
        ("marks", vec![b'('; 8 << 20]),
        ("nothing", vec![b'N'; 8 << 20]),
    ];
    for (what, file) in names {
        let started = Instant::now();
        let error = read_bytes(&file).unwrap_err();
        assert!(error.to_string().contains("far more than its own length"), "{what}: {error}");
        assert!(started.elapsed() < Duration::from_secs(20), "{what}: {:?}", started.elapsed());
    }
}

#[test]
fn nothing_is_too_deep_for_the_stack() {
    let deep = [b"]".repeat(100_000), b"a".repeat(99_999)].concat();
    let error = read_bytes(&dict(&deep)).unwrap_err();
    assert!(error.to_string().contains("`x`"), "{error}");
    let deep = [b"}K\x01".repeat(100_000), b"N".to_vec(), b"s".repeat(100_000), b".".to_vec()].concat();
    let error = read_bytes(&deep).unwrap_err();
    assert!(error.to_string().contains("too deep"), "{error}");
    // What holds itself.
    let error = read_bytes(b"}q\x00K\x01h\x00s.").unwrap_err();
    assert!(error.to_string().contains("too deep"), "{error}");
    let error = read_bytes(&dict(b"]q\x00h\x00a")).unwrap_err();
    assert!(error.to_string().contains("`x`"), "{error}");
}

#[test]
fn escapes_are_those_of_python() {
    let quoted = br#"'\\\'\"\a\b\t\n\v\f\r\x00\xfF\0\12\1234\q"'"#;
    assert_eq!(text::unquoted(quoted).unwrap(), b"\\'\"\x07\x08\t\n\x0b\x0c\r\x00\xff\x00\nS4\\q\"");
    for wrong in [&b""[..], b"'", b"a", b"'a", b"'a\"", b"'\\'", b"'\\x1'"] {
        assert_eq!(text::unquoted(wrong), None, "{}", wrong.escape_ascii());
    }
    let raw = b"\xfc\\u2603\\U0001f600\\\\u2603\\n\\";
    assert_eq!(text::raw_unicode(raw).unwrap(), "\u{fc}\u{2603}\u{1f600}\\\\u2603\\n\\");
    for wrong in [&b"\\u260"[..], b"\\U00110000", b"\\u+123"] {
        assert_eq!(text::raw_unicode(wrong), None, "{}", wrong.escape_ascii());
    }
    let decimals: [(&[u8], Option<i128>); 8] = [
        (b"0", Some(0)),
        (b"-12L", Some(-12)),
        (b"", None),
        (b"-", None),
        (b"L", None),
        (b"+1", None),
        (b"1_0", None),
        (&[b'9'; 50], Some(i128::MAX)),
    ];
    for (digits, expected) in decimals {
        assert_eq!(text::decimal(digits), expected, "{}", digits.escape_ascii());
    }
    assert_eq!(text::little_endian(&[0x00, 0xff]), -256);
    assert_eq!(text::little_endian(&[0; 17]), i128::MAX);
}

#[test]
fn a_long_list_of_numbers_is_read() {
    let file = dict(&[&b"("[..], &b"K\x07".repeat(500_000), b"l"].concat());
    assert_eq!(read_bytes(&file).unwrap().workspace.tensor("x").unwrap().shape(), [500_000]);
}
