//! Several reads of one record, for stores that give out records whole: each is fetched once.

use ckpt_engine::Result;
use ckpt_engine::db::{Read, ReadSink, slice_value};

use super::again;

/// The ranges that are wanted of one record.
pub(crate) struct Wanted<'a> {
    /// Its key.
    pub(crate) key: &'a [u8],
    reads: Vec<(usize, Read<'a>)>,
}

impl<'a> Wanted<'a> {
    /// Groups reads by their records, in the order of keys. Fails with `InvalidInput` for a range that does not fit its buffer.
    pub(crate) fn group(reads: Vec<Read<'a>>) -> Result<Vec<Self>> {
        let mut reads: Vec<_> = reads.into_iter().enumerate().collect();
        for (_, read) in &reads {
            read.len()?;
        }
        reads.sort_by_key(|(_, read)| read.key);
        let mut records: Vec<Self> = Vec::new();
        for (index, read) in reads {
            match records.last_mut().filter(|record| record.key == read.key) {
                Some(record) => record.reads.push((index, read)),
                None => records.push(Self { key: read.key, reads: vec![(index, read)] }),
            }
        }
        Ok(records)
    }

    /// The buffer for the whole record of this length, if that is all that is wanted.
    #[cfg(feature = "rocksdb")]
    pub(crate) fn whole(&mut self, len: u64) -> Option<(usize, &mut [u8])> {
        match &mut self.reads[..] {
            [(index, Read { range, into: Some(into), .. })] if *range == (0..len) => Some((*index, into)),
            _ => None,
        }
    }

    /// The length of the longest range.
    #[cfg(feature = "rocksdb")]
    pub(crate) fn longest(&self) -> u64 {
        let len = |(_, read): &(usize, Read<'_>)| read.range.end.saturating_sub(read.range.start);
        self.reads.iter().map(len).max().unwrap_or(0)
    }

    /// Hands out what is wanted of the record that was fetched, or why it was not.
    pub(crate) fn hand_out<V: AsRef<[u8]>>(
        self,
        value: &Result<Option<V>>,
        sink: &ReadSink<'_>,
    ) -> Result<()> {
        for (index, read) in self.reads {
            let value = match value {
                Ok(value) => value.as_ref().map(AsRef::as_ref),
                Err(error) => {
                    sink(index, Err(again(error)))?;
                    continue;
                }
            };
            let found = slice_value(value, read.range.clone(), self.key);
            match (found, read.into) {
                (Ok(found), Some(into)) => {
                    into.copy_from_slice(found);
                    sink(index, Ok(into))?;
                }
                (found, _) => sink(index, found)?,
            }
        }
        Ok(())
    }
}
