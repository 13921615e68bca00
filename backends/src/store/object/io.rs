//! The border between blocking callers and the async client.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Waker};

use ckpt_engine::{Error, Result};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::coop;

/// Threads that move bytes between sockets and buffers; checksums are taken on the callers' threads.
const THREADS: usize = 2;

/// More than any task's budget: it is counted in a byte.
const ANY_BUDGET: usize = 256;

/// A small runtime, made on first use.
#[derive(Debug, Default)]
pub(super) struct Io {
    runtime: Mutex<Option<Runtime>>,
}

impl Io {
    /// Waits for `future`.
    ///
    /// Fails with `Unsupported` on a thread that runs async tasks: waiting there would hold them all up.
    pub(super) fn wait<F: Future>(&self, future: F) -> Result<F::Output> {
        let handle = self.handle()?;
        Ok(handle.block_on(future))
    }

    /// Runs `work` where it finds the runtime as the current one.
    pub(super) fn within<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let handle = self.handle()?;
        let _entered = handle.enter();
        Ok(work())
    }

    /// The runtime, for a thread that may wait.
    pub(super) fn handle(&self) -> Result<Handle> {
        if !may_wait() {
            return Err(Error::unsupported(
                "object stores cannot be used from within an async task, since the call blocks: wrap it in `spawn_blocking`",
            ));
        }
        let mut runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = &*runtime {
            return Ok(runtime.handle().clone());
        }
        let built =
            Builder::new_multi_thread().worker_threads(THREADS).thread_name("ckpt-net").enable_all().build();
        let built =
            built.map_err(|error| Error::io("cannot start the threads for network requests", error))?;
        Ok(runtime.insert(built).handle().clone())
    }
}

impl Drop for Io {
    /// Without waiting: a driver may be dropped in an async task, where waiting would panic.
    fn drop(&mut self) {
        let runtime = self.runtime.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Whether this thread may block.
///
/// A thread outside of any runtime may; so may those that tokio keeps for blocking work, although they are inside. What tells
/// them from a thread that runs a task is that a task has a budget of steps, after which it must give way, and they have none.
/// A task that may not wait loses what is left of its budget by this: it gets an error and gives way a little earlier.
fn may_wait() -> bool {
    if Handle::try_current().is_err() {
        return true;
    }
    let mut context = Context::from_waker(Waker::noop());
    (0..ANY_BUDGET).all(|_| coop::poll_proceed(&mut context).map(|step| step.made_progress()).is_ready())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ckpt_engine::ErrorKind;

    use super::*;

    #[test]
    fn a_plain_thread_may_wait_and_a_task_may_not() {
        let io = Arc::new(Io::default());
        assert_eq!(io.wait(async { 1 }).unwrap(), 1);
        let inner = Arc::clone(&io);
        let outside =
            [Builder::new_current_thread().build().unwrap(), Builder::new_multi_thread().build().unwrap()];
        for runtime in outside {
            let error = runtime.block_on(async { inner.wait(async {}) }).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("spawn_blocking"), "{error}");
            let inner = Arc::clone(&inner);
            let task =
                runtime.block_on(runtime.spawn(async move { inner.wait(async {}).map_err(|e| e.kind()) }));
            assert_eq!(task.unwrap().unwrap_err(), ErrorKind::Unsupported);
        }
    }

    #[test]
    fn a_thread_for_blocking_work_may_wait() {
        let io = Arc::new(Io::default());
        let runtime = Builder::new_multi_thread().build().unwrap();
        let inner = Arc::clone(&io);
        let answer =
            runtime.block_on(async { tokio::task::spawn_blocking(move || inner.wait(async { 1 })).await });
        assert_eq!(answer.unwrap().unwrap(), 1);
        let inner = Arc::clone(&io);
        let answer = runtime.spawn(async move { tokio::task::block_in_place(|| inner.wait(async { 2 })) });
        assert_eq!(runtime.block_on(answer).unwrap().unwrap(), 2);
    }

    #[test]
    fn it_can_be_dropped_in_a_task() {
        let io = Io::default();
        io.wait(async {}).unwrap();
        Builder::new_current_thread().build().unwrap().block_on(async { drop(io) });
    }
}
