//! The same work on many items, on several threads.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use ckpt_engine::Result;

/// Does `work` once for each item, on up to `threads` threads of which the caller's is one. Each thread has a state of its
/// own. After the first error no new item is begun, and that error is returned.
pub(crate) fn for_each<T: Send, S: Default>(
    threads: usize,
    items: Vec<T>,
    work: impl Fn(&mut S, T) -> Result<()> + Sync,
) -> Result<()> {
    let threads = threads.min(items.len());
    let queue = Mutex::new(items.into_iter());
    let failed = Mutex::new(None);
    let run = || {
        let mut state = S::default();
        loop {
            let Some(item) = lock(&queue).next() else { return };
            if let Err(error) = work(&mut state, item) {
                // Nothing is left for anyone.
                lock(&queue).by_ref().for_each(drop);
                lock(&failed).get_or_insert(error);
                return;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Where the system gives no more threads, those that there are do the work.
            if let Err(error) = thread::Builder::new().name("ckpt-io".to_owned()).spawn_scoped(scope, run) {
                tracing::warn!(%error, "cannot start a thread");
                break;
            }
        }
        run();
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panicking thread leaves is a shorter queue; the scope passes the panic on.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ckpt_engine::Error;

    use super::*;

    #[test]
    fn every_item_is_done_once() {
        for threads in [1, 2, 7] {
            let sum = AtomicUsize::new(0);
            for_each(threads, (1..=100).collect(), |(), item| {
                sum.fetch_add(item, Ordering::Relaxed);
                Ok(())
            })
            .unwrap();
            assert_eq!(sum.into_inner(), 5050);
        }
        for_each(3, Vec::<u8>::new(), |(), _| Err(Error::internal("no item"))).unwrap();
    }

    #[test]
    fn an_error_ends_it() {
        let done = AtomicUsize::new(0);
        let error = for_each(1, (0..100).collect(), |(), item| {
            done.fetch_add(1, Ordering::Relaxed);
            if item == 3 { Err(Error::corrupt("three")) } else { Ok(()) }
        })
        .unwrap_err();
        assert_eq!(error.to_string(), "three");
        assert_eq!(done.into_inner(), 4);
    }
}
