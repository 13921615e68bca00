//! A record of a log: some puts and deletions that were made at once.
//!
//! | bytes | |
//! |---|---|
//! | 8 | the sequence number of the first; the others' follow |
//! | 4 | how many there are |
//! | 1, then key and perhaps value, each with its length before it | deletion (0) or value (1) |

use bytes::Bytes;
use ckpt_engine::{Error, Result};

use super::{DELETION, Input, MAX_SEQUENCE, Stored, VALUE};

/// Hands out what a record of a log puts and deletes, in order. Keys and values are parts of it, not copies.
pub(crate) fn read(batch: &Bytes, each: &mut dyn FnMut(Bytes, Stored)) -> Result<()> {
    let mut input = Input(batch);
    let header = (|| Some((input.array()?, input.array()?)))();
    let (first, count) = header.ok_or_else(|| damaged("is too short"))?;
    let (first, count) = (u64::from_le_bytes(first), u32::from_le_bytes(count));
    if first > MAX_SEQUENCE - u64::from(count) {
        return Err(damaged("has an impossible sequence number"));
    }
    for sequence in first..first + u64::from(count) {
        let entry = entry(&mut input).ok_or_else(|| damaged("has an entry that does not fit"))?;
        let (key, value) = entry?;
        each(batch.slice_ref(key), Stored { sequence, value: value.map(|value| batch.slice_ref(value)) });
    }
    if !input.is_empty() {
        return Err(damaged("has more entries than it says"));
    }
    Ok(())
}

/// A key, and its value if it was not deleted. `None` where the batch ends before the entry does.
fn entry<'b>(input: &mut Input<'b>) -> Option<Result<(&'b [u8], Option<&'b [u8]>)>> {
    match input.array()? {
        [DELETION] => Some(Ok((input.prefixed()?, None))),
        [VALUE] => Some(Ok((input.prefixed()?, Some(input.prefixed()?)))),
        [_] => Some(Err(damaged("has an entry of an unknown type"))),
    }
}

fn damaged(why: &str) -> Error {
    Error::corrupt(format!("record of a LevelDB log {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Entry = (Bytes, u64, Option<Bytes>);

    fn entries(batch: &[u8]) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        read(&Bytes::copy_from_slice(batch), &mut |key, stored| {
            entries.push((key, stored.sequence, stored.value));
        })?;
        Ok(entries)
    }

    #[test]
    fn a_batch_has_these_bytes() {
        let batch = b"\x07\0\0\0\0\0\0\0\x03\0\0\0\x01\x01a\x02xy\x00\x02bc\x01\x00\x00";
        let found = entries(batch).unwrap();
        let expected = [("a", 7, Some("xy")), ("bc", 8, None), ("", 9, Some(""))];
        let expected = expected.map(|(key, sequence, value)| (key.into(), sequence, value.map(Bytes::from)));
        assert_eq!(found, expected);
        for len in 0..batch.len() {
            assert!(entries(&batch[..len]).is_err(), "{len}");
        }
        assert!(entries(&[batch, &b"\0"[..]].concat()).is_err());
    }

    #[test]
    fn what_is_impossible_is_refused() {
        assert_eq!(entries(&[0; 12]).unwrap(), []);
        assert!(entries(b"\0\0\0\0\0\0\0\0\x01\0\0\0\x02\x01a").is_err());
        assert!(entries(b"\xff\xff\xff\xff\xff\xff\xff\x00\x01\0\0\0\x00\x01a").is_err());
        assert!(entries(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x01a").is_err());
    }
}
