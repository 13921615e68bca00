//! The caffe2 layout over the `memory` store: records that real Caffe2 wrote (torch 1.10.2), and made-up ones that it would not.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;

use super::*;
use crate::blob::{Blob, DType, Selection, Tensor, Workspace};
use crate::checkpoint::{Checkpoint, Checkpoints, Options};
use crate::db::{Layout, Limits, MemoryDriver, Payload, Source, WritePlan};
use crate::error::{Error, ErrorKind, Result};
use crate::format::caffe2::encode::{self, Chunk, Holders};
use crate::format::caffe2::proto::BlobProto;

/// Keys and values of a file with all dtypes.
const DTYPES: &[(&str, &str)] = &[
    (
        "f32#%0",
        "0a03663332120654656e736f721a310802080310011a180000003f0000a0bf00004040f9021550000000800000807f3a03663332420208005a04080010067800",
    ),
    (
        "f64#%0",
        "0a03663634120654656e736f721a250802100d3a03663634420208004a10000000000000f83f039300aa4bdd4dfe5a0408001002",
    ),
    ("f16#%0", "0a03663136120654656e736f721a1d0803100c22088078808003fff7013a03663136420208005a0408001003"),
    (
        "i8#%0",
        "0a026938120654656e736f721a2a08041007221680ffffffffffffffff01ffffffffffffffffff01007f3a026938420208005a0408001004",
    ),
    ("u8#%0", "0a027538120654656e736f721a1a080410062206007f8001ff013a027538420208005a0408001004"),
    (
        "i16#%0",
        "0a03693136120654656e736f721a2c0803100922178080feffffffffffff01ffffffffffffffffff01ffff013a03693136420208005a0408001003",
    ),
    ("u16#%0", "0a03753136120654656e736f721a1a0803100822050001ffff033a03753136420208005a0408001003"),
    (
        "i32#%0",
        "0a03693332120654656e736f721a2f08041002221a80808080f8ffffffff01ffffffffffffffffff0100ffffffff073a03693332420208005a0408001004",
    ),
    (
        "i64#%0",
        "0a03693634120654656e736f721a280802100a3a03693634420208005213ffffffffffffffffff018080808080808080405a0408001002",
    ),
    ("b#%0", "0a0162120654656e736f721a160803100522030100013a0162420208005a0408001003"),
    ("scalar#%0", "0a067363616c6172120654656e736f721a17100a3a067363616c6172420208005201075a0408001001"),
    ("empty#%0", "0a05656d707479120654656e736f721a190800080310013a05656d707479420208005a04080010007800"),
    (
        "strs#%0",
        "0a0473747273120654656e736f721a2108031004320261623200320578797a00713a0473747273420208005a0408001003",
    ),
    ("str", "0a03737472120b7374643a3a737472696e67220d68656c6c6f2000206279746573"),
];

/// Keys and values of a file with blobs that are no tensors.
const OTHERS: &[(&str, &str)] = &[
    (
        "c",
        "0a016312217374643a3a756e697175655f7074723c436f756e7465723c696e7436345f743e3e1a0a0801100a3a0163520116",
    ),
    ("m", "0a016d121b7374643a3a756e697175655f7074723c7374643a3a6d757465783e2200"),
    (
        "idx",
        "0a0369647812227374643a3a756e697175655f7074723c6361666665323a3a496e646578426173653e1a13080310022203050607420208005a0408001003220431302030",
    ),
    (
        "map",
        "0a036d61701226287374643a3a756e6f7264657265645f6d61703c696e7433325f742c20696e7433325f743e2922200a0e08001002420208005a04080010000a0e08001002420208005a0408001000",
    ),
    (
        "map2",
        "0a046d6170321226287374643a3a756e6f7264657265645f6d61703c696e7436345f742c20696e7433325f743e2922280a120802100a42020800520201025a04080010020a120802100222020a14420208005a0408001002",
    ),
    (
        "tc",
        "0a027463121b7374643a3a756e697175655f7074723c54726565437572736f723e2213613a6c656e6774687320613a76616c75657320",
    ),
    (
        "i8",
        "0a026938120d496e743854656e736f724350552a250803100819000000000000e03f21000000000000084028003205018001ff013a0269384006",
    ),
];

