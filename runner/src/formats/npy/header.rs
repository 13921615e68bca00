//! The header of an array: the text of a Python dictionary with `descr`, `fortran_order` and `shape`. It is parsed here, and nothing
//! in it is evaluated.

use ckpt_engine::{Error, Result};

use super::corrupt;

const MAGIC: &[u8] = b"\x93NUMPY";

/// numpy itself refuses longer headers unless it is told to trust the file.
const MAX_TEXT_LEN: usize = 64 << 10;

/// The longest header, magic and all.
pub(super) const MAX_HEADER_LEN: usize = MAX_TEXT_LEN + 12;

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) descr: String,
    pub(super) fortran_order: bool,
    pub(super) shape: Vec<u64>,
}

/// The header at the beginning of a file, and its length.
pub(super) fn read(file: &[u8]) -> Result<(Header, usize)> {
    let wrong = || corrupt("is not a sound .npy array");
    let rest = file.strip_prefix(MAGIC).ok_or_else(wrong)?;
    let ([major, _minor], rest) = rest.split_first_chunk::<2>().ok_or_else(wrong)?;
    let (len, rest) = match major {
        1 => {
            let (len, rest) = rest.split_first_chunk::<2>().ok_or_else(wrong)?;
            (usize::from(u16::from_le_bytes(*len)), rest)
        }
        2 | 3 => {
            let (len, rest) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
            (u32::from_le_bytes(*len) as usize, rest)
        }
        other => {
            return Err(Error::unsupported(format!("unknown version of the .npy format version=`{other}`")));
        }
    };
    if len > MAX_TEXT_LEN {
        return Err(corrupt(format!("array header is too long bytes=`{len}`")));
    }
    let (text, data) = rest.split_at_checked(len).ok_or_else(wrong)?;
    let text = std::str::from_utf8(text).map_err(|_| wrong())?;
    Ok((parse(text)?, file.len() - data.len()))
}

/// Reads the dictionary.
fn parse(header: &str) -> Result<Header> {
    let wrong =
        || corrupt(format!("array header does not parse header=`{}`", header.trim_end().escape_debug()));
    let (mut descr, mut fortran_order, mut shape) = (None, None, None);
    let mut rest = header.trim().strip_prefix('{').ok_or_else(wrong)?.trim_start();
    while !rest.starts_with('}') {
        let (key, after) = quoted(rest).ok_or_else(wrong)?;
        let value = after.trim_start().strip_prefix(':').ok_or_else(wrong)?.trim_start();
        let after = match key {
            "descr" if value.starts_with('[') => {
                return Err(Error::unsupported(format!(
                    "structured arrays are not supported descr=`{}`",
                    value.split(']').next().unwrap_or_default().escape_debug()
                )));
            }
            "descr" => {
                let (text, after) = quoted(value).ok_or_else(wrong)?;
                descr = Some(text.to_owned());
                after
            }
            "fortran_order" => {
                let truth = [("True", true), ("False", false)];
                let found = truth.iter().find_map(|(word, truth)| Some((value.strip_prefix(word)?, truth)));
                let (after, truth) = found.ok_or_else(wrong)?;
                fortran_order = Some(*truth);
                after
            }
            "shape" => {
                let (dims, after) =
                    value.strip_prefix('(').and_then(|dims| dims.split_once(')')).ok_or_else(wrong)?;
                let dims = dims.split(',').map(str::trim).filter(|dim| !dim.is_empty());
                // Python 2 wrote long integers with an L.
                let dims =
                    dims.map(|dim| dim.trim_end_matches('L').parse().ok()).collect::<Option<Vec<u64>>>();
                shape = Some(dims.ok_or_else(wrong)?);
                after
            }
            _ => return Err(wrong()),
        };
        let after = after.trim_start();
        rest = match after.strip_prefix(',') {
            Some(after) => after.trim_start(),
            None if after.starts_with('}') => after,
            None => return Err(wrong()),
        };
    }
    let found = descr.zip(fortran_order).zip(shape);
    let ((descr, fortran_order), shape) = found.ok_or_else(wrong)?;
    Ok(Header { descr, fortran_order, shape })
}

/// A quoted word and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    text.get(1..)?.split_once(quote)
}

/// A header, padded so that the elements begin at a multiple of 64 bytes.
pub(super) fn write(descr: &str, shape: &[u64]) -> Vec<u8> {
    let dims: String = shape.iter().map(|dim| format!("{dim}, ")).collect();
    let dims = if shape.len() == 1 { dims.trim_end() } else { dims.trim_end_matches([',', ' ']) };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
    // Version 1 has two bytes for the length.
    let fixed = if text.len() + 64 < usize::from(u16::MAX) { 10 } else { 12 };
    let padded = (fixed + text.len() + 1).next_multiple_of(64) - fixed;
    text.extend(std::iter::repeat_n(' ', padded - text.len() - 1));
    text.push('\n');
    let mut header = MAGIC.to_vec();
    match u16::try_from(text.len()) {
        Ok(len) if fixed == 10 => {
            header.extend_from_slice(&[1, 0]);
            header.extend_from_slice(&len.to_le_bytes());
        }
        _ => {
            header.extend_from_slice(&[2, 0]);
            header.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
        }
    }
    header.extend_from_slice(text.as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_as_numpy_does() {
        let cases: [(&[u64], &str); 4] =
            [(&[], "()"), (&[3], "(3,)"), (&[2, 3], "(2, 3)"), (&[0, 1, 2], "(0, 1, 2)")];
        for (shape, text) in cases {
            let header = write("<f4", shape);
            assert_eq!(header.len() % 64, 0);
            let dict = std::str::from_utf8(&header[10..]).unwrap();
            assert_eq!(
                dict.trim_end(),
                format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {text}, }}")
            );
            assert!(dict.ends_with('\n'));
            let expected = Header { descr: "<f4".to_owned(), fortran_order: false, shape: shape.to_vec() };
            assert_eq!(read(&header).unwrap(), (expected, header.len()));
        }
    }

    #[test]
    fn long_shapes_take_a_later_version() {
        let shape = vec![1; 30_000];
        let header = write("<f4", &shape);
        assert_eq!((header[6], header.len() % 64), (2, 0));
        // So long a header is not read back: numpy would not either.
        assert!(read(&header).is_err());
        let shape = vec![1; 10_000];
        assert_eq!(read(&write("<f4", &shape)).unwrap().0.shape, shape);
    }

    #[test]
    fn all_versions_and_spellings_are_read() {
        let dict = "{\"shape\": (2L, 3), 'fortran_order':True,'descr' : '>f8'}";
        let expected = Header { descr: ">f8".to_owned(), fortran_order: true, shape: vec![2, 3] };
        for version in [1, 2, 3] {
            let mut file = b"\x93NUMPY".to_vec();
            file.extend_from_slice(&[version, 0]);
            file.extend_from_slice(&(dict.len() as u32).to_le_bytes()[..if version == 1 { 2 } else { 4 }]);
            file.extend_from_slice(dict.as_bytes());
            assert_eq!(read(&file).unwrap(), (expected.clone(), file.len()));
        }
        assert!(read(b"\x93NUMPY\x04\x00\x00\x00").is_err());
    }
}
