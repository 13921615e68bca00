//! List: which epochs a place holds, and which of them are complete.
//!
//! An epoch is complete when its record says so and every db that the record names is there, opens, and is of the save that the
//! record names: dbs of different attempts at one epoch never count as one.
//!
//! Caffe2 wrote no records. An epoch that has none, and that we did not begin, is complete when every node that has dbs of such epochs
//! has one of it that opens and is in the caffe2 layout.

use std::collections::{BTreeMap, BTreeSet};

use super::naming::DbName;
use super::{Checkpoints, naming};
use crate::db::{Layout, Source};
use crate::error::{ErrorKind, Result};
use crate::format::manifest::id_text;
use crate::manager::EpochRecord;
use crate::pipeline;

/// Why an epoch is not complete that never was.
const NO_RECORD: &str = "it has no epoch record";

/// One epoch of a place.
#[derive(Clone, Debug)]
pub struct EpochState {
    /// The epoch.
    pub epoch: u64,
    /// Whether it can be trusted to be whole.
    pub completeness: Completeness,
    /// What its record says, if it has a readable one.
    pub record: Option<EpochRecord>,
    /// The dbs that are there, by node.
    pub nodes: Vec<NodeState>,
}

impl EpochState {
    /// Whether it was complete once, by its record or by what Caffe2 left, and is not any more: it has lost something.
    pub fn has_lost(&self) -> bool {
        match &self.completeness {
            Completeness::Complete => false,
            Completeness::Incomplete(reason) => self.record.is_some() || reason != NO_RECORD,
        }
    }

    /// Whether the epoch is complete.
    pub fn is_complete(&self) -> bool {
        self.completeness == Completeness::Complete
    }
}

/// Whether an epoch is complete, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completeness {
    /// All dbs of its record are there and of the recorded saves.
    Complete,
    /// It is not.
    Incomplete(String),
}

/// One db of an epoch.
#[derive(Clone, Debug)]
pub struct NodeState {
    /// The node.
    pub node: String,
    /// The db's name for people.
    pub db: String,
    /// What its manifest says, or why it does not open.
    pub contents: Result<NodeContents, String>,
}

/// The sums of a manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeContents {
    /// How its records are laid out.
    pub layout: Layout,
    /// The id of the save, in hexadecimal.
    pub id: String,
    /// How many blobs.
    pub blobs: u64,
    /// Their raw bytes.
    pub bytes: u64,
    /// What their chunks take in the store.
    pub stored_bytes: u64,
    /// When the save began, in milliseconds since 1970, if it is known.
    pub created_unix_ms: Option<u64>,
}

pub(super) fn epochs(place: &Checkpoints) -> Result<Vec<EpochState>> {
    let dbs = place.list()?;
    let recorded = place.records()?.epochs()?;
    let mut nodes: BTreeMap<u64, Vec<NodeState>> =
        recorded.into_iter().map(|epoch| (epoch, Vec::new())).collect();
    let unrecorded = Unrecorded::of(place, &dbs)?;
    let open = |db: &DbName| node_state(place, db);
    pipeline::ordered(
        &dbs,
        place.request_limits(),
        |_| 0,
        open,
        |index, state| {
            let epoch = dbs.get(index).map(|db| db.epoch).unwrap_or_default();
            nodes.entry(epoch).or_default().push(state);
            Ok(())
        },
    )?;
    nodes.into_iter().map(|(epoch, nodes)| epoch_state(place, epoch, nodes, &unrecorded)).collect()
}

/// The epochs of a place that may be Caffe2's own.
#[derive(Default)]
struct Unrecorded {
    epochs: BTreeSet<u64>,
    /// The nodes that have dbs of them.
    nodes: BTreeSet<String>,
}

impl Unrecorded {
    fn of(place: &Checkpoints, dbs: &[DbName]) -> Result<Self> {
        let records = place.records()?;
        let known: BTreeSet<u64> = records.epochs()?.into_iter().chain(records.begun()?).collect();
        let unknown = || dbs.iter().filter(|db| !known.contains(&db.epoch));
        Ok(Self {
            epochs: unknown().map(|db| db.epoch).collect(),
            nodes: unknown().map(|db| db.node.clone()).collect(),
        })
    }

    /// Whether the dbs of an epoch without a record are complete.
    fn completeness(&self, epoch: u64, nodes: &[NodeState]) -> Completeness {
        let without = || Completeness::Incomplete(NO_RECORD.to_owned());
        if !self.epochs.contains(&epoch) || nodes.is_empty() {
            return without();
        }
        for state in nodes {
            match &state.contents {
                Ok(contents) if contents.layout == Layout::Caffe2 => {}
                Ok(_) => return without(),
                Err(reason) => return Completeness::Incomplete(reason.clone()),
            }
        }
        match self.nodes.iter().find(|node| !nodes.iter().any(|state| state.node == **node)) {
            Some(node) => Completeness::Incomplete(format!("the db of a node is missing node=`{node}`")),
            None => Completeness::Complete,
        }
    }
}

pub(super) fn latest_complete(place: &Checkpoints) -> Result<Option<u64>> {
    for epoch in place.candidates()?.into_iter().rev() {
        match place.epoch(epoch)?.completeness {
            Completeness::Complete => return Ok(Some(epoch)),
            Completeness::Incomplete(reason) => {
                tracing::warn!(epoch, reason, "passed over an epoch that is not complete");
            }
        }
    }
    Ok(None)
}