/// 17 floats as bfloat16.
const BF16: (&str, &str) = (
    "f#%0",
    "0a0166120654656e736f721a37081110013a0166420208005a04080010116a22803f813f823f803f813f807f807f80ffc07f807f000000800000008081bf000001007801",
);

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn place() -> Checkpoints {
    Checkpoints::new(Arc::new(MemoryDriver::new()), "run").with_layout(Layout::Caffe2)
}

/// A db of these records.
fn put(place: &Checkpoints, name: &str, records: &[(String, Vec<u8>)]) {
    let mut records = records.to_vec();
    records.sort();
    let plan = WritePlan { records: 0, bytes: 0, limits: Limits::default() };
    let write = place.driver().write(&Source::new("run", name), &plan, &mut |transaction| {
        records
            .iter()
            .try_for_each(|(key, value)| transaction.put(key.as_bytes(), Payload::from(value.clone())))
    });
    write.unwrap();
}

fn golden(records: &[(&str, &str)]) -> Vec<(String, Vec<u8>)> {
    records.iter().map(|(key, value)| ((*key).to_owned(), bytes(value))).collect()
}

fn open(records: &[(String, Vec<u8>)]) -> Result<Checkpoint> {
    let place = place();
    put(&place, "n.1", records);
    place.open("n", 1)
}

fn records_of(checkpoint: &Checkpoint) -> Vec<(String, Vec<u8>)> {
    let mut cursor = checkpoint.db().cursor().unwrap();
    let mut records = Vec::new();
    while let Some(key) = cursor.key() {
        records.push((String::from_utf8(key.to_vec()).unwrap(), cursor.value().unwrap().to_vec()));
        cursor.next().unwrap();
    }
    records
}

/// Loaded and saved again.
fn again(records: &[(String, Vec<u8>)], options: SaveOptions) -> Vec<(String, Vec<u8>)> {
    let place = place();
    put(&place, "n.1", records);
    let workspace = place.load("n", 1).unwrap();
    let place =
        place.with_options(Options { layout: Some(Layout::Caffe2), caffe2: options, ..Options::default() });
    place.save(&workspace, "n", 2).unwrap();
    let (old, new) = (place.open("n", 1).unwrap(), place.open("n", 2).unwrap());
    assert!(place.verify("n", 2).unwrap().is_ok());
    assert_eq!(old.diff(&new).unwrap(), crate::checkpoint::Diff::default());
    records_of(&new)
}

#[test]
fn what_caffe2_wrote_is_read_and_written_again_byte_for_byte() {
    for records in [golden(DTYPES), golden(OTHERS)] {
        let mut sorted = records.clone();
        sorted.sort();
        assert_eq!(again(&records, SaveOptions::default()), sorted);
        let checkpoint = open(&records).unwrap();
        let report = checkpoint.verify().unwrap();
        assert!(report.is_ok() && report.blobs == records.len() as u64, "{report:?}");
    }
}

#[test]
fn the_values_are_right() {
    let workspace = open(&golden(DTYPES)).unwrap().load(&Selection::All).unwrap();
    let tensor = |name: &str| workspace.tensor(name).unwrap();
    let floats = [0.5, -1.25, 3.0, f32::from_bits(0x5015_02f9), -0.0, f32::INFINITY];
    let bits: Vec<u32> =
        tensor("f32").as_slice::<f32>().unwrap().iter().map(|value| value.to_bits()).collect();
    assert_eq!(bits, floats.map(f32::to_bits));
    assert_eq!(tensor("i8").as_slice::<i8>().unwrap(), [-128, -1, 0, 127]);
    assert_eq!(tensor("u8").as_slice::<u8>().unwrap(), [0, 127, 128, 255]);
    assert_eq!(tensor("i16").as_slice::<i16>().unwrap(), [-32768, -1, 32767]);
    assert_eq!(tensor("u16").as_slice::<u16>().unwrap(), [0, 1, 65535]);
    assert_eq!(tensor("i32").as_slice::<i32>().unwrap(), [i32::MIN, -1, 0, i32::MAX]);
    assert_eq!(tensor("i64").as_slice::<i64>().unwrap(), [-1, 1 << 62].as_slice());
    assert_eq!(tensor("b").as_slice::<bool>().unwrap(), [true, false, true]);
    assert_eq!(tensor("scalar").shape(), [0u64; 0]);
    assert_eq!(tensor("empty").shape(), [0, 3]);
    assert_eq!(tensor("strs").strings().unwrap(), [&b"ab"[..], b"", b"xyz\0q"]);
    assert_eq!(string_of(workspace.get("str").unwrap()).unwrap(), b"hello \0 bytes");
}

