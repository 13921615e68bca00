//! What a local session promises about tasks that run, fail, panic and meet.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use ckpt_engine::ErrorKind;
use ckpt_engine::blob::Tensor;

use super::*;

/// A wait that ends by this was not freed; every test that could hang is far faster.
const LONG: Duration = Duration::from_secs(60);

fn session() -> LocalSession {
    LocalSession::new().with_gather_timeout(LONG)
}

fn run(tasks: Vec<Task>) -> Result<()> {
    session().run(&tasks.into_iter().collect(), 1)
}

/// Runs the tasks, which must fail without waiting for a time limit.
fn run_to_fail(tasks: Vec<Task>) -> Error {
    let began = Instant::now();
    let error = run(tasks).unwrap_err();
    assert!(began.elapsed() < LONG / 2, "waited for the time limit: {error}");
    error
}

fn gathers(node: &str) -> Task {
    Task::new("waits", node, |task| task.gather_all("tag", Tensor::scalar(1u8)).map(drop))
}

fn fetch(session: &LocalSession, node: &str, blob: &str) -> Result<Blob> {
    session.fetch(&TaskOutput::new(node, blob))
}

#[test]
fn tasks_of_a_node_share_its_workspace_and_nodes_do_not() {
    let mut session = session();
    let put = |name: &str, node: &str| {
        let blob = name.to_owned();
        Task::new(name, node, move |task| {
            task.set(blob.clone(), Tensor::scalar(task.epoch()));
            Ok(())
        })
    };
    let group: TaskGroup = [put("x", "a"), put("y", "a"), put("z", "b")].into_iter().collect();
    session.run(&group, 7).unwrap();
    let names = |node: &str| {
        let snapshot = session.workspace(&Node::new(node)).unwrap().snapshot();
        snapshot.names().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(names("a"), ["x", "y"]);
    assert_eq!(names("b"), ["z"]);
    assert_eq!(fetch(&session, "b", "z").unwrap(), Tensor::scalar(7u64).into());
}

#[test]
fn a_group_runs_again_on_what_it_left() {
    let mut session = session();
    let count = Task::new("count", "a", |task| {
        let before = if task.contains("n") { task.tensor("n")?.as_slice::<u64>()?.iter().sum() } else { 0 };
        task.set("n", Tensor::scalar(before + 1u64));
        Ok(())
    });
    let group: TaskGroup = [count].into_iter().collect();
    for epoch in 1..=3 {
        session.run(&group, epoch).unwrap();
    }
    assert_eq!(fetch(&session, "a", "n").unwrap(), Tensor::scalar(3u64).into());
}

#[test]
fn fetching_what_is_not_there_names_node_and_blob() {
    let session = session();
    let error = fetch(&session, "a", "w").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.to_string(), "node `a`: no such blob blob=`w`");
}

#[test]
fn an_empty_group_is_done() {
    session().run(&TaskGroup::new(), 1).unwrap();
}

/// Each body blocks until all are in it, so they must run at the same time, also those of one node.
#[test]
fn the_tasks_of_a_group_run_at_the_same_time() {
    let barrier = Arc::new(Barrier::new(3));
    let meet = |node: &str| {
        let barrier = Arc::clone(&barrier);
        Task::new("meet", node, move |_| {
            barrier.wait();
            Ok(())
        })
    };
    run(vec![meet("a"), meet("a"), meet("b")]).unwrap();
}

#[test]
fn a_group_ends_with_its_last_task_even_if_the_first_fails() {
    let ended = Arc::new(AtomicUsize::new(0));
    let slow = Arc::clone(&ended);
    let error = run(vec![
        Task::new("fails", "a", |_| Err(Error::invalid("no"))),
        Task::new("slow", "b", move |_| {
            thread::sleep(Duration::from_millis(50));
            slow.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }),
    ])
    .unwrap_err();
    assert_eq!(ended.load(Ordering::SeqCst), 1);
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(error.to_string(), "task `a/fails` on node `a`: no");
}

#[test]
fn a_panic_is_an_internal_error_with_its_message() {
    let error = run(vec![Task::new("p", "a", |_| {
        assert_eq!(1 + 1, 3, "sums");
        Ok(())
    })])
    .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert_eq!(
        error.to_string(),
        "task `a/p` on node `a`: the task panicked: assertion `left == right` failed: sums left: 2 right: 3"
    );
}

#[test]
fn after_a_panic_the_session_goes_on() {
    let mut session = session();
    let panics = Task::new("p", "a", |task| {
        task.with_workspace(|blobs| {
            blobs.insert("x", Tensor::scalar(1u8));
            panic!("with the lock held")
        })
    });
    assert!(session.run(&[panics].into_iter().collect(), 1).is_err());
    assert!(fetch(&session, "a", "x").is_ok());
    session.run(&[gathers("a")].into_iter().collect(), 2).unwrap();
}

#[test]
fn of_several_errors_the_first_in_task_order_is_returned() {
    let fails = |node: &str, after: u64| {
        let node_name = node.to_owned();
        Task::new("fails", node, move |_| {
            thread::sleep(Duration::from_millis(after));
            Err(Error::invalid(node_name.clone()))
        })
    };
    let error = run(vec![fails("a", 50), fails("b", 0)]).unwrap_err();
    assert_eq!(error.to_string(), "task `a/fails` on node `a`: a");
}

