//! Writing: records encoded on several threads, in order; then the manifest.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::checkpoint::content::Content;
use crate::checkpoint::naming::DbName;
use crate::checkpoint::save::{Written, body_was_not_run, share, unix_ms};
use crate::checkpoint::{Checkpoints, Compression, Options};
use crate::db::{Limits, Payload, Source, Transaction, Values, WritePlan};
use crate::error::{Error, Result};
use crate::format::keys;
use crate::format::layout::{CHUNK_BYTES, Layout, Piece, WHOLE_BYTES};
use crate::format::manifest::{BlobKind, DbId, Manifest};
use crate::pipeline::{self, Backlog};

/// Room in the plan for the manifest, per blob and per chunk beside the names; only an upper bound that sizes what is planned.
const MANIFEST_BYTES_PER_ENTRY: usize = 128;

/// What [`Compression::Auto`](crate::checkpoint::Compression::Auto) expects a thread to compress in a second: less than half of what it
/// does when a processor is free, because a chunk that is late lets the store wait, and one that is stored raw costs nothing.
const COMPRESSED_PER_SECOND: f64 = (100 << 20) as f64;

/// Writes blobs to `source`.
pub(in crate::checkpoint) fn stage(
    place: &Checkpoints,
    content: &Content<'_>,
    source: &Source,
    name: &DbName,
    metadata: &BTreeMap<String, String>,
) -> Result<Written> {
    let planned =
        Layout::plan(&content.storages, largest_whole(&place.options, place.driver.capabilities().values))?;
    let mut blobs = content.blobs.clone();
    blobs.sort_by(|a, b| a.name.cmp(&b.name));
    let template = Manifest {
        id: random_id()?,
        node: name.node.clone(),
        epoch: name.epoch,
        created_unix_ms: unix_ms(),
        writer: concat!("ckpt ", env!("CARGO_PKG_VERSION")).to_owned(),
        metadata: metadata.clone(),
        storages: Vec::new(),
        blobs,
    };
    let plan = write_plan(&planned, &template, place.options.limits);
    let mut written = None;
    place.driver.write(source, &plan, &mut |transaction| {
        written = Some(put_all(place, content, &planned, template.clone(), transaction)?);
        Ok(())
    })?;
    written.ok_or_else(body_was_not_run)
}

/// Up to which length a storage is one chunk. What is compressed is not mapped in any case. A chunk is read and encoded as a whole, so
/// that a small budget makes it short again.
fn largest_whole(options: &Options, values: Values) -> usize {
    let is_wanted = options.compression == Compression::None && values == Values::MappedSingly;
    if is_wanted { (options.limits.memory / 4).clamp(CHUNK_BYTES, WHOLE_BYTES) } else { CHUNK_BYTES }
}

/// Puts the records in order, encoded on several threads, then the manifest.
fn put_all(
    place: &Checkpoints,
    content: &Content<'_>,
    planned: &Layout,
    mut manifest: Manifest,
    transaction: &mut dyn Transaction,
) -> Result<Written> {
    let options = &place.options;
    let mut storages = planned.storages.clone();
    let mut bytes = 0;
    let raw = |piece: &Piece| content.read(piece.storage, piece.range.clone());
    let widths = content.widths();
    pipeline::ordered_with_backlog(
        &planned.records,
        share(options.limits),
        |record| content.cost(Layout::record_bytes(record), Layout::record_bytes(record)),
        |record, backlog| {
            let level = options.compression.level(|| has_time(Layout::record_bytes(record), backlog));
            Layout::encode(record, level, &widths, raw)
        },
        |number, encoded| {
            let key =
                keys::record_key(u32::try_from(number).map_err(|_| Error::internal("too many records"))?);
            bytes += encoded.value.len() as u64;
            transaction.put(&key, encoded.value)?;
            planned.record_done(&mut storages, number, &encoded.chunks);
            options.observer.advanced(encoded.raw_bytes);
            Ok(())
        },
    )?;
    manifest.storages = storages;
    let record = manifest.encode();
    bytes += record.len() as u64;
    transaction.put(keys::MANIFEST, Payload::from(record))?;
    Ok(Written { id: manifest.id, stored_bytes: manifest.stored_bytes(), bytes, records_crc32: None })
}

