//! The checkpoints of all nodes of a job: Caffe2's `MultiNodeCheckpointManager`.
//!
//! It makes groups of tasks, one task a node, that a [`Session`] runs: so every node saves and loads its own workspace, wherever it
//! is. An epoch is noted as complete only after the db of every node is durable.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ckpt_engine::blob::{Blob, Selection, Tensor, Workspace};
use ckpt_engine::checkpoint::{Checkpoint, Checkpoints};
use ckpt_engine::manager::{
    Action, CheckpointManager, EpochRecord, JobParams, MetadataHandler, NodeStat, RecordsHandler, Resume,
};
use ckpt_engine::{Error, Result, ResultExt};

use crate::job::{Node, Task, TaskGroup};
use crate::session::{Session, TaskContext};

/// The managers of all nodes' checkpoints in one place.
#[derive(Debug)]
pub struct MultiNodeCheckpointManager {
    place: Checkpoints,
    resume_place: Checkpoints,
    handler: Arc<dyn MetadataHandler>,
    /// Made by the first call that names the nodes.
    managers: Mutex<Vec<Arc<CheckpointManager>>>,
}

impl MultiNodeCheckpointManager {
    /// The manager of checkpoints in `place`, with epoch records as metadata.
    pub fn new(place: Checkpoints) -> Self {
        Self {
            resume_place: place.clone(),
            place,
            handler: Arc::new(RecordsHandler::new()),
            managers: Mutex::default(),
        }
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

    /// Where it saves.
    pub fn place(&self) -> &Checkpoints {
        &self.place
    }

    /// The managers of the nodes, in the order in which the nodes were given.
    pub fn managers(&self) -> Vec<Arc<CheckpointManager>> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<CheckpointManager>>> {
        // Every change is one assignment.
        self.managers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The managers of these nodes, made if there are none yet. Other nodes than before are `InvalidInput`.
    fn managers_of(&self, nodes: &[Node]) -> Result<Vec<Arc<CheckpointManager>>> {
        let mut managers = self.lock();
        if managers.is_empty() {
            let make = |node: &Node| {
                let manager = CheckpointManager::new(self.place.clone(), node.as_str())?
                    .with_handler(Arc::clone(&self.handler))
                    .with_resume_place(self.resume_place.clone());
                Ok(Arc::new(manager))
            };
            *managers = nodes.iter().map(make).collect::<Result<_>>()?;
        }
        let same = managers.iter().map(|manager| manager.node()).eq(nodes.iter().map(Node::as_str));
        if same && !nodes.is_empty() {
            return Ok(managers.clone());
        }
        let known: Vec<_> = managers.iter().map(|manager| manager.node()).collect();
        Err(Error::invalid(format!(
            "the nodes are not those of this manager nodes=`{nodes:?}` known=`{known:?}`"
        )))
    }

    /// The managers, once the nodes are known.
    fn known_managers(&self) -> Result<Vec<Arc<CheckpointManager>>> {
        let managers = self.managers();
        if managers.is_empty() {
            return Err(Error::invalid("checkpoint manager is used before init has named the nodes"));
        }
        Ok(managers)
    }

    /// Tells the handler where the job saves and resumes.
    pub fn set_params(&self, nodes: &[Node]) -> Result<()> {
        self.handler.set_params(&JobParams {
            place: self.place.clone(),
            resume_place: self.resume_place.clone(),
            nodes: nodes.iter().map(Node::to_string).collect(),
        })
    }

    /// The epoch to resume from, or `None` to begin from the start.
    pub fn get_resume_from_epoch_id(&self, resume: Resume) -> Result<Option<u64>> {
        match resume {
            Resume::Latest => self.handler.last_epoch(None),
            Resume::Epoch(epoch) => self.handler.last_epoch(Some(epoch)),
            Resume::Fresh => {
                // A later run that looks for the newest epoch would find those of the run before this one. If the records cannot be
                // listed, the first save will say so.
                let epochs = self.place.records().and_then(|records| records.epochs());
                if let Some(newest) = epochs.unwrap_or_default().last() {
                    tracing::warn!(
                        newest,
                        prefix = self.place.prefix(),
                        "starting fresh beside the epochs of an earlier run"
                    );
                }
                Ok(None)
            }
        }
    }

    /// The group that gets every node ready. See [`CheckpointManager::init`]. It can be called again for the same nodes.
    pub fn init(&self, nodes: &[Node], retrieve_from_epoch: Option<u64>) -> Result<TaskGroup> {
        let managers = self.managers_of(nodes)?;
        Ok(per_node("checkpoint_init", managers, move |manager, _| manager.init(retrieve_from_epoch)))
    }

    /// The group that loads `epoch` from where the job resumes, in place of what is in the workspaces.
    pub fn load(&self, epoch: u64) -> Result<TaskGroup> {
        let managers = self.known_managers()?;
        Ok(per_node("checkpoint_load", managers, move |manager, task| {
            let loaded = manager.load(epoch)?;
            task.workspace().replace(loaded);
            Ok(())
        }))
    }

    /// The group that saves every node's workspace, as it is at that moment, as `epoch`. Afterwards
    /// [`write_checkpoint_metadata`](Self::write_checkpoint_metadata) makes it count.
    pub fn save(&self, epoch: u64) -> Result<TaskGroup> {
        let managers = self.known_managers()?;
        Ok(per_node("checkpoint_save", managers, move |manager, task| manager.save(&task.snapshot(), epoch)))
    }

    /// Loads blobs of an epoch for evaluation, each into the workspace of the node whose checkpoint holds it.
    ///
    /// `Ok(false)` if a node has no checkpoint of that epoch. A name (or glob) that no node holds is `NotFound`. Unless it is
    /// `Ok(true)`, nothing in any workspace has changed: every node first reads all it needs, and only when all have succeeded does
    /// any of them put it in place.
    pub fn load_blobs_locally(
        &self,
        nodes: &[Node],
        blobs: &Selection,
        epoch: u64,
        session: &mut dyn Session,
    ) -> Result<bool> {
        let managers = self.managers_of(nodes)?;
        let absent = Arc::new(AtomicBool::new(false));
        let (blobs, seen) = (blobs.clone(), Arc::clone(&absent));
        let group = per_node("checkpoint_partial_load", managers, move |manager, task| {
            recover(manager, &blobs, epoch, task, &seen)
        });
        session.run(&group, epoch)?;
        Ok(!absent.load(Ordering::SeqCst))
    }

    /// The name of a node's db of `epoch`. Fails with `NotFound` for a node that is not of this manager.
    pub fn get_ckpt_db_name(&self, node: &Node, epoch: u64) -> Result<String> {
        let managers = self.known_managers()?;
        let manager = managers.iter().find(|manager| manager.node() == node.as_str());
        manager
            .ok_or_else(|| Error::not_found(format!("no such node node=`{node}`")))?
            .get_ckpt_db_name(epoch)
    }

    /// Whether the db of every node is there. "Cannot tell" is an error.
    pub fn check_db_exists(&self, epoch: u64) -> Result<bool> {
        for manager in self.known_managers()? {
            if !manager.check_db_exists(epoch)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether checkpoints can be saved now.
    pub fn cp_accessible(&self, epoch: Option<u64>) -> Result<bool> {
        self.handler.cp_accessible(epoch)
    }

    /// Tells the handler that `epoch` is complete: every node's db is durable.
    pub fn write_checkpoint_metadata(&self, epoch: u64) -> Result<()> {
        let managers = self.known_managers()?;
        let nodes = managers.iter().map(|manager| manager.saved_record(epoch)).collect::<Result<_>>()?;
        self.handler
            .write(&EpochRecord::new(epoch, nodes))
            .context(|| format!("cannot note that epoch {epoch} is complete"))
    }

    /// Hands what all nodes measured since the last report to the handler.
    pub fn report_checkpoint_stats(&self, action: Action) -> Result<()> {
        let stats: Vec<NodeStat> =
            self.managers().iter().filter_map(|manager| manager.collect_checkpoint_stats()).collect();
        self.handler.report(action, &stats)
    }
}

impl From<CheckpointManager> for MultiNodeCheckpointManager {
    /// The manager of a job with one node.
    fn from(manager: CheckpointManager) -> Self {
        Self {
            place: manager.place().clone(),
            resume_place: manager.resume_place().clone(),
            handler: Arc::clone(manager.handler()),
            managers: Mutex::new(vec![Arc::new(manager)]),
        }
    }
}

/// A group with one task a node.
fn per_node<F>(name: &str, managers: Vec<Arc<CheckpointManager>>, body: F) -> TaskGroup
where
    F: Fn(&CheckpointManager, &TaskContext) -> Result<()> + Send + Sync + 'static,
{
    let body = Arc::new(body);
    let task = |manager: Arc<CheckpointManager>| {
        let body = Arc::clone(&body);
        let node = Node::new(manager.node());
        Task::new(name, node, move |task: &TaskContext| body(&manager, task))
    };
    managers.into_iter().map(task).collect()
}

/// One node's part of a partial load. The nodes meet twice: to see that together they hold everything, and to see that all of
/// them have read it.
fn recover(
    manager: &CheckpointManager,
    blobs: &Selection,
    epoch: u64,
    task: &TaskContext,
    absent: &AtomicBool,
) -> Result<()> {
    let checkpoint = match manager.check_db_exists(epoch)? {
        true => Some(manager.place().open(manager.node(), epoch)?),
        false => None,
    };
    let names = checkpoint.as_ref().map(Checkpoint::names).unwrap_or_default();
    let found = blobs.find(&names);
    let answers = task.gather_all("found", answer(checkpoint.is_some(), &found.missing)?)?;
    let mut missing: BTreeSet<Vec<u8>> = found.missing.iter().map(|name| name.clone().into_bytes()).collect();
    for (node, blob) in &answers {
        let (present, theirs) = parse_answer(blob)?;
        if !present {
            tracing::info!(%node, epoch, "no checkpoint to load from");
            absent.store(true, Ordering::SeqCst);
            return Ok(());
        }
        missing.retain(|name| theirs.contains(name));
    }
    if let Some(name) = missing.first() {
        return Err(Error::not_found(format!(
            "no node's checkpoint holds the blob blob=`{}` epoch=`{epoch}`",
            String::from_utf8_lossy(name)
        )));
    }
    let wanted: Vec<&str> = found.positions.iter().filter_map(|&at| names.get(at).copied()).collect();
    let loaded = match wanted.is_empty() {
        true => Workspace::new(),
        false => manager.load_blobs_from_checkpoint(&Selection::names(wanted), epoch)?,
    };
    task.gather_all("loaded", Tensor::scalar(true))?;
    task.workspace().extend(loaded);
    Ok(())
}

/// What a node tells the others: whether it has a checkpoint, and what it lacks.
fn answer(present: bool, missing: &[String]) -> Result<Blob> {
    let mut strings = vec![if present { "present" } else { "absent" }];
    strings.extend(missing.iter().map(String::as_str));
    Ok(Tensor::from_strings([strings.len() as u64], &strings)?.into())
}

fn parse_answer(blob: &Blob) -> Result<(bool, BTreeSet<Vec<u8>>)> {
    let strings = blob.as_tensor()?.strings()?;
    let (first, missing) = strings.split_first().ok_or_else(|| Error::internal("a node gave no answer"))?;
    Ok((*first == b"present", missing.iter().map(|name| name.to_vec()).collect()))
}
