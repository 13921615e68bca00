//! Tasks, the groups they run in, and the outputs they leave.

use std::fmt;
use std::sync::Arc;

use ckpt_engine::Result;

use super::Node;
use crate::session::TaskContext;

type Body = dyn Fn(&TaskContext) -> Result<()> + Send + Sync;

/// Work for one node. Caffe2: `Task`.
///
/// The body may run many times, once per run of its group. It keeps what must outlive a run in the node's workspace, because only
/// that is saved.
#[derive(Clone)]
pub struct Task {
    name: String,
    node: Node,
    body: Arc<Body>,
}

impl Task {
    /// A task of this name on `node`.
    pub fn new<F>(name: impl Into<String>, node: impl Into<Node>, body: F) -> Self
    where
        F: Fn(&TaskContext) -> Result<()> + Send + Sync + 'static,
    {
        Self { name: name.into(), node: node.into(), body: Arc::new(body) }
    }

    /// The name: as given, and within a group `<node>/<name>`, made unique.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the task runs.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Runs the body. For sessions, which make the context.
    pub fn run(&self, context: &TaskContext) -> Result<()> {
        (self.body)(context)
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("name", &self.name).field("node", &self.node).finish_non_exhaustive()
    }
}

/// Tasks that start together; the group ends when the last of them ends. Caffe2: `TaskGroup`.
///
/// Running a group changes nothing in it, so it can be run again.
#[derive(Clone, Debug, Default)]
pub struct TaskGroup {
    tasks: Vec<Task>,
}

impl TaskGroup {
    /// An empty group.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a task. Its name becomes `<node>/<name>`, and `<node>/<name>:1`, `:2`, … where that is taken.
    pub fn add(&mut self, mut task: Task) {
        let base = format!("{}/{}", task.node, task.name);
        let numbered = (1u64..).map(|number| format!("{base}:{number}"));
        let mut names = std::iter::once(base.clone()).chain(numbered);
        if let Some(free) = names.find(|name| self.tasks.iter().all(|other| other.name != *name)) {
            task.name = free;
        }
        self.tasks.push(task);
    }

    /// The tasks in the order they were added.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// The nodes of the tasks, in the order of their first use.
    pub fn used_nodes(&self) -> Vec<Node> {
        let mut nodes: Vec<Node> = Vec::new();
        for task in &self.tasks {
            if !nodes.contains(&task.node) {
                nodes.push(task.node.clone());
            }
        }
        nodes
    }

    /// Whether there is nothing to run.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}

impl FromIterator<Task> for TaskGroup {
    fn from_iter<I: IntoIterator<Item = Task>>(tasks: I) -> Self {
        let mut group = Self::new();
        tasks.into_iter().for_each(|task| group.add(task));
        group
    }
}

/// A blob that a task leaves in its node's workspace, to be fetched after the run. Caffe2: `TaskOutput`.
///
/// It is a name, not a value, so every process of a distributed session can hold the same one and fetch the same result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskOutput {
    node: Node,
    blob: String,
}

impl TaskOutput {
    /// The blob called `blob` in the workspace of `node`.
    pub fn new(node: impl Into<Node>, blob: impl Into<String>) -> Self {
        Self { node: node.into(), blob: blob.into() }
    }

    /// The node whose workspace holds the blob.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The blob's name.
    pub fn blob(&self) -> &str {
        &self.blob
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(tasks: &[(&str, &str)]) -> TaskGroup {
        tasks.iter().map(|&(name, node)| Task::new(name, node, |_| Ok(()))).collect()
    }

    #[test]
    fn names_are_unique_within_a_group() {
        let group = group(&[("t", "a"), ("t", "b"), ("t", "a"), ("t:1", "a"), ("t", "a")]);
        let names: Vec<_> = group.tasks().iter().map(Task::name).collect();
        assert_eq!(names, ["a/t", "b/t", "a/t:1", "a/t:1:1", "a/t:2"]);
    }

    #[test]
    fn used_nodes_come_in_the_order_of_first_use() {
        let group = group(&[("1", "b"), ("2", "a"), ("3", "b"), ("4", "c")]);
        assert_eq!(group.used_nodes(), ["b", "a", "c"].map(Node::new));
        assert!(TaskGroup::new().used_nodes().is_empty());
    }
}
