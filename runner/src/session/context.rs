//! What a task's body is given.

use std::fmt;

use ckpt_engine::Result;
use ckpt_engine::blob::{Blob, Tensor, Workspace};

use super::SharedWorkspace;
use crate::job::Node;

/// How a task meets the tasks of the other nodes. Each session brings its own; a task uses [`TaskContext::gather_all`].
pub trait Exchange: Send + Sync {
    /// See [`TaskContext::gather_all`].
    fn gather_all(&self, tag: &str, mine: Blob) -> Result<Vec<(Node, Blob)>>;
}

/// A running task's view of its session: who it is, its node's workspace, and the other nodes.
pub struct TaskContext {
    node: Node,
    task: String,
    epoch: u64,
    workspace: SharedWorkspace,
    exchange: Box<dyn Exchange>,
}

impl TaskContext {
    /// The context of one task in one run of its group. For sessions.
    pub fn new(
        node: Node,
        task: impl Into<String>,
        epoch: u64,
        workspace: SharedWorkspace,
        exchange: impl Exchange + 'static,
    ) -> Self {
        Self { node, task: task.into(), epoch, workspace, exchange: Box::new(exchange) }
    }

    /// The node the task runs on.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The task's name within its group, `<node>/<name>`.
    pub fn task(&self) -> &str {
        &self.task
    }

    /// The number of the epoch being run, from 1. It is 0 in the init group.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The node's workspace, which all its tasks share.
    pub fn workspace(&self) -> &SharedWorkspace {
        &self.workspace
    }

    /// The blob of a name. Its data is shared, not copied. Fails with `NotFound`.
    pub fn get(&self, name: &str) -> Result<Blob> {
        self.workspace.get(name)
    }

    /// The tensor of a name. Fails with `NotFound` if there is no such blob and with `InvalidInput` if it is no tensor.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        self.workspace.tensor(name)
    }

    /// Whether there is a blob of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.workspace.contains(name)
    }

    /// Puts a blob under a name and returns the one it replaces.
    pub fn set(&self, name: impl Into<String>, blob: impl Into<Blob>) -> Option<Blob> {
        self.workspace.set(name, blob)
    }

    /// Takes a blob out.
    pub fn remove(&self, name: &str) -> Option<Blob> {
        self.workspace.remove(name)
    }

    /// Several changes at one moment: no other task and no save sees half of them. The lock is held while `change` runs: keep it
    /// short, and call no method of this context in it.
    pub fn with_workspace<R>(&self, change: impl FnOnce(&mut Workspace) -> R) -> R {
        self.workspace.with(change)
    }

    /// All blobs as they are at this moment. Their data is shared until one side is written to.
    pub fn snapshot(&self) -> Workspace {
        self.workspace.snapshot()
    }

    /// Gives a blob to all nodes of the group and returns what each gave, in the order of [`TaskGroup::used_nodes`].
    ///
    /// Waits until every node has taken part. A node takes part once per tag and run, by any one of its tasks; a second time is
    /// `InvalidInput`. The wait ends with an error that says why, at once when a task of the group fails or a node's last task ends
    /// without taking part, and with `Unavailable` when the session's time limit is over.
    ///
    /// [`TaskGroup::used_nodes`]: crate::job::TaskGroup::used_nodes
    pub fn gather_all(&self, tag: &str, mine: impl Into<Blob>) -> Result<Vec<(Node, Blob)>> {
        self.exchange.gather_all(tag, mine.into())
    }
}

impl fmt::Debug for TaskContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskContext")
            .field("node", &self.node)
            .field("task", &self.task)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}
