//! `.npz` files: a zip with one `.npy` array per name.

use std::collections::HashSet;
use std::io::{Cursor, Read, Seek, Write};

use bytes::Bytes;
use ckpt_engine::blob::{Blob, Workspace};
use ckpt_engine::{Error, ErrorKind, Result, ResultExt};
use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::npy;

pub(super) fn read(file: &Bytes) -> Result<Workspace> {
    let mut archive = ZipArchive::new(Cursor::new(file.as_ref())).map_err(wrong)?;
    if archive.has_duplicate_names() {
        return Err(Error::new(ErrorKind::Corrupt, "two members have the same name"));
    }
    let mut workspace = Workspace::new();
    // Names of different bytes may read the same.
    let mut seen = HashSet::new();
    for number in 0..archive.len() {
        let mut member = archive.by_index(number).map_err(wrong)?;
        let name = member.name().map_err(wrong)?.into_owned();
        if member.is_dir() {
            continue;
        }
        if !seen.insert(name.clone()) {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("two members have the same name member=`{name}`"),
            ));
        }
        let Some(blob) = name.strip_suffix(".npy") else {
            return Err(Error::unsupported(format!(
                "member of an .npz file is not an .npy array member=`{name}`"
            )));
        };
        let array = read_member(&mut member).context(|| format!("member `{name}`"))?;
        workspace.insert(blob, npy::read(&array).context(|| format!("member `{name}`"))?);
    }
    Ok(workspace)
}

/// The bytes of a member. The library compares them with the member's checksum.
///
/// Its length is claimed twice, by the zip and by the array's header, which is read first: a small member that unpacks to more than
/// its array needs is refused before it is unpacked.
fn read_member<R: Read + Seek>(member: &mut zip::read::ZipFile<'_, R>) -> Result<Bytes> {
    let unreadable = |error| Error::new(ErrorKind::Corrupt, "member cannot be read").with_source(error);
    let claimed = member.size();
    let mut bytes = Vec::new();
    member.by_ref().take(npy::MAX_HEADER_LEN as u64).read_to_end(&mut bytes).map_err(unreadable)?;
    let len = npy::total_len(&bytes)?;
    if len != claimed {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!("member has another length than its array bytes=`{claimed}` array=`{len}`"),
        ));
    }
    let more = usize::try_from(len).unwrap_or(usize::MAX).saturating_sub(bytes.len());
    bytes.try_reserve_exact(more).map_err(|error| {
        Error::new(ErrorKind::Full, format!("out of memory for a member bytes=`{len}`")).with_source(error)
    })?;
    // One byte too many is asked for, so that the library comes to the end and compares the checksum.
    member.by_ref().take(more as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 != len {
        return Err(Error::new(ErrorKind::Corrupt, format!("member ends early or late bytes=`{len}`")));
    }
    Ok(bytes.into())
}

pub(super) fn write(out: &mut (impl Write + Seek), workspace: &Workspace) -> Result<()> {
    let mut archive = ZipWriter::new(out);
    for (name, blob) in workspace.iter() {
        let array = array_of(name, blob)?;
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            // Past 4 GiB, with room for what the zip puts around a member, lengths take 64 bits.
            .large_file(array.len() >= u64::from(u32::MAX) - (1 << 20));
        archive.start_file(format!("{name}.npy"), options).map_err(failed)?;
        array.write(&mut archive).map_err(|error| Error::io("cannot write", error))?;
    }
    archive.finish().map(drop).map_err(failed)
}

/// Whether such a file can hold a blob.
pub(super) fn check_blob(name: &str, blob: &Blob) -> Result<()> {
    array_of(name, blob).map(drop)
}

fn array_of<'b>(name: &str, blob: &'b Blob) -> Result<npy::Array<'b>> {
    let Blob::Tensor(tensor) = blob else {
        return Err(Error::unsupported(format!(
            "an .npz file cannot hold opaque bytes; name the blobs that you want with --blob blob=`{name}`"
        )));
    };
    // A member's name has a length of 16 bits.
    if name.len() > usize::from(u16::MAX) - 4 {
        return Err(Error::unsupported(format!(
            "blob name is too long for an .npz file; export a .safetensors file begins=`{}`",
            name.chars().take(40).collect::<String>()
        )));
    }
    npy::Array::new(tensor).context(|| format!("blob `{name}`"))
}

fn wrong(error: ZipError) -> Error {
    let kind = match error {
        ZipError::UnsupportedArchive(_) => ErrorKind::Unsupported,
        _ => ErrorKind::Corrupt,
    };
    Error::new(kind, "is not a sound .npz file").with_source(error)
}

fn failed(error: ZipError) -> Error {
    match error {
        ZipError::Io(error) => Error::io("cannot write", error),
        other => Error::internal("cannot write an .npz file").with_source(other),
    }
}