#[test]
fn blobs_that_are_no_tensors_have_values_too() {
    let workspace = open(&golden(OTHERS)).unwrap().load(&Selection::All).unwrap();
    let blob = |name: &str| workspace.get(name).unwrap();
    assert_eq!(Counter::from_blob(blob("c")).unwrap(), Counter(22));
    assert_eq!(&Counter(22).to_blob("c"), blob("c"));
    let cursor = TreeCursor::from_blob(blob("tc")).unwrap();
    assert_eq!(cursor.fields, ["a:lengths", "a:values"]);
    assert_eq!(cursor.offsets, None);
    assert_eq!(&cursor.to_blob("tc"), blob("tc"));
    let quantized = Int8Tensor::from_blob(blob("i8")).unwrap();
    assert_eq!(quantized.elements.as_slice::<u8>().unwrap(), [1, 128, 255]);
    assert_eq!((quantized.scale, quantized.zero_point), (0.5, 3));
    let tensors = as_tensors("i8", blob("i8")).unwrap().unwrap();
    assert_eq!(
        tensors.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["i8", "i8.scale", "i8.zero_point"]
    );
    assert!(as_tensors("m", blob("m")).unwrap().is_none());
    assert!(Counter::from_blob(blob("tc")).is_err());
}

#[test]
fn bfloat16_keeps_what_caffe2_wrote_and_nans() {
    let records = golden(&[BF16]);
    let options = SaveOptions {
        blobs: vec![BlobOptions::new("f").unwrap().float_format(FloatFormat::Bfloat16)],
        ..SaveOptions::default()
    };
    assert_eq!(again(&records, options.clone()), records);
    // What Caffe2 makes 0, -0 and infinity of.
    let nans = [0x7fff_ffff, 0xffff_ffff, 0x7f80_0001, 0xff80_0001u32].map(f32::from_bits);
    let mut workspace = Workspace::new();
    workspace.insert("f", Tensor::from_slice([4], &nans).unwrap());
    let place =
        place().with_options(Options { layout: Some(Layout::Caffe2), caffe2: options, ..Options::default() });
    place.save(&workspace, "n", 1).unwrap();
    let loaded = place.load("n", 1).unwrap();
    let loaded = loaded.tensor("f").unwrap().as_slice::<f32>().unwrap();
    assert!(loaded.iter().zip(nans).all(|(a, b)| a.is_nan() && a.is_sign_negative() == b.is_sign_negative()));
}

fn chunk(name: &str, shape: &[u64], elements: std::ops::Range<u64>, value: f32) -> Vec<u8> {
    let count = usize::try_from(elements.end - elements.start).unwrap();
    let data: Vec<u8> = std::iter::repeat_n(value.to_le_bytes(), count).flatten().collect();
    let chunk = Chunk { name, dtype: DType::F32, shape, elements };
    encode::tensor(&chunk, data.into(), Holders::default()).unwrap().into_bytes().to_vec()
}

fn keyed(values: impl IntoIterator<Item = Vec<u8>>) -> Vec<(String, Vec<u8>)> {
    (0..).zip(values).map(|(number, value)| (format!("w#%{number}"), value)).collect()
}

