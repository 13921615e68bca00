//! Who keeps track of finished epochs: the metadata handler of Caffe2's `checkpoint.py`, and the one that every job has.

use std::fmt::{self, Debug};

use super::EpochRecord;
use crate::checkpoint::{Checkpoints, Completeness, EpochState};
use crate::error::{Error, ErrorKind, Result};

/// Where a job goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// At the newest epoch that is complete and intact on every node; from the start if no epoch was ever completed.
    #[default]
    Latest,
    /// At exactly this epoch; an error if it is not complete and intact.
    Epoch(u64),
    /// From the start, whatever is there.
    Fresh,
}

/// What a handler is told before anything else.
#[derive(Clone, Debug)]
pub struct JobParams {
    /// Where the job saves.
    pub place: Checkpoints,
    /// Where it resumes from: the same place unless the manager was told otherwise.
    pub resume_place: Checkpoints,
    /// The nodes that are checkpointed.
    pub nodes: Vec<String>,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// `checkpoint_save`
    Save,
    /// `checkpoint_load`
    Load,
    /// `checkpoint_partial_load`
    PartialLoad,
}

impl Action {
    /// The name in Caffe2.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Save => "checkpoint_save",
            Self::Load => "checkpoint_load",
            Self::PartialLoad => "checkpoint_partial_load",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How long one node took.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeStat {
    /// The node.
    pub node: String,
    /// Its db's name for people.
    pub db: String,
    /// The raw bytes that were saved or loaded.
    pub bytes: u64,
    /// The duration.
    pub seconds: f64,
}

/// Keeps track of a job's epochs outside the dbs: the five calls of Caffe2's metadata handler.
///
/// A job calls them in this order: `set_params`, `last_epoch`, then per save `cp_accessible`, `write` and `report`.
pub trait MetadataHandler: Debug + Send + Sync {
    /// Says where the job saves and resumes, and of which nodes it consists.
    fn set_params(&self, params: &JobParams) -> Result<()>;

    /// The epoch to resume from: exactly `user_epoch` if one is given (or an error), else the newest that can be trusted, or
    /// `None` to begin from the start.
    fn last_epoch(&self, user_epoch: Option<u64>) -> Result<Option<u64>>;

    /// Notes that an epoch is complete: every db in the record is durable.
    fn write(&self, record: &EpochRecord) -> Result<()>;

    /// Whether checkpoints can be saved now. `epoch` is the one that would be saved, if known.
    fn cp_accessible(&self, epoch: Option<u64>) -> Result<bool>;

    /// Takes what was measured.
    fn report(&self, action: Action, stats: &[NodeStat]) -> Result<()>;
}

/// The handler that a job has unless it is given another: epoch records beside the dbs.
#[derive(Debug, Default)]
pub struct RecordsHandler {
    params: std::sync::Mutex<Option<JobParams>>,
}

impl RecordsHandler {
    /// A handler that waits for [`set_params`](MetadataHandler::set_params).
    pub fn new() -> Self {
        Self::default()
    }

    fn params(&self) -> Result<JobParams> {
        let params = self.params.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        params.clone().ok_or_else(|| Error::invalid("metadata handler is used before its parameters are set"))
    }
}

impl MetadataHandler for RecordsHandler {
    fn set_params(&self, params: &JobParams) -> Result<()> {
        *self.params.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(params.clone());
        Ok(())
    }

    fn last_epoch(&self, user_epoch: Option<u64>) -> Result<Option<u64>> {
        let JobParams { resume_place, nodes, .. } = self.params()?;
        match user_epoch {
            Some(epoch) => {
                let state = resume_place.epoch(epoch)?;
                let Some(why) = flaw(&resume_place, &state, &nodes)? else {
                    return Ok(Some(epoch));
                };
                // With a record the epoch was complete once.
                let kind = if state.record.is_some() { ErrorKind::Corrupt } else { ErrorKind::NotFound };
                let store = describe(&resume_place);
                Err(Error::new(
                    kind,
                    format!("cannot resume from this epoch: {why} epoch=`{epoch}` store=`{store}`"),
                ))
            }
            None => newest_intact(&resume_place, &nodes),
        }
    }

    fn write(&self, record: &EpochRecord) -> Result<()> {
        self.params()?.place.records()?.put(record)
    }

    fn cp_accessible(&self, _epoch: Option<u64>) -> Result<bool> {
        Ok(true)
    }

    fn report(&self, action: Action, stats: &[NodeStat]) -> Result<()> {
        for stat in stats {
            tracing::info!(%action, node = stat.node, db = stat.db, bytes = stat.bytes, seconds = stat.seconds);
        }
        Ok(())
    }
}

/// The newest epoch that is complete and intact on every node. `None` if no epoch was ever completed. If there are complete
/// ones and none can be used, that is an error: training from the start would bury them.
fn newest_intact(place: &Checkpoints, nodes: &[String]) -> Result<Option<u64>> {
    let epochs = place.candidates()?;
    let mut passed_over = Vec::new();
    for &epoch in epochs.iter().rev() {
        match flaw(place, &place.epoch(epoch)?, nodes)? {
            None => return Ok(Some(epoch)),
            Some(why) => {
                tracing::warn!(
                    epoch,
                    why,
                    store = describe(place),
                    "cannot resume from an epoch; trying an older one"
                );
                passed_over.push(format!("{epoch}: {why}"));
            }
        }
    }
    if passed_over.is_empty() {
        return Ok(None);
    }
    Err(Error::corrupt(format!(
        "no epoch can be resumed from ({}); mend or move them, or start fresh in another place store=`{}`",
        passed_over.join("; "),
        describe(place)
    )))
}

/// Why an epoch cannot be resumed from, or `None` if it can: all of it was read and checked.
fn flaw(place: &Checkpoints, state: &EpochState, nodes: &[String]) -> Result<Option<String>> {
    if let Completeness::Incomplete(why) = &state.completeness {
        return Ok(Some(why.clone()));
    }
    for node in nodes {
        if !state.nodes.iter().any(|state| state.node == *node) {
            return Ok(Some(format!("it has no db of a node of the job node=`{node}`")));
        }
        let report = place.verify(node, state.epoch)?;
        if let Some(damage) = report.damage.first() {
            let blob = damage.blob.as_deref().map(|blob| format!(" blob=`{blob}`")).unwrap_or_default();
            return Ok(Some(format!("it is damaged: {} db=`{}`{blob}", damage.reason, damage.db)));
        }
    }
    Ok(None)
}

fn describe(place: &Checkpoints) -> String {
    format!("{}:{}", place.driver().db_type(), place.prefix())
}
