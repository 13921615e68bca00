//! The checkpoints of one node, as a job sees them: Caffe2's `CheckpointManager`.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{Action, EpochRecord, JobParams, MetadataHandler, NodeRecord, NodeStat, RecordsHandler, Resume};
use crate::blob::{Blob, Selection, Tensor, Workspace};
use crate::checkpoint::caffe2::BLOB_NAMES;
use crate::checkpoint::{Checkpoints, SaveReport, naming};
use crate::db::Layout;
use crate::error::{Error, Result, ResultExt};

/// Saves and loads the checkpoints of one node in one place, notes how long it took, and talks to the metadata handler.
#[derive(Debug)]
pub struct CheckpointManager {
    node: String,
    place: Checkpoints,
    resume_place: Checkpoints,
    handler: Arc<dyn MetadataHandler>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    blob_names: Option<Vec<String>>,
    stat: Option<NodeStat>,
    saved: Option<(u64, NodeRecord)>,
}

impl CheckpointManager {
    /// The manager of `node`'s checkpoints in `place`, with epoch records as metadata.
    pub fn new(place: Checkpoints, node: impl Into<String>) -> Result<Self> {
        let node = node.into();
        naming::check_node(&node)?;
        Ok(Self {
            node,
            resume_place: place.clone(),
            place,
            handler: Arc::new(RecordsHandler::new()),
            state: Mutex::default(),
        })
    }

    /// Uses another metadata handler.
    #[must_use]
    pub fn with_handler(mut self, handler: Arc<dyn MetadataHandler>) -> Self {
        self.handler = handler;
        self
    }

    /// Resumes from another place than the one saved to, of any db_type: Caffe2's `path_prefix` and `path_type`.
    #[must_use]
    pub fn with_resume_place(mut self, place: Checkpoints) -> Self {
        self.resume_place = place;
        self
    }

    /// The node.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Where it saves.
    pub fn place(&self) -> &Checkpoints {
        &self.place
    }

    /// Where it resumes from.
    pub fn resume_place(&self) -> &Checkpoints {
        &self.resume_place
    }