impl Checkpoints {
    /// One epoch: the dbs that its record names, and whether it is complete.
    pub fn epoch(&self, epoch: u64) -> Result<EpochState> {
        let mut unrecorded = Unrecorded::default();
        let nodes: Vec<DbName> = match self.records()?.get(epoch) {
            Ok(Some(record)) => {
                record.nodes.iter().map(|node| DbName { epoch, node: node.node.clone() }).collect()
            }
            Ok(None) => {
                let dbs = match self.list() {
                    Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
                    dbs => dbs?,
                };
                unrecorded = Unrecorded::of(self, &dbs)?;
                dbs.into_iter().filter(|db| unrecorded.epochs.contains(&epoch) && db.epoch == epoch).collect()
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => Vec::new(),
            Err(error) => return Err(error),
        };
        let nodes = nodes.iter().map(|db| node_state(self, db)).collect::<Result<Vec<_>>>()?;
        epoch_state(self, epoch, nodes, &unrecorded)
    }

    /// A db that belongs to no epoch, such as a model in a file, as an epoch of one node: complete if it opens.
    pub fn state_of(&self, source: &Source) -> Result<EpochState> {
        let name = naming::guess_db_name(source.name());
        let state = source_state(self, source, &name)?;
        let completeness = match &state.contents {
            Ok(_) => Completeness::Complete,
            Err(reason) => Completeness::Incomplete(reason.clone()),
        };
        Ok(EpochState { epoch: name.epoch, completeness, record: None, nodes: vec![state] })
    }

    /// The epochs that may be complete, ascending: those that have a record, and those of which Caffe2 wrote a db.
    pub(crate) fn candidates(&self) -> Result<Vec<u64>> {
        let mut candidates: BTreeSet<u64> = self.records()?.epochs()?.into_iter().collect();
        let dbs = match self.list() {
            // A place that does not exist yet has no epochs.
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            dbs => dbs?,
        };
        let unrecorded = Unrecorded::of(self, &dbs)?;
        for db in dbs.iter().filter(|db| unrecorded.epochs.contains(&db.epoch)) {
            let contents = node_state(self, db)?.contents;
            if contents.is_ok_and(|contents| contents.layout == Layout::Caffe2) {
                candidates.insert(db.epoch);
            }
        }
        Ok(candidates.into_iter().collect())
    }
}

/// A db that does not open is part of the state; one that cannot be reached is an error.
fn node_state(place: &Checkpoints, db: &DbName) -> Result<NodeState> {
    source_state(place, &Source::new(place.prefix(), naming::db_name(&db.node, db.epoch)?), db)
}

fn source_state(place: &Checkpoints, source: &Source, db: &DbName) -> Result<NodeState> {
    let contents = match place.open_source(source.clone()) {
        Ok(checkpoint) => {
            let about = checkpoint.about();
            Ok(NodeContents {
                layout: about.layout,
                id: id_text(&about.id),
                blobs: checkpoint.blob_count() as u64,
                bytes: checkpoint.bytes(),
                stored_bytes: checkpoint.stored_bytes(),
                created_unix_ms: about.created_unix_ms,
            })
        }
        Err(error) => match error.kind() {
            ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::InvalidInput | ErrorKind::Unsupported => {
                Err(error.to_string())
            }
            _ => return Err(error),
        },
    };
    Ok(NodeState { node: db.node.clone(), db: place.label(source), contents })
}

fn epoch_state(
    place: &Checkpoints,
    epoch: u64,
    nodes: Vec<NodeState>,
    unrecorded: &Unrecorded,
) -> Result<EpochState> {
    let (record, completeness) = match place.records()?.get(epoch) {
        Ok(Some(record)) => {
            let completeness = completeness(&record, &nodes);
            (Some(record), completeness)
        }
        Ok(None) => (None, unrecorded.completeness(epoch, &nodes)),
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            (None, Completeness::Incomplete(error.to_string()))
        }
        Err(error) => return Err(error),
    };
    Ok(EpochState { epoch, completeness, record, nodes })
}

fn completeness(record: &EpochRecord, nodes: &[NodeState]) -> Completeness {
    let mut seen = BTreeSet::new();
    for wanted in &record.nodes {
        if !seen.insert(&wanted.node) {
            return Completeness::Incomplete(format!("its record names a node twice node=`{}`", wanted.node));
        }
        let found = nodes.iter().find(|state| state.node == wanted.node);
        match found.map(|state| &state.contents) {
            None => {
                return Completeness::Incomplete(format!(
                    "the db of a node is missing node=`{}`",
                    wanted.node
                ));
            }
            Some(Err(reason)) => return Completeness::Incomplete(reason.clone()),
            Some(Ok(contents)) if contents.id != wanted.id => {
                return Completeness::Incomplete(format!(
                    "the db of a node is of another save than the epoch record node=`{}`",
                    wanted.node
                ));
            }
            Some(Ok(_)) => {}
        }
    }
    if record.nodes.is_empty() {
        return Completeness::Incomplete("its record names no node".to_owned());
    }
    Completeness::Complete
}
