//! Mapping: the stored bytes themselves, where they are the raw ones and lie in one run.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::Native;
use crate::blob::to_usize;
use crate::checkpoint::opened::Opened;
use crate::error::{Error, Result, ResultExt};
use crate::format::codec::{self, Codec};
use crate::format::keys;
use crate::format::manifest::Located;
use crate::pipeline;

/// Elements of every type may begin at a multiple of this.
const ALIGN: usize = 16;

impl Native {
    /// The bytes of those storages that can be lent, each chunk of them compared with its checksum if `check`.
    pub(in crate::checkpoint) fn map(
        &self,
        opened: &Opened,
        storages: BTreeSet<usize>,
        check: bool,
    ) -> Result<BTreeMap<usize, Bytes>> {
        let mut mapped = BTreeMap::new();
        let mut chunks: Vec<(usize, Located, Bytes)> = Vec::new();
        for storage in storages {
            let Some((bytes, located)) = self.map_storage(opened, storage)? else { continue };
            for located in located {
                let range = to_usize(located.raw.start)?..to_usize(located.raw.end)?;
                chunks.push((storage, located, bytes.slice(range)));
            }
            mapped.insert(storage, bytes);
        }
        if check {
            let observer = &opened.options.observer;
            observer.started(&opened.label, chunks.iter().map(|(_, _, bytes)| bytes.len() as u64).sum());
            let checked = pipeline::ordered(
                &chunks,
                opened.options.limits,
                |_| 0,
                |(storage, located, bytes)| {
                    codec::check(bytes, located.chunk.crc32).context(|| self.describe(*storage, located))?;
                    observer.advanced(bytes.len() as u64);
                    Ok(())
                },
                |_, ()| Ok(()),
            );
            observer.finished();
            checked?;
        }
        Ok(mapped)
    }

    /// The bytes of a storage and its chunks, or `None` if they are not stored raw in one run.
    fn map_storage(&self, opened: &Opened, storage: usize) -> Result<Option<(Bytes, Vec<Located>)>> {
        let entry =
            self.manifest().storages.get(storage).ok_or_else(|| Error::internal("no such storage"))?;
        let located: Vec<Located> = entry.located().collect();
        let (Some(first), Some(last)) = (located.first(), located.last()) else { return Ok(None) };
        if located.iter().any(|located| located.chunk.codec != Codec::Raw) {
            return Ok(None);
        }
        let keys = (keys::record_key(first.record), keys::record_key(last.record));
        let Some(run) = opened.db.map(&keys.0, &keys.1)? else { return Ok(None) };
        let (start, len) = (to_usize(first.stored.start)?, to_usize(entry.bytes)?);
        // A record that holds more than the manifest says would put what follows out of its place: those are read one by one.
        let is_run = first.record == last.record || start == 0 && run.len() == len;
        let end = start.checked_add(len).filter(|&end| is_run && end <= run.len());
        let bytes = end.map(|end| run.slice(start..end));
        Ok(bytes.filter(|bytes| bytes.as_ptr().addr().is_multiple_of(ALIGN)).map(|bytes| (bytes, located)))
    }
}