#[test]
fn chunks_come_in_any_order() {
    let ranges = [4..8, 8..10, 0..4];
    let values = ranges.map(|range| chunk("w", &[5, 2], range.clone(), range.start as f32));
    let checkpoint = open(&keyed(values)).unwrap();
    let loaded = checkpoint.load(&Selection::All).unwrap();
    assert_eq!(
        loaded.tensor("w").unwrap().as_slice::<f32>().unwrap(),
        [0., 0., 0., 0., 4., 4., 4., 4., 8., 8.]
    );
    let rows = checkpoint.load_rows("w", 1..3).unwrap();
    assert_eq!(rows.as_slice::<f32>().unwrap(), [0., 0., 4., 4.]);
    assert_eq!(checkpoint.blob("w").unwrap().chunks, 3);
}

/// Caffe2 takes the first three without a word.
#[test]
fn chunks_that_do_not_fit_are_damage() {
    let cases: [(&str, Vec<Vec<u8>>); 6] = [
        ("overlap", vec![chunk("w", &[8], 0..4, 1.), chunk("w", &[8], 0..4, 2.)]),
        ("contradict", vec![chunk("w", &[8], 0..4, 1.), chunk("w", &[4, 2], 4..8, 2.)]),
        ("missing", vec![chunk("w", &[8], 0..4, 1.), chunk("w", &[8], 5..8, 2.)]),
        ("missing", vec![chunk("w", &[8], 0..4, 1.)]),
        ("missing", vec![chunk("w", &[1 << 40, 1 << 20], 0..4, 1.)]),
        ("overlap", vec![chunk("w", &[4], 0..4, 1.), chunk("w", &[4], 0..4, 1.)]),
    ];
    for (what, values) in cases {
        let mut records = keyed(values);
        records.push(("v#%0".to_owned(), chunk("v", &[2], 0..2, 7.)));
        let checkpoint = open(&records).unwrap();
        for error in [checkpoint.load(&Selection::All).unwrap_err(), checkpoint.blobs().unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains(what) && error.to_string().contains("blob `w`"), "{error}");
        }
        let report = checkpoint.verify().unwrap();
        assert_eq!(report.damage.len(), 1);
        assert_eq!(report.damage[0].blob.as_deref(), Some("w"));
        // The others are as good as ever.
        assert!(checkpoint.load(&Selection::names(["v"])).is_ok());
    }
}

#[test]
fn a_tensor_by_any_other_encoding_is_the_same() {
    let golden = BlobProto::decode(bytes(DTYPES[0].1).as_slice()).unwrap();
    let tensor = golden.tensor.clone().unwrap();
    // One number at a time, the last field first, in two parts, with unknown fields and a group between them.
    let mut first = vec![0x78, 0, 0x9b, 0x06, 0x08, 1, 0x9c, 0x06];
    for float in &tensor.float_data {
        first.push(0x1d);
        first.extend(float.to_le_bytes());
    }
    let mut second =
        crate::format::caffe2::proto::TensorProto { float_data: Vec::new(), data_format: None, ..tensor }
            .encode_to_vec();
    second.extend([0xf8, 0x7f, 1, 0x62, 2, b'x', b'y']);
    let mut value = Vec::new();
    for part in [first, second] {
        value.push(0x1a);
        value.push(u8::try_from(part.len()).unwrap());
        value.extend(part);
    }
    value.extend(BlobProto { tensor: None, ..golden }.encode_to_vec());
    let loaded = open(&[("f32#%0".to_owned(), value)]).unwrap().load(&Selection::All).unwrap();
    let usual = open(&self::golden(&DTYPES[..1])).unwrap().load(&Selection::All).unwrap();
    assert_eq!(loaded, usual);
}

