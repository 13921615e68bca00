//! A session within one process: a workspace per node, a thread per task.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use ckpt_engine::blob::Blob;
use ckpt_engine::{Error, Result, ResultExt};

use super::rendezvous::{Rendezvous, Seat};
use super::{Session, SharedWorkspace, TaskContext};
use crate::job::{Node, Task, TaskGroup, TaskOutput};

/// Runs every node in this process. Caffe2: `LocalSession`, but here each node has a workspace of its own.
///
/// The tasks of a group run at the same time, each on its own thread. A panic in one is caught and becomes the `Internal` error of
/// that task.
#[derive(Debug)]
pub struct LocalSession {
    workspaces: Mutex<BTreeMap<Node, SharedWorkspace>>,
    gather_timeout: Duration,
}

impl LocalSession {
    /// How long a task waits for the others in [`TaskContext::gather_all`], unless set otherwise: ten minutes.
    pub const DEFAULT_GATHER_TIMEOUT: Duration = Duration::from_secs(600);

    /// A session without blobs.
    pub fn new() -> Self {
        Self { workspaces: Mutex::default(), gather_timeout: Self::DEFAULT_GATHER_TIMEOUT }
    }

    /// Sets how long a task waits for the others in [`TaskContext::gather_all`].
    #[must_use]
    pub fn with_gather_timeout(mut self, timeout: Duration) -> Self {
        self.gather_timeout = timeout;
        self
    }

    /// All tasks start, or none does. The results are in the order of the tasks.
    fn run_together(&self, tasks: &[(&Task, TaskContext, Seat)]) -> Result<Vec<Result<()>>> {
        let all_there = OnceLock::new();
        thread::scope(|scope| {
            let spawned: std::io::Result<Vec<_>> = tasks
                .iter()
                .map(|(task, context, seat)| {
                    let span = tracing::debug_span!("task", name = task.name());
                    // A NUL in a thread's name is a panic.
                    let thread = thread::Builder::new().name(task.name().replace('\0', " "));
                    let all_there = &all_there;
                    thread.spawn_scoped(scope, move || {
                        let start: &bool = all_there.wait();
                        if *start { span.in_scope(|| run_one(task, context, seat)) } else { Ok(()) }
                    })
                })
                .collect();
            // Nobody else sets it, so this cannot fail.
            let _ = all_there.set(spawned.is_ok());
            let threads = spawned.map_err(|error| {
                Error::io(
                    format!("cannot start a thread per task: no task was run tasks=`{}`", tasks.len()),
                    error,
                )
            })?;
            let join = |thread: thread::ScopedJoinHandle<'_, Result<()>>| {
                thread.join().unwrap_or_else(|panic| Err(panicked(&*panic)))
            };
            Ok(threads.into_iter().map(join).collect())
        })
    }
}

impl Default for LocalSession {
    fn default() -> Self {
        Self::new()
    }
}

impl Session for LocalSession {
    fn run(&mut self, group: &TaskGroup, epoch: u64) -> Result<()> {
        let rendezvous = Rendezvous::new(group, self.gather_timeout);
        let seated = group.tasks().iter().enumerate().map(|(index, task)| {
            let node = task.node();
            let seat = rendezvous.seat(index, node, task.name());
            let workspace = self.workspace(node)?;
            let context = TaskContext::new(node.clone(), task.name(), epoch, workspace, seat.clone());
            Ok((task, context, seat))
        });
        let results = self.run_together(&seated.collect::<Result<Vec<_>>>()?)?;
        let failed =
            results.into_iter().enumerate().filter_map(|(index, result)| Some((index, result.err()?)));
        let (echoes, causes): (Vec<_>, Vec<_>) =
            failed.partition(|(index, _)| rendezvous.was_sent_home(*index));
        let mut errors = causes.into_iter().chain(echoes).map(|(_, error)| error);
        let Some(first) = errors.next() else {
            return Ok(());
        };
        for other in errors {
            tracing::warn!("another task of the group failed too: {other}");
        }
        Err(first)
    }

    fn fetch(&self, output: &TaskOutput) -> Result<Blob> {
        let workspaces = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        // A node that never ran has no blobs; looking at it does not make it one.
        let workspace = workspaces.get(output.node()).cloned().unwrap_or_default();
        workspace.get(output.blob()).context(|| format!("node `{}`", output.node()))
    }

    fn workspace(&self, node: &Node) -> Result<SharedWorkspace> {
        let mut workspaces = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(workspaces.entry(node.clone()).or_default().clone())
    }
}

/// Runs one task to its end, whatever that is, and tells the others.
fn run_one(task: &Task, context: &TaskContext, seat: &Seat) -> Result<()> {
    let ended = catch_unwind(AssertUnwindSafe(|| task.run(context)));
    let result = ended
        .unwrap_or_else(|panic| Err(panicked(&*panic)))
        .context(|| format!("task `{}` on node `{}`", task.name(), task.node()));
    seat.leave(&result);
    result
}

fn panicked(payload: &(dyn Any + Send)) -> Error {
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("with something that is no text");
    // What assertions say has several lines; an error has one.
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    Error::internal(format!("the task panicked: {line}"))
}

#[cfg(test)]
mod tests;
