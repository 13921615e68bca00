//! Faults for tests: counts the steps under a folder and stops, as a crash would, before one of them.
//!
//! After a stop every later step under the folder fails too, the cleaning up included, so that the folder is left as a
//! killed process leaves it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use super::steps::Step;

static ACTIVE: Mutex<Vec<(PathBuf, Arc<Mutex<State>>)>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct State {
    steps: Vec<Step>,
    plan: Plan,
}

/// What is to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Only count.
    Count,
    /// Step number `.0` (from 0) and all after it do not happen and fail.
    StopBefore(usize),
    /// Step number `.0` does not happen and fails with the system's error number `.1`; later ones happen.
    FailOnce(usize, i32),
}

/// A plan for the steps under one folder, for as long as it lives.
#[derive(Debug)]
pub struct Faults {
    root: PathBuf,
    state: Arc<Mutex<State>>,
}

impl Faults {
    /// Puts `plan` in force for the steps on paths under `root`.
    pub fn under(root: &Path, plan: Plan) -> Self {
        let state = Arc::new(Mutex::new(State { steps: Vec::new(), plan }));
        lock(&ACTIVE).push((root.to_owned(), Arc::clone(&state)));
        Self { root: root.to_owned(), state }
    }

    /// The steps asked for so far, those that failed included.
    pub fn steps(&self) -> Vec<Step> {
        lock(&self.state).steps.clone()
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        lock(&ACTIVE).retain(|(root, state)| *root != self.root || !Arc::ptr_eq(state, &self.state));
    }
}

pub(super) fn check(step: Step, path: &Path) -> io::Result<()> {
    let active =
        lock(&ACTIVE).iter().find(|(root, _)| path.starts_with(root)).map(|(_, state)| state.clone());
    let Some(state) = active else {
        return Ok(());
    };
    let mut state = lock(&state);
    let number = state.steps.len();
    state.steps.push(step);
    match state.plan {
        Plan::StopBefore(stop) if number >= stop => Err(io::Error::other("stopped by a fault test")),
        Plan::FailOnce(fail, errno) if number == fail => Err(io::Error::from_raw_os_error(errno)),
        _ => Ok(()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