#[test]
fn all_get_what_all_gave_in_the_order_of_nodes() {
    let mut session = session();
    // `b` is used first, though its task gives last.
    let give = |node: &str, value: u8| {
        Task::new("give", node, move |task| {
            thread::sleep(Duration::from_millis(20 * u64::from(value)));
            for tag in ["one", "two"] {
                let all = task.gather_all(tag, Tensor::scalar(value))?;
                let seen: Vec<_> = all.iter().map(|(node, _)| node.as_str()).collect();
                assert_eq!(seen, ["b", "a", "c"]);
                let values = all.iter().map(|(_, blob)| blob.data().first().copied().unwrap_or_default());
                assert_eq!(values.collect::<Vec<_>>(), [3, 1, 2]);
            }
            task.set("met", Tensor::scalar(true));
            Ok(())
        })
    };
    // The second task of `a` takes no part, and need not.
    let aside = Task::new("aside", "a", |_| Ok(()));
    let group: TaskGroup = [give("b", 3), give("a", 1), give("c", 2), aside].into_iter().collect();
    for epoch in 1..=2 {
        session.run(&group, epoch).unwrap();
    }
    for node in ["a", "b", "c"] {
        assert!(session.fetch_bool(&TaskOutput::new(node, "met")).unwrap());
    }
}

#[test]
fn many_gathers_cross_without_a_deadlock() {
    let meet = |node: &str| {
        Task::new("meet", node, |task| {
            (0..500).try_for_each(|round| task.gather_all(&format!("{round}"), Tensor::scalar(0u8)).map(drop))
        })
    };
    run(["a", "b", "c", "d"].map(meet).into()).unwrap();
}

#[test]
fn a_failure_frees_those_who_wait_and_is_the_one_reported() {
    let fails = Task::new("fails", "b", |_| {
        thread::sleep(Duration::from_millis(30));
        Err(Error::new(ErrorKind::Full, "disk is full"))
    });
    let error = run_to_fail(vec![gathers("a"), fails, gathers("c")]);
    // `a/waits` comes first in the group, but failed only because of `b/fails`.
    assert_eq!(error.to_string(), "task `b/fails` on node `b`: disk is full");
    assert_eq!(error.kind(), ErrorKind::Full);
}

#[test]
fn who_is_freed_learns_the_cause() {
    let mut session = session();
    let tells = Task::new("tells", "a", |task| {
        let error = task.gather_all("tag", Tensor::scalar(0u8)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        task.set("told", Tensor::from_strings([1], &[error.to_string()])?);
        Ok(())
    });
    let panics = Task::new("panics", "b", |_| panic!("out of luck"));
    let error = session.run(&[tells, panics].into_iter().collect(), 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    let told = fetch(&session, "a", "told").unwrap();
    let told = told.as_tensor().unwrap().strings().unwrap().concat();
    assert_eq!(
        String::from_utf8(told).unwrap(),
        "gather ended because a task of the group failed: task `b/panics` on node `b`: the task panicked: out of luck \
         tag=`tag` node=`a` task=`a/tells`"
    );
}

#[test]
fn a_failure_before_the_gather_ends_it_too() {
    let fails = Task::new("fails", "b", |_| Err(Error::invalid("no")));
    let late = Task::new("late", "a", |task| {
        thread::sleep(Duration::from_millis(50));
        task.gather_all("tag", Tensor::scalar(0u8)).map(drop)
    });
    let error = run_to_fail(vec![late, fails]);
    assert_eq!(error.to_string(), "task `b/fails` on node `b`: no");
}

#[test]
fn a_node_that_ends_without_taking_part_frees_those_who_wait() {
    let absent = Task::new("absent", "b", |_| Ok(()));
    let error = run_to_fail(vec![gathers("a"), absent]);
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(
        error.to_string(),
        "task `a/waits` on node `a`: gather ended because all tasks of a node ended without taking part in it \
         missing=`b` tag=`tag` node=`a` task=`a/waits`"
    );
}

#[test]
fn another_tag_is_another_gather() {
    let other = Task::new("other", "b", |task| task.gather_all("else", Tensor::scalar(0u8)).map(drop));
    let group = [gathers("a"), other].into_iter().collect();
    let mut session = session().with_gather_timeout(Duration::from_millis(50));
    let error = session.run(&group, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[test]
fn a_node_takes_part_once_per_tag() {
    let twice = |node: &str| {
        Task::new("twice", node, |task| {
            task.gather_all("tag", Tensor::scalar(0u8))?;
            task.gather_all("tag", Tensor::scalar(0u8)).map(drop)
        })
    };
    for tasks in
        [vec![twice("a")], vec![twice("a"), twice("b")], vec![gathers("a"), gathers("a"), gathers("b")]]
    {
        let error = run_to_fail(tasks);
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("took part in this gather already"), "{error}");
    }
}

#[test]
fn the_time_limit_names_who_is_missing() {
    let slow = Task::new("slow", "b", |_| {
        thread::sleep(Duration::from_millis(300));
        Ok(())
    });
    let mut session = LocalSession::new().with_gather_timeout(Duration::from_millis(20));
    let error = session.run(&[gathers("a"), slow].into_iter().collect(), 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(
        error.to_string(),
        "task `a/waits` on node `a`: gather waited too long for other nodes seconds=`0.02` missing=`b` \
         tag=`tag` node=`a` task=`a/waits`"
    );
}

#[test]
fn what_was_gathered_is_let_go() {
    let freed = Task::new("freed", "a", |task| {
        let mut mine = Tensor::from_slice([1], &[1u64])?;
        drop(task.gather_all("tag", mine.clone())?);
        let before = mine.data().as_ptr();
        mine.data_mut()?;
        // Had the meeting kept a reference, writing would have copied.
        assert_eq!(mine.data().as_ptr(), before);
        Ok(())
    });
    run(vec![freed]).unwrap();
}
