//! Bringing a finished epoch to another place.

mod store;

use ckpt_engine::Result;

pub use store::StoreUpload;

use crate::job::TaskGroup;
use crate::multi_node::MultiNodeCheckpointManager;

/// Makes the group that uploads an epoch after a job's last one. Caffe2: `UploadTaskGroupBuilder`.
pub trait UploadTaskGroupBuilder: Send + Sync {
    /// The tasks that upload `epoch`, whose dbs `manager` names.
    fn build(&self, epoch: u64, manager: &MultiNodeCheckpointManager) -> Result<TaskGroup>;

    /// Called once after the group has ended well on all nodes, to say at the destination that the epoch is whole.
    fn publish(&self, epoch: u64, manager: &MultiNodeCheckpointManager) -> Result<()> {
        let _ = (epoch, manager);
        Ok(())
    }
}
