//! Epoch records: the small objects that say that an epoch is complete on all nodes.
//!
//! A record is one line of JSON and one line with its checksum, so that it can be read by eye and still be trusted. It names the
//! id of every node's save: dbs of two attempts at one epoch cannot mix.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::checkpoint::{Checkpoint, Checkpoints, SaveReport, naming};
use crate::db::{PutMode, Records};
use crate::error::{Error, Result, ResultExt};
use crate::format::manifest::id_text;

/// The version that this build writes and reads.
const FORMAT: u32 = 1;

/// The largest record that is looked at.
const MAX_BYTES: usize = 64 << 20;

/// That an epoch is complete, and of which dbs it consists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochRecord {
    format: u32,
    /// The epoch.
    pub epoch: u64,
    /// When the record was written, in milliseconds since 1970.
    pub completed_unix_ms: u64,
    /// Every node of the epoch.
    pub nodes: Vec<NodeRecord>,
}

/// One node's db in an [`EpochRecord`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The node.
    pub node: String,
    /// The id of its save, in hexadecimal.
    pub id: String,
    /// How many blobs.
    pub blobs: u64,
    /// Their raw bytes.
    pub bytes: u64,
    /// What their chunks take in the store.
    pub stored_bytes: u64,
    /// How long the save took.
    pub seconds: f64,
    /// CRC-32 of all records of a db in the caffe2 layout, which has no checksums of its own; see
    /// [`Checkpoint::records_crc32`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crc32: Option<u32>,
}

impl NodeRecord {
    /// What a save of `node` did.
    pub fn new(node: impl Into<String>, report: &SaveReport) -> Self {
        Self {
            node: node.into(),
            id: id_text(&report.id),
            blobs: report.blobs,
            bytes: report.bytes,
            stored_bytes: report.stored_bytes,
            seconds: report.seconds,
            crc32: report.records_crc32,
        }
    }

    /// What a db says of itself; how long its save took is not known from it, and 0. Reads all of a db in the caffe2 layout, for its
    /// checksum.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self> {
        Ok(Self {
            node: checkpoint.about().node.clone(),
            id: id_text(checkpoint.id()),
            blobs: checkpoint.blob_count() as u64,
            bytes: checkpoint.bytes(),
            stored_bytes: checkpoint.stored_bytes(),
            seconds: 0.0,
            crc32: checkpoint.records_crc32()?,
        })
    }
}

impl EpochRecord {
    /// The record for the copies of its dbs in another place: the same, with the ids and lengths that they have there, which a change
    /// of layout changes.
    pub fn of_copies(&self, to: &Checkpoints) -> Result<Self> {
        let mut copied = self.clone();
        for node in &mut copied.nodes {
            let copy = to.open(&node.node, self.epoch)?;
            node.id = id_text(copy.id());
            node.stored_bytes = copy.stored_bytes();
            node.crc32 = copy.records_crc32()?;
        }
        Ok(copied)
    }

    /// A record of `epoch` with these nodes, as of now.
    pub fn new(epoch: u64, nodes: Vec<NodeRecord>) -> Self {
        Self { format: FORMAT, epoch, completed_unix_ms: crate::checkpoint::unix_ms(), nodes }
    }

    /// The stored form.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut text = serde_json::to_vec(self)
            .map_err(|error| Error::internal("cannot write an epoch record").with_source(error))?;
        let crc32 = crc32fast::hash(&text);
        text.extend_from_slice(format!("\ncrc32={crc32:08x}\n").as_bytes());
        Ok(text)
    }

    /// Reads the stored form of the record of `epoch`. Fails with `Corrupt`, or `Unsupported` for a form from the future.
    pub fn decode(epoch: u64, stored: &[u8]) -> Result<Self> {
        let corrupt = |why: &str| Error::corrupt(format!("epoch record {why} epoch=`{epoch}`"));
        if stored.len() > MAX_BYTES {
            return Err(corrupt("is too large"));
        }
        let text = stored.strip_suffix(b"\n").ok_or_else(|| corrupt("is cut short"))?;
        let cut = text.iter().rposition(|&byte| byte == b'\n').ok_or_else(|| corrupt("is cut short"))?;
        let (json, line) = text.split_at_checked(cut).ok_or_else(|| corrupt("is cut short"))?;
        let crc32 = format!("\ncrc32={:08x}", crc32fast::hash(json));
        if line != crc32.as_bytes() {
            return Err(corrupt("has a checksum that differs"));
        }
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let parse = |error| corrupt("does not parse").with_source(error);
        let version: Version = serde_json::from_slice(json).map_err(parse)?;
        if version.format != FORMAT {
            return Err(Error::unsupported(format!(
                "epoch record was written by another version of ckpt epoch=`{epoch}` format=`{}`",
                version.format
            )));
        }
        let record: Self = serde_json::from_slice(json).map_err(parse)?;
        if record.epoch != epoch {
            return Err(corrupt("is of another epoch"));
        }
        Ok(record)
    }
}

