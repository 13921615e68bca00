//! A node's workspace, shared by the tasks that run on it.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ckpt_engine::blob::{Blob, Tensor, Workspace};
use ckpt_engine::{Error, Result};

/// A handle to one node's [`Workspace`]. Clones are handles to the same one.
///
/// Each call is one moment: no other sees half of what it does. A panic inside [`with`](Self::with) leaves what was changed up to
/// then and does not lock anybody out.
#[derive(Clone, Debug, Default)]
pub struct SharedWorkspace(Arc<Mutex<Workspace>>);

impl SharedWorkspace {
    /// A workspace of its own, empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// Several changes at one moment. The lock is held while `change` runs: keep it short, and call no method of this handle in it.
    pub fn with<R>(&self, change: impl FnOnce(&mut Workspace) -> R) -> R {
        change(&mut self.lock())
    }

    /// The blob of a name. Its data is shared, not copied. Fails with `NotFound`.
    pub fn get(&self, name: &str) -> Result<Blob> {
        let found = self.lock().get(name).cloned();
        found.ok_or_else(|| Error::not_found(format!("no such blob blob=`{name}`")))
    }

    /// The tensor of a name, as [`get`](Self::get). Fails with `InvalidInput` if the blob is no tensor.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        self.lock().tensor(name).cloned()
    }

    /// Whether there is a blob of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.lock().get(name).is_some()
    }

    /// Puts a blob under a name and returns the one it replaces.
    pub fn set(&self, name: impl Into<String>, blob: impl Into<Blob>) -> Option<Blob> {
        self.lock().insert(name, blob)
    }

    /// Takes a blob out.
    pub fn remove(&self, name: &str) -> Option<Blob> {
        self.lock().remove(name)
    }

    /// All blobs as they are at this moment. Their data is shared until one side is written to.
    pub fn snapshot(&self) -> Workspace {
        self.lock().clone()
    }

    /// Puts these blobs in place of all there are, which it returns.
    pub fn replace(&self, blobs: Workspace) -> Workspace {
        mem::replace(&mut self.lock(), blobs)
    }

    /// Puts all these blobs, replacing those of equal names.
    pub fn extend(&self, blobs: Workspace) {
        self.lock().extend(blobs);
    }

    fn lock(&self) -> MutexGuard<'_, Workspace> {
        // The one who panicked fails its group; a lock that stayed shut would only hide its message behind others.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use ckpt_engine::ErrorKind;

    use super::*;

    #[test]
    fn clones_are_one_workspace_and_snapshots_are_not() {
        let workspace = SharedWorkspace::new();
        let other = workspace.clone();
        other.set("a", Tensor::scalar(1u8));
        let snapshot = workspace.snapshot();
        workspace.set("a", Tensor::scalar(2u8));
        assert_eq!(other.get("a").unwrap(), Tensor::scalar(2u8).into());
        assert_eq!(snapshot.get("a"), Some(&Tensor::scalar(1u8).into()));
    }

    #[test]
    fn replace_drops_what_was_there_and_extend_keeps_it() {
        let workspace = SharedWorkspace::new();
        workspace.set("a", Tensor::scalar(1u8));
        let one = |name: &str| Workspace::from_iter([(name.to_owned(), Tensor::scalar(0u8).into())]);
        workspace.extend(one("b"));
        assert!(workspace.contains("a") && workspace.contains("b"));
        assert_eq!(workspace.replace(one("c")).names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(workspace.snapshot(), one("c"));
        assert!(workspace.remove("c").is_some());
        assert_eq!(workspace.get("c").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(workspace.tensor("c").unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_panic_inside_locks_nobody_out() {
        let workspace = SharedWorkspace::new();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            workspace.with(|blobs| {
                blobs.insert("a", Tensor::scalar(1u8));
                panic!("in the middle");
            })
        }));
        assert!(panicked.is_err());
        assert!(workspace.contains("a"));
    }
}