    /// The metadata handler.
    pub fn handler(&self) -> &Arc<dyn MetadataHandler> {
        &self.handler
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gets ready: with an epoch to resume from, reads the names of its blobs, so that a missing or damaged db is noticed before
    /// anything is loaded.
    pub fn init(&self, retrieve_from_epoch: Option<u64>) -> Result<()> {
        if let Some(epoch) = retrieve_from_epoch {
            let checkpoint = self.resume_place.open(&self.node, epoch)?;
            let names = checkpoint.names().into_iter().map(str::to_owned).collect();
            self.state().blob_names = Some(names);
        }
        Ok(())
    }

    /// The names of the blobs of the last checkpoint that was saved, loaded or given to [`init`](Self::init).
    pub fn blob_list(&self) -> Result<Vec<String>> {
        let names = self.state().blob_names.clone();
        names.ok_or_else(|| Error::invalid("no blob names are known before the first save or load"))
    }

    /// Saves all blobs of the workspace as this node's checkpoint of `epoch`. Unlike Caffe2's, which takes the names once after the
    /// init group, it also saves blobs that were made later.
    pub fn save(&self, workspace: &Workspace, epoch: u64) -> Result<()> {
        let report = match self.place.layout() {
            Layout::Native => self.place.save(workspace, &self.node, epoch)?,
            Layout::Caffe2 => self.save_with_names(workspace, epoch)?,
        };
        let names = workspace.names().map(str::to_owned).collect();
        let stat = NodeStat {
            node: self.node.clone(),
            db: report.db.clone(),
            bytes: report.bytes,
            seconds: report.seconds,
        };
        let saved = Some((epoch, NodeRecord::new(&self.node, &report)));
        *self.state() = State { blob_names: Some(names), stat: Some(stat), saved };
        Ok(())
    }

    /// Saves as Caffe2's manager does: the blob `blob_names` lists all names, its own too, and its manager reads it before anything
    /// else. A list that is there (of a job that was resumed) keeps its order, and new names follow it.
    fn save_with_names(&self, workspace: &Workspace, epoch: u64) -> Result<SaveReport> {
        let list = workspace.tensor(BLOB_NAMES).ok().and_then(|list| list.strings().ok()).unwrap_or_default();
        let listed = list.into_iter().filter_map(|name| std::str::from_utf8(name).ok());
        let listed = listed.filter(|name| *name == BLOB_NAMES || workspace.get(name).is_some());
        let mut seen = HashSet::new();
        let mut names: Vec<&str> =
            listed.chain(workspace.names()).filter(|name| seen.insert(*name)).collect();
        if seen.insert(BLOB_NAMES) {
            names.insert(0, BLOB_NAMES);
        }
        let list = Blob::from(Tensor::from_strings([names.len() as u64], &names)?);
        let blob = |name: &str| if name == BLOB_NAMES { Some(&list) } else { workspace.get(name) };
        let blobs = names.iter().filter_map(|&name| Some((name, blob(name)?)));
        self.place.save_blobs(blobs, &self.place.source(&self.node, epoch)?)
    }

    /// Loads the whole checkpoint of `epoch` from where the job resumes.
    pub fn load(&self, epoch: u64) -> Result<Workspace> {
        self.timed_load(&self.resume_place, epoch, &Selection::All)
    }

    /// Loads some blobs of the checkpoint of `epoch`. All of them, or an error.
    pub fn load_blobs_from_checkpoint(&self, blobs: &Selection, epoch: u64) -> Result<Workspace> {
        self.timed_load(&self.place, epoch, blobs)
    }

    /// Loads some blobs of the checkpoint of `epoch` into a workspace, which is unchanged if it fails.
    pub fn load_blobs_locally(&self, blobs: &Selection, epoch: u64, workspace: &mut Workspace) -> Result<()> {
        workspace.extend(self.load_blobs_from_checkpoint(blobs, epoch)?);
        Ok(())
    }

    fn timed_load(&self, place: &Checkpoints, epoch: u64, blobs: &Selection) -> Result<Workspace> {
        let started = Instant::now();
        let checkpoint = place.open(&self.node, epoch)?;
        let workspace = checkpoint.load(blobs)?;
        let bytes = workspace.iter().map(|(_, blob)| blob.data().len() as u64).sum();
        let seconds = started.elapsed().as_secs_f64();
        let mut state = self.state();
        state.stat =
            Some(NodeStat { node: self.node.clone(), db: checkpoint.label().to_owned(), bytes, seconds });
        state.blob_names = Some(checkpoint.names().into_iter().map(str::to_owned).collect());
        Ok(workspace)
    }

    /// Whether this node's db of `epoch` is there. "Cannot tell" is an error.
    pub fn check_db_exists(&self, epoch: u64) -> Result<bool> {
        self.place.exists(&self.node, epoch)
    }

    /// The name of this node's db of `epoch`: `<prefix>/<node>.<epoch>`.
    pub fn get_ckpt_db_name(&self, epoch: u64) -> Result<String> {
        Ok(self.place.source(&self.node, epoch)?.to_string())
    }

    /// Tells the handler where the job saves and resumes. `nodes` are all nodes of the job.
    pub fn set_params(&self, nodes: &[String]) -> Result<()> {
        self.handler.set_params(&JobParams {
            place: self.place.clone(),
            resume_place: self.resume_place.clone(),
            nodes: nodes.to_vec(),
        })
    }

    /// The epoch to resume from, or `None` to begin from the start.
    pub fn get_resume_from_epoch_id(&self, resume: Resume) -> Result<Option<u64>> {
        match resume {
            Resume::Latest => self.handler.last_epoch(None),
            Resume::Epoch(epoch) => self.handler.last_epoch(Some(epoch)),
            Resume::Fresh => Ok(None),
        }
    }

    /// Whether checkpoints can be saved now.
    pub fn cp_accessible(&self, epoch: Option<u64>) -> Result<bool> {
        self.handler.cp_accessible(epoch)
    }

    /// What the last save of `epoch` left, for the epoch record. Fails if `epoch` was not saved last.
    pub fn saved_record(&self, epoch: u64) -> Result<NodeRecord> {
        let saved = self.state().saved.clone();
        let record = saved.filter(|(saved, _)| *saved == epoch).map(|(_, record)| record);
        record.ok_or_else(|| {
            Error::invalid(format!("epoch was not saved last epoch=`{epoch}` node=`{}`", self.node))
        })
    }

    /// Tells the handler that `epoch` is complete.
    pub fn write_checkpoint_metadata(&self, epoch: u64) -> Result<()> {
        let record = EpochRecord::new(epoch, vec![self.saved_record(epoch)?]);
        self.handler.write(&record).context(|| format!("cannot note that epoch {epoch} is complete"))
    }

    /// How long the last save or load took, once: a second call has nothing to say, so no stale figure is ever reported.
    pub fn collect_checkpoint_stats(&self) -> Option<NodeStat> {
        self.state().stat.take()
    }

    /// Hands what was measured to the handler.
    pub fn report_checkpoint_stats(&self, action: Action) -> Result<()> {
        let stats: Vec<NodeStat> = self.collect_checkpoint_stats().into_iter().collect();
        self.handler.report(action, &stats)
    }
}
