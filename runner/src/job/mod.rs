//! What is trained: a [`Job`] of tasks on nodes.
//!
//! A job has four groups of tasks. `init` makes the first state, `epoch` runs once per epoch, `download` brings results
//! home after the last one, `exit` cleans up. A [`Session`] runs the groups; the job itself holds no state and can be run again.
//!
//! The words are those of Caffe2's `checkpoint.py` and `task.py`. A task here is a closure over a [`TaskContext`], and nothing is
//! registered behind the scenes: what is in a group was added to it.
//!
//! [`TaskContext`]: crate::session::TaskContext

mod node;
mod policy;
mod runner;
mod task;

use ckpt_engine::{Error, ErrorKind, Result};

pub use self::node::Node;
pub use self::policy::{OnSaveFailure, SavePolicy};
pub use self::runner::{JobRunner, TrainReport};
pub use self::task::{Task, TaskGroup, TaskOutput};
use crate::session::Session;

/// When a job has trained enough. The job stops after an epoch if any of its conditions holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopCondition {
    /// Holds when this output, a `bool` tensor of one element, is true.
    Output(TaskOutput),
    /// Holds when this many epochs of the job are done, counting those before a restart.
    ///
    /// Caffe2 counts down in a blob instead, so resuming a finished job there runs one more epoch. Here it runs none, and
    /// resuming with a higher limit trains on.
    EpochLimit(u64),
}

impl From<TaskOutput> for StopCondition {
    fn from(output: TaskOutput) -> Self {
        Self::Output(output)
    }
}

/// The groups of a training job, when it stops and which nodes it saves. Caffe2: `Job`.
///
/// ```
/// use ckpt_runner::job::{Job, Task, epoch_limiter};
/// # use ckpt_engine::blob::Tensor;
///
/// # fn main() -> ckpt_engine::Result<()> {
/// let mut job = Job::new();
/// job.init_group.add(Task::new("init", "trainer:0", |task| {
///     task.set("total", Tensor::scalar(0u64));
///     Ok(())
/// }));
/// job.epoch_group.add(Task::new("train", "trainer:0", |task| {
///     let total = task.tensor("total")?.as_slice::<u64>()?.iter().sum::<u64>();
///     task.set("total", Tensor::scalar(total + task.epoch()));
///     Ok(())
/// }));
/// epoch_limiter(&mut job, 10)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// Makes the state of every node. Skipped when the job resumes from a checkpoint.
    pub init_group: TaskGroup,
    /// Trains one epoch.
    pub epoch_group: TaskGroup,
    /// Brings results to where they are wanted, after the last epoch.
    pub download_group: TaskGroup,
    /// Runs at the very end.
    pub exit_group: TaskGroup,
    stop_conditions: Vec<StopCondition>,
    nodes_to_checkpoint: Vec<Node>,
}

impl Job {
    /// A job that does nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names the nodes whose workspaces are saved, instead of those that the init group uses.
    #[must_use]
    pub fn with_nodes_to_checkpoint(mut self, nodes: impl IntoIterator<Item = Node>) -> Self {
        self.nodes_to_checkpoint = nodes.into_iter().collect();
        self
    }

    /// The nodes whose workspaces are saved: the given ones, else those of the init group in the order of their first use.
    pub fn nodes_to_checkpoint(&self) -> Vec<Node> {
        if self.nodes_to_checkpoint.is_empty() {
            self.init_group.used_nodes()
        } else {
            self.nodes_to_checkpoint.clone()
        }
    }

    /// Adds a reason to stop after an epoch.
    pub fn add_stop_condition(&mut self, condition: impl Into<StopCondition>) {
        self.stop_conditions.push(condition.into());
    }

    /// The reasons to stop. A job without any never ends by itself.
    pub fn stop_conditions(&self) -> &[StopCondition] {
        &self.stop_conditions
    }

    /// Whether the job stops, asked after `epoch` has run.
    ///
    /// Every condition is looked at, so a broken one is not hidden by another that holds. Fails with `NotFound` if the blob of an
    /// output is not there: the epoch group was to make it.
    pub fn is_finished_after(&self, epoch: u64, session: &mut dyn Session) -> Result<bool> {
        self.any_holds(epoch, |output| session.fetch_bool(output))
    }

