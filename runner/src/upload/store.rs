//! Upload from store to store.

use std::sync::{Arc, Mutex, PoisonError};

use ckpt_engine::Result;
use ckpt_engine::checkpoint::{Checkpoints, CopyReport};
use ckpt_engine::manager::{CheckpointManager, EpochRecord, NodeRecord};

use super::UploadTaskGroupBuilder;
use crate::job::{Task, TaskGroup};
use crate::multi_node::MultiNodeCheckpointManager;

/// Copies every node's db of an epoch to another place, of any db_type, checking every chunk on the way. The epoch record appears
/// there last, so an epoch that was uploaded in part never counts as complete; a second upload goes on where the first stopped.
#[derive(Clone, Debug)]
pub struct StoreUpload {
    to: Checkpoints,
    reports: Arc<Mutex<Vec<CopyReport>>>,
}

impl StoreUpload {
    /// Uploads to `to`.
    pub fn new(to: Checkpoints) -> Self {
        Self { to, reports: Arc::default() }
    }

    /// What was copied so far, a db each. Clones share it.
    pub fn reports(&self) -> Vec<CopyReport> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl UploadTaskGroupBuilder for StoreUpload {
    fn build(&self, epoch: u64, manager: &MultiNodeCheckpointManager) -> Result<TaskGroup> {
        let task = |manager: Arc<CheckpointManager>| {
            let (to, reports) = (self.to.clone(), Arc::clone(&self.reports));
            let node = manager.node().to_owned();
            Task::new("upload", node.as_str(), move |_| {
                let report = manager.place().copy_to(manager.node(), epoch, &to)?;
                tracing::info!(db = report.db, bytes = report.bytes_written, "uploaded");
                reports.lock().unwrap_or_else(PoisonError::into_inner).push(report);
                Ok(())
            })
        };
        Ok(manager.managers().into_iter().map(task).collect())
    }

    fn publish(&self, epoch: u64, manager: &MultiNodeCheckpointManager) -> Result<()> {
        // Another metadata handler may keep the records elsewhere: the dbs themselves tell all that matters.
        let record = match manager.place().records()?.get(epoch)? {
            Some(record) => record.of_copies(&self.to)?,
            None => {
                let mut nodes = Vec::new();
                for manager in manager.managers() {
                    nodes.push(NodeRecord::of(&self.to.open(manager.node(), epoch)?)?);
                }
                EpochRecord::new(epoch, nodes)
            }
        };
        self.to.records()?.put(&record)
    }
}
