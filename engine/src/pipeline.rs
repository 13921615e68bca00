//! Work on N threads, results in order, within a memory budget.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
    take: impl FnMut(usize, R) -> Result<()>,
) -> Result<()>
where
    T: Sync,
    R: Send,
{
    ordered_with_backlog(items, limits, cost, |item, _| work(item), take)
}

/// What waits to be taken when the work on an item begins: as long as there is enough, that work delays nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Backlog {
    /// The cost of the results that wait.
    pub waiting: usize,
    /// How long taking them will last, at the pace of the latest ones; zero as long as none was taken.
    pub lasts: Duration,
}

/// Like [`ordered`], and tells `work` of the backlog, so that it can do more while `take` is behind.
pub fn ordered_with_backlog<T, R>(
    items: &[T],
    limits: Limits,
    cost: impl Fn(&T) -> usize + Sync,
    work: impl Fn(&T, Backlog) -> Result<R> + Sync,
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
        state: Mutex::new(State {
            next: 0,
            in_flight: 0,
            done: BTreeMap::new(),
            waiting: 0,
            pace: Pace::default(),
            stopped: false,
        }),
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
            let cost = cost(item);
            let result = line.wait_for(index, cost)?;
            let began = Instant::now();
            take(index, result)?;
            let took = began.elapsed();
            let mut state = line.lock();
            state.in_flight -= cost;
            state.pace.add(cost, took);
            drop(state);
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
    /// The cost of the items in `done`.
    waiting: usize,
    pace: Pace,
    stopped: bool,
}

/// How long the latest items took to be taken. Older ones count less and less, so one that had to wait for something is evened out
/// with its neighbours, and a store that becomes slower or faster is noticed after a few.
#[derive(Default)]
struct Pace {
    cost: f64,
    seconds: f64,
}

impl Pace {
    /// What is left of the weight of an item when the next one was taken.
    const FADING: f64 = 7.0 / 8.0;

    fn add(&mut self, cost: usize, took: Duration) {
        self.cost = self.cost * Self::FADING + cost as f64;
        self.seconds = self.seconds * Self::FADING + took.as_secs_f64();
    }

    fn of(&self, cost: usize) -> Duration {
        let seconds = if self.cost > 0.0 { self.seconds * (cost as f64 / self.cost) } else { 0.0 };
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }
}

impl<R> Line<R> {
    fn lock(&self) -> MutexGuard<'_, State<R>> {
        // No code that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<R>>) -> MutexGuard<'a, State<R>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(&self, index: usize, cost: usize) -> Result<R> {
        let mut state = self.lock();
        loop {
            if let Some(result) = state.done.remove(&index) {
                state.waiting -= cost;
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
        work: &impl Fn(&T, Backlog) -> Result<R>,
    ) {
        while let Some((index, item, backlog)) = self.begin(items, budget, cost) {
            let result = catch_unwind(AssertUnwindSafe(|| work(item, backlog)))
                .unwrap_or_else(|_| Err(Error::internal("a worker thread panicked")));
            let cost = cost(item);
            let mut state = self.lock();
            state.done.insert(index, result);
            state.waiting += cost;
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Waits until the next item fits the budget. What waits then comes before it: items are begun in order.
    fn begin<'a, T>(
        &self,
        items: &'a [T],
        budget: usize,
        cost: &impl Fn(&T) -> usize,
    ) -> Option<(usize, &'a T, Backlog)> {
        let mut state = self.lock();
        loop {
            let index = state.next;
            let item = items.get(index).filter(|_| !state.stopped)?;
            let with_it = state.in_flight.saturating_add(cost(item));
            if state.in_flight == 0 || with_it <= budget {
                state.next += 1;
                state.in_flight = with_it;
                let backlog = Backlog { waiting: state.waiting, lasts: state.pace.of(state.waiting) };
                return Some((index, item, backlog));
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

    #[test]
    fn work_knows_whether_taking_is_behind() {
        let items = [10usize; 60];
        let run = |working: Duration, taking: Duration| {
            let seen = Mutex::new(Vec::new());
            let work = |_: &usize, backlog: Backlog| {
                seen.lock().unwrap().push(backlog);
                std::thread::sleep(working);
                Ok(())
            };
            let take = |_, ()| {
                std::thread::sleep(taking);
                Ok(())
            };
            ordered_with_backlog(&items, limits(2, 100), |item| *item, work, take).unwrap();
            seen.into_inner().unwrap()
        };
        let slow = Duration::from_millis(5);
        let behind = run(Duration::ZERO, slow);
        assert_eq!(behind[0], Backlog::default());
        assert!(
            behind.iter().all(|backlog| backlog.waiting <= 90),
            "what is taken or worked on does not wait"
        );
        // One is being taken and one or two are worked on: the others of the ten that fit wait, for five milliseconds each.
        assert!(behind[20..].iter().all(|backlog| backlog.waiting >= 70 && backlog.lasts >= 7 * slow));
        let ahead = run(slow, Duration::ZERO);
        assert!(ahead.iter().all(|backlog| backlog.lasts < slow), "{ahead:?}");
    }

    #[test]
    fn the_pace_evens_out_and_follows() {
        let mut pace = Pace::default();
        assert_eq!(pace.of(1000), Duration::ZERO);
        // A queue that takes three at once and then lets the fourth wait for all.
        for took in [0, 0, 0, 40].repeat(20) {
            pace.add(1, Duration::from_millis(took));
        }
        let even = pace.of(1).as_millis();
        assert!((9..=14).contains(&even), "{even}");
        (0..40).for_each(|_| pace.add(1, Duration::ZERO));
        assert!(pace.of(1) < Duration::from_millis(1));
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
