//! Where a job runs: a [`Session`] runs groups of tasks over nodes.
//!
//! Each node has a workspace. A task sees its own node's through a [`TaskContext`], and meets the tasks of other nodes only in
//! [`gather_all`](TaskContext::gather_all). So the same job runs in one process ([`LocalSession`]) or spread over many.

mod context;
mod local;
mod rendezvous;
mod workspace;

use ckpt_engine::blob::Blob;
use ckpt_engine::{Error, Result, ResultExt};

pub use self::context::{Exchange, TaskContext};
pub use self::local::LocalSession;
pub use self::workspace::SharedWorkspace;
use crate::job::{Node, TaskGroup, TaskOutput};

/// Runs task groups, one at a time, and keeps the workspaces of the nodes between them. Caffe2: `Session`.
///
/// A session that spreads over processes is driven by the same calls in the same order in each of them, and every call gives
/// the same answer in each.
pub trait Session {
    /// Runs the tasks of a group together and returns when the last has ended. An empty group is done at once.
    ///
    /// `epoch` is what [`TaskContext::epoch`] tells the tasks. If tasks fail, the error is that of the first one in the group's
    /// order that failed by itself, with node and task named; tasks that failed only because another did come after it. What the
    /// tasks had changed in the workspaces stays changed.
    fn run(&mut self, group: &TaskGroup, epoch: u64) -> Result<()>;

    /// The value of an output, as it is now. Fails with `NotFound` if there is no such blob.
    fn fetch(&self, output: &TaskOutput) -> Result<Blob>;

    /// The workspace of a node, made empty on first use.
    ///
    /// Fails with `Unsupported` for a node whose workspace is not in this process.
    fn workspace(&self, node: &Node) -> Result<SharedWorkspace>;

    /// The value of an output that is a `bool` tensor of one element, as stop conditions are.
    ///
    /// Fails with `NotFound` if there is no such blob and with `InvalidInput` if it is anything else.
    fn fetch_bool(&self, output: &TaskOutput) -> Result<bool> {
        let blob = self.fetch(output)?;
        one_bool(&blob).context(|| format!("output `{}` of node `{}`", output.blob(), output.node()))
    }
}

fn one_bool(blob: &Blob) -> Result<bool> {
    let tensor = blob.as_tensor()?;
    match tensor.as_slice::<bool>()? {
        [value] => Ok(*value),
        _ => Err(Error::invalid(format!("wanted one bool shape=`{:?}`", tensor.shape()))),
    }
}

#[cfg(test)]
mod tests {
    use ckpt_engine::ErrorKind;
    use ckpt_engine::blob::Tensor;

    use super::*;

    #[test]
    fn one_bool_is_one_bool() {
        for value in [false, true] {
            assert_eq!(one_bool(&Tensor::scalar(value).into()).unwrap(), value);
            assert_eq!(one_bool(&Tensor::from_slice([1, 1], &[value]).unwrap().into()).unwrap(), value);
        }
        let wrong = [
            Tensor::scalar(1u8).into(),
            Tensor::from_slice::<bool>([0], &[]).unwrap().into(),
            Tensor::from_slice([2], &[true, true]).unwrap().into(),
            Blob::bytes("std::string", ckpt_engine::blob::Buffer::from_vec(vec![1u8])),
        ];
        for blob in wrong {
            assert_eq!(one_bool(&blob).unwrap_err().kind(), ErrorKind::InvalidInput, "{blob:?}");
        }
    }
}