    /// Whether the job had stopped already when the checkpoint of `epoch` was saved, asked after it was loaded.
    ///
    /// As [`is_finished_after`](Self::is_finished_after), but an output whose blob is not there does not hold: the checkpoint may
    /// be of epoch 0, or of a job that did not have this condition yet.
    pub fn is_finished_on_resume(&self, epoch: u64, session: &mut dyn Session) -> Result<bool> {
        self.any_holds(epoch, |output| match session.fetch_bool(output) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            found => found,
        })
    }

    fn any_holds(&self, epoch: u64, mut fetch: impl FnMut(&TaskOutput) -> Result<bool>) -> Result<bool> {
        self.stop_conditions.iter().try_fold(false, |any, condition| {
            let holds = match condition {
                StopCondition::Output(output) => fetch(output)?,
                StopCondition::EpochLimit(limit) => epoch >= *limit,
            };
            Ok(any | holds)
        })
    }
}

/// Makes the job stop when `epochs` of its epochs are done. Caffe2: `epoch_limiter`; see [`StopCondition::EpochLimit`].
///
/// Fails with `InvalidInput` for 0, since a job runs at least one epoch.
pub fn epoch_limiter(job: &mut Job, epochs: u64) -> Result<()> {
    if epochs == 0 {
        return Err(Error::invalid("a job runs at least one epoch: set a higher limit epochs=`0`"));
    }
    job.add_stop_condition(StopCondition::EpochLimit(epochs));
    Ok(())
}

#[cfg(test)]
mod tests {
    use ckpt_engine::blob::Tensor;

    use super::*;
    use crate::session::LocalSession;

    fn task(name: &str, node: &str) -> Task {
        Task::new(name, node, |_| Ok(()))
    }

    fn session_with(blob: &str, value: Tensor) -> LocalSession {
        let session = LocalSession::new();
        session.workspace(&Node::new("n")).unwrap().set(blob, value);
        session
    }

    #[test]
    fn nodes_to_checkpoint_are_those_of_init_unless_given() {
        let mut job = Job::new();
        for node in ["b", "a", "b"] {
            job.init_group.add(task("init", node));
        }
        job.epoch_group.add(task("train", "c"));
        assert_eq!(job.nodes_to_checkpoint(), [Node::new("b"), Node::new("a")]);
        let job = job.with_nodes_to_checkpoint([Node::new("c")]);
        assert_eq!(job.nodes_to_checkpoint(), [Node::new("c")]);
    }

    #[test]
    fn the_limit_counts_epochs_of_the_job() {
        let mut job = Job::new();
        assert_eq!(epoch_limiter(&mut job, 0).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert!(job.stop_conditions().is_empty());
        epoch_limiter(&mut job, 3).unwrap();
        let mut session = LocalSession::new();
        let after = |epoch, session: &mut LocalSession| job.is_finished_after(epoch, session).unwrap();
        assert!(!after(2, &mut session));
        assert!(after(3, &mut session));
        assert!(job.is_finished_on_resume(4, &mut session).unwrap());
    }

    #[test]
    fn an_output_stops_the_job_when_it_is_true() {
        let mut job = Job::new();
        job.add_stop_condition(TaskOutput::new("n", "done"));
        for done in [false, true] {
            let mut session = session_with("done", Tensor::from_slice([1], &[done]).unwrap());
            assert_eq!(job.is_finished_after(1, &mut session).unwrap(), done);
            assert_eq!(job.is_finished_on_resume(1, &mut session).unwrap(), done);
        }
    }

    #[test]
    fn an_absent_output_is_an_error_only_after_an_epoch() {
        let mut job = Job::new();
        job.add_stop_condition(TaskOutput::new("n", "done"));
        let mut session = LocalSession::new();
        assert!(!job.is_finished_on_resume(0, &mut session).unwrap());
        let error = job.is_finished_after(1, &mut session).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_broken_condition_is_not_hidden_by_one_that_holds() {
        let mut job = Job::new();
        epoch_limiter(&mut job, 1).unwrap();
        job.add_stop_condition(TaskOutput::new("n", "done"));
        let mut session = session_with("done", Tensor::scalar(1u8));
        assert_eq!(job.is_finished_after(1, &mut session).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(job.is_finished_on_resume(1, &mut session).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn without_conditions_a_job_never_ends() {
        assert!(!Job::new().is_finished_after(u64::MAX, &mut LocalSession::new()).unwrap());
    }
}