#[test]
fn a_number_that_its_dtype_has_not_is_damage() {
    let mut value = bytes(DTYPES.iter().find(|(key, _)| *key == "u8#%0").unwrap().1);
    let at = value.windows(6).position(|window| window == [0, 0x7f, 0x80, 1, 0xff, 1]).unwrap();
    value[at + 5] = 3;
    let error = open(&[("u8#%0".to_owned(), value)]).unwrap().load(&Selection::All).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn dtypes_that_caffe2_has_not_are_refused_by_name() {
    let mut workspace = Workspace::new();
    workspace.insert("ok", Tensor::scalar(1u8));
    workspace.insert("w", Tensor::scalar(1u64));
    let error = place().save(&workspace, "n", 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("blob `w`") && error.to_string().contains("u64"), "{error}");
    assert!(!place().exists("n", 1).unwrap());
}

#[test]
fn copies_change_the_layout_and_back() {
    let place = place();
    put(&place, "n.1", &golden(DTYPES));
    put(&place, "m.1", &golden(OTHERS));
    let other = |layout| Checkpoints::new(Arc::new(MemoryDriver::new()), "b").with_layout(layout);
    let (native, back, as_is) =
        (other(Layout::Native), other(Layout::Caffe2), Checkpoints::new(Arc::new(MemoryDriver::new()), "c"));
    for node in ["n", "m"] {
        place.copy_to(node, 1, &native).unwrap();
        native.copy_to(node, 1, &back).unwrap();
        place.copy_to(node, 1, &as_is).unwrap();
        let opened = native.open(node, 1).unwrap();
        assert_eq!((opened.about().layout, opened.about().node.as_str()), (Layout::Native, node));
        let original = place.open(node, 1).unwrap();
        for copy in [back.open(node, 1).unwrap(), as_is.open(node, 1).unwrap()] {
            assert_eq!(records_of(&copy), records_of(&original));
            assert_eq!(copy.id(), original.id());
        }
        for to in [&native, &back, &as_is] {
            let again = place.copy_to(node, 1, to).unwrap();
            assert_eq!(again.outcome, crate::checkpoint::CopyOutcome::Present);
        }
    }
}

/// There are no checksums, so a flip in an element goes through; but it is never a panic, and never a blob of another shape than what
/// is there.
#[test]
fn every_flip_and_every_cut_is_an_error_or_a_value() {
    for (key, hex) in DTYPES.iter().chain(OTHERS).chain([&BF16]) {
        let value = bytes(hex);
        for bit in 0..value.len() * 8 {
            let mut flipped = value.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let _ = open(&[((*key).to_owned(), flipped)]).and_then(|checkpoint| {
                let _ = checkpoint.verify()?;
                checkpoint.load(&Selection::All)
            });
        }
        for len in 0..value.len() {
            let cut = value[..len].to_vec();
            let loaded = open(&[((*key).to_owned(), cut)]).and_then(|found| found.load(&Selection::All));
            if let Err(error) = loaded {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{key} cut to {len}: {error}");
            }
        }
    }
}

#[test]
fn names_that_meet_are_refused() {
    let mut workspace = Workspace::new();
    workspace.insert("a", Tensor::scalar(1u8));
    workspace.insert("a#%0", Blob::bytes("std::string", Bytes::from_static(b"x")));
    let error: Error = place().save(&workspace, "n", 1).unwrap_err();
    assert!(error.to_string().contains("one key"), "{error}");
}

/// `serialization_test`: a number of a data type that nobody knows, and the same bytes with one that all know.
#[test]
fn an_unknown_data_type_is_named() {
    let mut proto =
        BlobProto::decode(bytes(DTYPES.iter().find(|(key, _)| *key == "i32#%0").unwrap().1).as_slice())
            .unwrap();
    let mut with = |number| {
        proto.tensor.as_mut().unwrap().data_type = number;
        open(&[("i32#%0".to_owned(), proto.encode_to_vec())]).and_then(|found| found.load(&Selection::All))
    };
    for number in [Some(4567), Some(11), Some(14), Some(-1), None] {
        let error = with(number).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{number:?}");
        assert!(error.to_string().contains("data type"), "{error}");
    }
    assert_eq!(with(Some(2)).unwrap().len(), 1);
}

/// `blob_test`: three million halves, as varints and as bytes, the low byte first.
#[test]
fn many_halves_make_the_round_trip_in_either_holder() {
    let halves: Vec<half::f16> = (0..3_000_000u32).map(|bits| half::f16::from_bits(bits as u16)).collect();
    let mut workspace = Workspace::new();
    workspace.insert("h", Tensor::from_vec([3000, 1000], halves).unwrap());
    for fp16_as_bytes in [false, true] {
        let caffe2 = SaveOptions { fp16_as_bytes, ..SaveOptions::default() };
        let place =
            place().with_options(Options { layout: Some(Layout::Caffe2), caffe2, ..Options::default() });
        let report = place.save(&workspace, "n", 1).unwrap();
        assert_eq!(fp16_as_bytes, report.stored_bytes < 6_001_000, "{}", report.stored_bytes);
        assert!(place.load("n", 1).unwrap() == workspace);
        assert_eq!(place.open("n", 1).unwrap().blob("h").unwrap().chunks, 3);
        let rows = place.load_rows("n", 1, "h", 999..1001).unwrap();
        assert!(rows == workspace.tensor("h").unwrap().rows(999..1001).unwrap(), "over the end of a chunk");
    }
}

/// `blob_test`: a type that splits itself, in ten pieces, comes back as all of them in their order.
#[test]
fn a_blob_in_pieces_of_its_own_is_put_together() {
    let piece = |id: i32, count: i32| BlobProto {
        name: Some("b".to_owned()),
        r#type: Some("MyType".to_owned()),
        content: Some(vec![b'0' + u8::try_from(id).unwrap(); 3]),
        content_num_chunks: Some(count),
        content_chunk_id: Some(id),
        ..BlobProto::default()
    };
    let records = |ids: &[i32], count| -> Vec<(String, Vec<u8>)> {
        ids.iter().map(|&id| (format!("b#%{id}"), piece(id, count).encode_to_vec())).collect()
    };
    let whole = open(&records(&[3, 0, 1, 2, 9, 8, 7, 6, 5, 4], 10)).unwrap().load(&Selection::All).unwrap();
    let Some(Blob::Bytes { type_name, data }) = whole.get("b") else { panic!("{whole:?}") };
    assert_eq!((type_name.as_str(), &data[..]), ("MyType", &b"000111222333444555666777888999"[..]));
    for (ids, count) in [(&[0, 1, 2][..], 4), (&[0, 2], 2), (&[5], 1)] {
        let error = open(&records(ids, count)).and_then(|found| found.load(&Selection::All)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{ids:?} of {count}: {error}");
    }
}

/// `blob_test`: an empty tensor that never had a type was written, and loads as floats.
#[test]
fn an_empty_tensor_without_a_type_is_of_floats() {
    let mut proto =
        BlobProto::decode(bytes(DTYPES.iter().find(|(key, _)| *key == "empty#%0").unwrap().1).as_slice())
            .unwrap();
    let tensor = proto.tensor.as_mut().unwrap();
    (tensor.dims, tensor.data_type, tensor.data_format) = (vec![0], Some(0), None);
    let loaded =
        open(&[("empty#%0".to_owned(), proto.encode_to_vec())]).unwrap().load(&Selection::All).unwrap();
    let tensor = loaded.tensor("empty").unwrap();
    assert_eq!((tensor.dtype(), tensor.shape()), (DType::F32, &[0][..]));
}

/// A cursor under a key that is not the name in it came back with its name twice: the copy of a copy grew.
#[test]
fn a_blob_under_another_name_keeps_its_bytes() {
    let cursor = bytes(OTHERS.iter().find(|(key, _)| *key == "tc").unwrap().1);
    let loaded = open(&[("other".to_owned(), cursor.clone())]).unwrap().load(&Selection::All).unwrap();
    let place = place();
    place.save(&loaded, "n", 1).unwrap();
    assert_eq!(records_of(&place.open("n", 1).unwrap()), [("other".to_owned(), cursor)]);
    // Where the key alone would be read as that of a chunk, the name in the record tells that it is not.
    let mut odd = Workspace::new();
    odd.insert("b#%5", loaded.get("other").unwrap().clone());
    place.save(&odd, "n", 2).unwrap();
    assert_eq!(place.load("n", 2).unwrap().names().collect::<Vec<_>>(), ["b#%5"]);
}