/// The epoch records of a place.
#[derive(Clone, Debug)]
pub struct EpochRecords {
    records: Arc<dyn Records>,
}

impl EpochRecords {
    /// Over the small objects of a place.
    pub fn new(records: Arc<dyn Records>) -> Self {
        Self { records }
    }

    /// The epochs that have a record, ascending.
    pub fn epochs(&self) -> Result<Vec<u64>> {
        let names = self.records.list().context(|| "cannot list epoch records")?;
        let mut epochs: Vec<u64> =
            names.iter().filter_map(|name| naming::parse_epoch_record_name(name)).collect();
        epochs.sort_unstable();
        Ok(epochs)
    }

    /// The record of an epoch, or `None` if it has none. `Corrupt` if it is damaged.
    pub fn get(&self, epoch: u64) -> Result<Option<EpochRecord>> {
        let stored = self
            .records
            .get(&naming::epoch_record_name(epoch))
            .context(|| format!("cannot read the record of epoch {epoch}"))?;
        stored.map(|stored| EpochRecord::decode(epoch, &stored)).transpose()
    }

    /// Says that an epoch is complete. Only after all its dbs are durable.
    pub fn put(&self, record: &EpochRecord) -> Result<()> {
        let stored = Bytes::from(record.encode()?);
        self.records
            .put(&naming::epoch_record_name(record.epoch), stored, PutMode::Replace)
            .context(|| format!("cannot write the record of epoch {}", record.epoch))?;
        // From here on the record counts, whether this succeeds or not.
        self.records.delete(&naming::begun_record_name(record.epoch))
    }

    /// Adds a node to an epoch's record, or replaces it there, and makes the record if there is none. For epochs that are put
    /// together node by node; one caller at a time. A damaged record is an error: what it said must not be lost unseen.
    pub fn add_node(&self, epoch: u64, node: NodeRecord) -> Result<()> {
        let mut nodes = self.get(epoch)?.map(|record| record.nodes).unwrap_or_default();
        nodes.retain(|known| known.node != node.node);
        nodes.push(node);
        nodes.sort_by(|a, b| a.node.cmp(&b.node));
        self.put(&EpochRecord::new(epoch, nodes))
    }

    /// Notes that dbs of `epoch` in the caffe2 layout are being saved, before any of them is visible. Until its record is put, the epoch
    /// does not count; without this it would pass for one of Caffe2, which knows no epoch records, before all its nodes are there.
    pub fn begin(&self, epoch: u64) -> Result<()> {
        let name = naming::begun_record_name(epoch);
        if self.records.get(&name)?.is_some()
            || self.records.get(&naming::epoch_record_name(epoch))?.is_some()
        {
            return Ok(());
        }
        self.records.put(&name, Bytes::from_static(b"begun\n"), PutMode::Replace)
    }

    /// The epochs that were begun and have no record yet.
    pub fn begun(&self) -> Result<Vec<u64>> {
        let names = self.records.list().context(|| "cannot list epoch records")?;
        Ok(names.iter().filter_map(|name| naming::parse_begun_record_name(name)).collect())
    }

    /// Takes an epoch's record away: it is not complete any more. `Ok` if there is none.
    pub fn delete(&self, epoch: u64) -> Result<()> {
        self.records
            .delete(&naming::epoch_record_name(epoch))
            .context(|| format!("cannot delete the record of epoch {epoch}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn record() -> EpochRecord {
        let node = |name: &str| NodeRecord {
            crc32: None,
            node: name.to_owned(),
            id: "00ff".repeat(8),
            blobs: 3,
            bytes: 100,
            stored_bytes: 90,
            seconds: 0.25,
        };
        EpochRecord { format: 1, epoch: 7, completed_unix_ms: 1, nodes: vec![node("a"), node("b\n\"")] }
    }

    #[test]
    fn the_stored_form_is_fixed() {
        let stored = String::from_utf8(record().encode().unwrap()).unwrap();
        let node = |name| {
            format!(
                r#"{{"node":"{name}","id":"{}","blobs":3,"bytes":100,"stored_bytes":90,"seconds":0.25}}"#,
                "00ff".repeat(8)
            )
        };
        let json = format!(
            r#"{{"format":1,"epoch":7,"completed_unix_ms":1,"nodes":[{},{}]}}"#,
            node("a"),
            node(r#"b\n\""#)
        );
        assert_eq!(stored, format!("{json}\ncrc32={:08x}\n", crc32fast::hash(json.as_bytes())));
        assert_eq!(EpochRecord::decode(7, stored.as_bytes()).unwrap(), record());
    }

    #[test]
    fn every_flip_and_every_cut_is_noticed() {
        let stored = record().encode().unwrap();
        for at in 0..stored.len() {
            for bit in 0..8 {
                let mut damaged = stored.clone();
                damaged[at] ^= 1 << bit;
                let error = EpochRecord::decode(7, &damaged).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at} bit {bit}");
            }
            assert!(EpochRecord::decode(7, &stored[..at]).is_err(), "cut at {at}");
        }
        assert!(EpochRecord::decode(8, &stored).is_err(), "under another name");
    }
}
