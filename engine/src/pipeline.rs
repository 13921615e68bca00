//! Work on N threads, results in order, within a memory budget.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::db::Limits;
use crate::error::{Error, Result};

/// Runs `work` on every item on `limits.threads` threads and hands the results to `take` in the order of the items, on the
/// calling thread.
///
/// The sum of `cost` of the items that are worked on or wait to be taken stays within `limits.memory`; one item is always
/// allowed. The first error, of `work` or of `take`, ends it; a panic of `work` is an `Internal` error.
pub fn ordered<T, R>(
    items: &[T],
    limits: Limits,
    cost: impl Fn(&T) -> usize + Sync,
    work: impl Fn(&T) -> Result<R> + Sync,
    mut take: impl FnMut(usize, R) -> Result<()>,
) -> Result<()>
where
    T: Sync,
    R: Send,
{
    // A thread for which the budget has no item would only wait, and keep memory of the items that it has had.
    let mean = items.iter().fold(0usize, |sum, item| sum.saturating_add(cost(item))) / items.len().max(1);
    let fitting = limits.memory.checked_div(mean).unwrap_or(usize::MAX);
    let threads = limits.threads.min(items.len()).min(fitting).max(1);
    let line = Line {
        state: Mutex::new(State { next: 0, in_flight: 0, done: BTreeMap::new(), stopped: false }),
        changed: Condvar::new(),
    };
    std::thread::scope(|scope| {
        // However the taking ends, the workers must not wait for it.
        let _stop = StopOnDrop(&line);
        for _ in 0..threads {
            std::thread::Builder::new()
                .name("ckpt-worker".to_owned())
                .spawn_scoped(scope, || line.work(items, limits.memory, &cost, &work))
                .map_err(|error| Error::io("cannot start a worker thread", error))?;
        }
        for (index, item) in items.iter().enumerate() {
            let result = line.wait_for(index)?;
            take(index, result)?;
            line.lock().in_flight -= cost(item);
            line.changed.notify_all();
        }
        Ok(())
    })
}

struct Line<R> {
    state: Mutex<State<R>>,
    changed: Condvar,
}

struct State<R> {
    /// The first item that nobody has begun.
    next: usize,
    /// The cost of the items that were begun and not yet taken.
    in_flight: usize,
    done: BTreeMap<usize, Result<R>>,
    stopped: bool,
}

impl<R> Line<R> {
    fn lock(&self) -> MutexGuard<'_, State<R>> {
        // No code that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<R>>) -> MutexGuard<'a, State<R>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(&self, index: usize) -> Result<R> {
        let mut state = self.lock();
        loop {
            if let Some(result) = state.done.remove(&index) {
                return result;
            }
            state = self.wait(state);
        }
    }

    fn work<T>(
        &self,
        items: &[T],
        budget: usize,
        cost: &impl Fn(&T) -> usize,
        work: &impl Fn(&T) -> Result<R>,
    ) {
        while let Some((index, item)) = self.begin(items, budget, cost) {
            let result = catch_unwind(AssertUnwindSafe(|| work(item)))
                .unwrap_or_else(|_| Err(Error::internal("a worker thread panicked")));
            self.lock().done.insert(index, result);
            self.changed.notify_all();
        }
    }

    /// Waits until the next item fits the budget.
    fn begin<'a, T>(
        &self,
        items: &'a [T],
        budget: usize,
        cost: &impl Fn(&T) -> usize,
    ) -> Option<(usize, &'a T)> {
        let mut state = self.lock();
        loop {
            let index = state.next;
            let item = items.get(index).filter(|_| !state.stopped)?;
            let with_it = state.in_flight.saturating_add(cost(item));
            if state.in_flight == 0 || with_it <= budget {
                state.next += 1;
                state.in_flight = with_it;
                return Some((index, item));
            }
            state = self.wait(state);
        }
    }
}

struct StopOnDrop<'a, R>(&'a Line<R>);

impl<R> Drop for StopOnDrop<'_, R> {
    fn drop(&mut self) {
        self.0.lock().stopped = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::error::ErrorKind;

    fn limits(threads: usize, memory: usize) -> Limits {
        Limits { threads, memory }
    }

    #[test]
    fn results_come_in_order() {
        let items: Vec<u64> = (0..200).collect();
        let mut taken = Vec::new();
        let work = |item: &u64| {
            std::thread::sleep(Duration::from_micros(item % 7 * 30));
            Ok(item * 2)
        };
        ordered(
            &items,
            limits(4, 10),
            |_| 1,
            work,
            |index, result| {
                taken.push((index as u64, result));
                Ok(())
            },
        )
        .unwrap();
        assert_eq!(taken, items.iter().map(|item| (*item, item * 2)).collect::<Vec<_>>());
    }

    #[test]
    fn the_budget_holds_and_a_larger_item_passes_alone() {
        let items = [3usize, 3, 50, 3, 3, 3, 3];
        let in_flight = AtomicUsize::new(0);
        let work = |item: &usize| {
            let now = in_flight.fetch_add(*item, Ordering::SeqCst) + item;
            assert!(now <= 10 || now == 50, "{now}");
            Ok(*item)
        };
        ordered(
            &items,
            limits(4, 10),
            |item| *item,
            work,
            |_, item| {
                std::thread::sleep(Duration::from_millis(1));
                in_flight.fetch_sub(item, Ordering::SeqCst);
                Ok(())
            },
        )
        .unwrap();
    }

    /// Sixteen threads took turns at two records in flight, and each kept a record's memory in its allocator's cache: a copy out
    /// of an object store took 70 MiB more than its budget.
    #[test]
    fn there_are_no_more_threads_than_the_budget_has_items() {
        let items = [4usize; 100];
        for (memory, most) in [(8, 2), (3, 1), (0, 1)] {
            let seen = Mutex::new(std::collections::HashSet::new());
            let work = |_: &usize| {
                seen.lock().unwrap().insert(std::thread::current().id());
                std::thread::sleep(Duration::from_micros(100));
                Ok(())
            };
            ordered(&items, limits(16, memory), |item| *item, work, |_, ()| Ok(())).unwrap();
            assert!((1..=most).contains(&seen.into_inner().unwrap().len()), "budget {memory}");
        }
    }

    #[test]
    fn an_error_or_a_panic_ends_it() {
        let items: Vec<usize> = (0..1000).collect();
        let fail = |item: &usize| if *item == 500 { Err(Error::corrupt("x")) } else { Ok(()) };
        let error = ordered(&items, limits(3, 5), |_| 1, fail, |_, ()| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let error = ordered(
            &items,
            limits(3, 5),
            |_| 1,
            |_| Ok(()),
            |index, ()| {
                if index == 10 { Err(Error::invalid("y")) } else { Ok(()) }
            },
        );
        assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidInput);
        let panics = |item: &usize| -> Result<()> {
            assert!(*item != 7, "on purpose");
            Ok(())
        };
        let error = ordered(&items, limits(3, 5), |_| 1, panics, |_, ()| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
    }

    #[test]
    fn nothing_to_do_is_done() {
        ordered(&[] as &[u8], limits(2, 1), |_| 1, |_| Ok(()), |_, ()| Ok(())).unwrap();
    }
}