/// Whether so many bytes are compressed before the store has taken what it was given already.
///
/// The measure is the time that `put` takes. A store that writes behind takes the first blocks at once, and so seems to need no time:
/// that is right, as it is not behind then, and whatever is encoded faster gets to the device sooner. Once its queue is full, each `put`
/// waits until a block is written, and takes just as long as the device needs. What lies in that queue comes on top of what waits here,
/// so the backlog is never less than it seems. A store that works in `put` itself is measured as it is. The time that the writer waits for
/// the encoders is no part of it: it would make the store seem slow because we are, and more would be compressed the later we are.
///
/// Until the first `put` has had to wait the pace is not known, and what fits the budget is stored raw meanwhile: of a large save that is
/// little, and of a small one the store behind its queue is hardly the limit.
fn has_time(bytes: usize, backlog: Backlog) -> bool {
    let needed = Duration::try_from_secs_f64(bytes as f64 / COMPRESSED_PER_SECOND).unwrap_or(Duration::MAX);
    backlog.lasts >= needed
}

fn write_plan(planned: &Layout, manifest: &Manifest, limits: Limits) -> WritePlan {
    let names = manifest.blobs.iter().map(|blob| {
        let kind = match &blob.kind {
            BlobKind::Tensor { shape, .. } => shape.len() * 10,
            BlobKind::Bytes { type_name } => type_name.len(),
        };
        blob.name.len() + kind
    });
    let metadata = manifest.metadata.iter().map(|(key, value)| key.len() + value.len());
    let entries = manifest.blobs.len() + planned.records.iter().map(Vec::len).sum::<usize>() + metadata.len();
    let manifest_bytes =
        names.chain(metadata).sum::<usize>() + manifest.node.len() + MANIFEST_BYTES_PER_ENTRY * (entries + 2);
    WritePlan {
        records: planned.records.len() as u64 + 1,
        bytes: planned.max_bytes() + manifest_bytes as u64,
        limits: share(limits),
    }
}