#[cfg(test)]
mod tests {
    use ckpt_engine::blob::Tensor;

    use super::*;

    fn workspace() -> Workspace {
        let mut workspace = Workspace::new();
        workspace.insert("encoder/w.0", Tensor::from_slice([2, 2], &[1.0f32, f32::NAN, -0.0, 3.0]).unwrap());
        workspace.insert("gr\u{fc}n", Tensor::scalar(true));
        workspace.insert("strings", Tensor::from_strings([2], &["a", ""]).unwrap());
        workspace
    }

    fn written(workspace: &Workspace) -> Bytes {
        let mut file = Cursor::new(Vec::new());
        write(&mut file, workspace).unwrap();
        file.into_inner().into()
    }

    #[test]
    fn a_workspace_makes_the_round_trip() {
        assert_eq!(read(&written(&workspace())).unwrap(), workspace());
        assert!(read(&written(&Workspace::new())).unwrap().is_empty());
    }

    #[test]
    fn compressed_members_are_read() {
        let mut file = Cursor::new(Vec::new());
        let mut archive = ZipWriter::new(&mut file);
        let tensor = Tensor::from_slice([50_000], &vec![7i64; 50_000]).unwrap();
        archive
            .start_file("w.npy", SimpleFileOptions::default().compression_method(CompressionMethod::Deflated))
            .unwrap();
        npy::Array::new(&tensor).unwrap().write(&mut archive).unwrap();
        archive.finish().unwrap();
        assert!(file.get_ref().len() < 10_000);
        assert_eq!(read(&file.into_inner().into()).unwrap().tensor("w").unwrap(), &tensor);
    }

    #[test]
    fn what_it_cannot_hold_is_named() {
        let cases = [
            ("o", Blob::bytes("t", Bytes::from_static(b"x"))),
            ("h", Tensor::scalar(half::bf16::ONE).into()),
            ("s", Tensor::from_strings([1], &["x\0"]).unwrap().into()),
        ];
        for (name, blob) in cases {
            let workspace = Workspace::from_iter([(name.to_owned(), blob)]);
            let error = write(&mut Cursor::new(Vec::new()), &workspace).unwrap_err();
            assert!(error.to_string().contains(&format!("`{name}`")), "{error}");
        }
    }

    #[test]
    fn damage_is_an_error() {
        let good = written(&workspace());
        for len in 0..good.len() {
            assert!(read(&good.slice(..len)).is_err(), "{len}");
        }
        for at in 0..good.len() {
            let mut damaged = good.to_vec();
            damaged[at] ^= 0x20;
            // Some bytes, such as dates, mean nothing; whatever is read must be right, or of another name.
            if let Ok(found) = read(&damaged.into()) {
                for (name, blob) in found.iter() {
                    assert!(workspace().get(name).is_none_or(|expected| expected == blob), "byte {at}");
                }
            }
        }
    }

    /// The library keeps members by name, so of two with one name it shows the last: a tensor would be lost unseen.
    #[test]
    fn two_members_of_one_name_are_refused() {
        let mut workspace = Workspace::new();
        workspace.insert("a", Tensor::scalar(1u8));
        workspace.insert("b", Tensor::scalar(2u8));
        let mut file = written(&workspace).to_vec();
        let mut renamed = 0;
        for at in 0..file.len() - 5 {
            if &file[at..at + 5] == b"b.npy" {
                file[at] = b'a';
                renamed += 1;
            }
        }
        assert_eq!(renamed, 2, "in the member and in the directory");
        assert_eq!(read(&file.into()).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn a_member_that_unpacks_to_more_than_its_array_is_refused() {
        let mut file = Cursor::new(Vec::new());
        let mut archive = ZipWriter::new(&mut file);
        archive
            .start_file("w.npy", SimpleFileOptions::default().compression_method(CompressionMethod::Deflated))
            .unwrap();
        npy::Array::new(&Tensor::scalar(1u8)).unwrap().write(&mut archive).unwrap();
        archive.write_all(&vec![0; 50 << 20]).unwrap();
        archive.finish().unwrap();
        let error = read(&file.into_inner().into()).unwrap_err();
        assert!(error.to_string().contains("another length"), "{error}");
    }

    #[test]
    fn members_that_are_no_arrays_are_refused_by_name() {
        let mut file = Cursor::new(Vec::new());
        let mut archive = ZipWriter::new(&mut file);
        archive.start_file("readme.txt", SimpleFileOptions::default()).unwrap();
        archive.write_all(b"hello").unwrap();
        archive.finish().unwrap();
        let error = read(&file.into_inner().into()).unwrap_err();
        assert!(error.to_string().contains("readme.txt"), "{error}");
    }
}