fn random_id() -> Result<DbId> {
    let mut id = DbId::default();
    getrandom::fill(&mut id)
        .map_err(|error| Error::internal("the system gives no random bytes").with_source(error))?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::blob::{Tensor, Workspace};
    use crate::checkpoint::Codec;
    use crate::db::{Capabilities, Db, Driver, MemoryDriver, Records, WriteBody};
    use crate::format::shuffle::Width;

    /// The `memory` store behind a device that needs this long for each record.
    #[derive(Debug)]
    struct Slow(MemoryDriver, Duration);

    struct SlowTransaction<'a>(&'a mut dyn Transaction, Duration);

    impl Transaction for SlowTransaction<'_> {
        fn put(&mut self, key: &[u8], value: Payload) -> Result<()> {
            std::thread::sleep(self.1);
            self.0.put(key, value)
        }
    }

    impl Driver for Slow {
        fn db_type(&self) -> &'static str {
            self.0.db_type()
        }
        fn capabilities(&self) -> Capabilities {
            self.0.capabilities()
        }
        fn write(&self, source: &Source, plan: &WritePlan, body: &mut WriteBody<'_>) -> Result<()> {
            self.0.write(source, plan, &mut |transaction| body(&mut SlowTransaction(transaction, self.1)))
        }
        fn open(&self, source: &Source) -> Result<Arc<dyn Db>> {
            self.0.open(source)
        }
        fn exists(&self, source: &Source) -> Result<bool> {
            self.0.exists(source)
        }
        fn list(&self, prefix: &str) -> Result<Vec<String>> {
            self.0.list(prefix)
        }
        fn destroy(&self, source: &Source) -> Result<()> {
            self.0.destroy(source)
        }
        fn records(&self, prefix: &str) -> Result<Arc<dyn Records>> {
            self.0.records(prefix)
        }
    }

    /// Tensors of so many numbers with noise below their two highest bytes, NaNs among them.
    fn weights(count: usize, len: usize) -> Workspace {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits(if state & 0xff00 == 0 { 0x7f80_0000 } else { 0x3c80_0000 } | state >> 16)
        };
        let mut tensor = || Tensor::from_vec([len as u64], (0..len).map(|_| next()).collect()).unwrap();
        (0..count).map(|index| (format!("w{index:02}"), tensor().into())).collect()
    }

    /// The codecs of the tensors' first chunks, after a save that was loaded and verified.
    fn codecs(
        driver: impl Driver + 'static,
        workspace: &Workspace,
        compression: Compression,
        memory: usize,
    ) -> Vec<Codec> {
        let limits = Limits { threads: 2, memory };
        let options = Options { compression, limits, ..Options::default() };
        let place = Checkpoints::new(Arc::new(driver), "run").with_options(options);
        place.save(workspace, "n", 1).unwrap();
        assert!(place.load("n", 1).unwrap() == *workspace);
        assert!(place.verify("n", 1).unwrap().is_ok());
        let rows = place.load_rows("n", 1, "w00", 3..5).unwrap();
        let crate::blob::Blob::Tensor(whole) = workspace.get("w00").unwrap() else { panic!("not a tensor") };
        assert_eq!(rows, whole.rows(3..5).unwrap());
        place.open("n", 1).unwrap().blobs().unwrap().iter().map(|blob| blob.codec).collect()
    }

    const SHUFFLED: Codec = Codec::ShuffleZstd(Width::Four);

    #[test]
    fn tensors_are_compressed_by_their_width() {
        for len in [1000, 300_001] {
            let codecs = codecs(MemoryDriver::new(), &weights(2, len), Compression::Zstd(1), 64 << 20);
            assert_eq!(codecs, [SHUFFLED; 2], "{len}");
        }
    }

    #[test]
    fn auto_compresses_for_a_slow_store_only() {
        let slow = Slow(MemoryDriver::new(), Duration::from_millis(10));
        let found = codecs(slow, &weights(30, 64 << 10), Compression::Auto, 2 << 20);
        assert_eq!(found[0], Codec::Raw, "nothing waits yet");
        assert!(found.iter().filter(|codec| **codec == SHUFFLED).count() >= 5, "{found:?}");
        // Two records at a time: one that waits would have to take 40 ms.
        let memory = CHUNK_BYTES * 4;
        let found = codecs(MemoryDriver::new(), &weights(6, CHUNK_BYTES / 4), Compression::Auto, memory);
        assert_eq!(found, [Codec::Raw; 6]);
    }

    #[test]
    fn time_is_what_the_backlog_lasts() {
        let lasts = |millis| Backlog { waiting: 1, lasts: Duration::from_millis(millis) };
        assert!(!has_time(CHUNK_BYTES, Backlog::default()));
        assert!(!has_time(CHUNK_BYTES, lasts(39)));
        assert!(has_time(CHUNK_BYTES, lasts(40)));
        assert!(has_time(CHUNK_BYTES / 16, lasts(3)));
    }

    #[test]
    fn a_chunk_is_long_where_that_lets_it_be_mapped_and_fits_the_budget() {
        let largest = |memory, compression, values| {
            let limits = Limits { threads: 2, memory };
            largest_whole(&Options { compression, limits, ..Options::default() }, values)
        };
        let (none, zstd) = (Compression::None, Compression::Zstd(1));
        assert_eq!(largest(256 << 20, none, Values::MappedSingly), WHOLE_BYTES);
        assert_eq!(largest(1 << 40, none, Values::MappedSingly), WHOLE_BYTES);
        assert_eq!(largest(100 << 20, none, Values::MappedSingly), 25 << 20);
        assert_eq!(largest(1, none, Values::MappedSingly), CHUNK_BYTES);
        assert_eq!(largest(256 << 20, zstd, Values::MappedSingly), CHUNK_BYTES);
        assert_eq!(largest(256 << 20, none, Values::Mapped), CHUNK_BYTES);
        assert_eq!(largest(256 << 20, none, Values::Copied), CHUNK_BYTES);
    }
}
