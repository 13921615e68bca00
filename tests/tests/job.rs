//! Jobs end to end, on every local db_type: what Caffe2's own `checkpoint_test` states, and what we promise beyond it.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ckpt_engine::blob::{Selection, Tensor, Workspace};
use ckpt_engine::db::{DriverOptions, Registry};
use ckpt_engine::manager::{
    Action, CheckpointManager, EpochRecord, JobParams, MetadataHandler, NodeStat, RecordsHandler, Resume,
};
use ckpt_engine::{Checkpoints, Error, ErrorKind, Result};
use ckpt_runner::job::{
    Job, JobRunner, Node, OnSaveFailure, SavePolicy, Task, TaskGroup, TaskOutput, epoch_limiter,
};
use ckpt_runner::multi_node::MultiNodeCheckpointManager;
use ckpt_runner::session::{LocalSession, Session, TaskContext};
use ckpt_runner::upload::{StoreUpload, UploadTaskGroupBuilder};

/// The totals after epochs 1 to 4 of the pipeline: 100 plus 0+1+2, 3+4+5, 6+7+8, 9.
const TOTALS: [i64; 4] = [103, 115, 136, 145];

/// The last two in the layout that they prefer: Caffe2's.
const LOCAL: [&str; 6] = ["memory", "files", "rocksdb", "lmdb", "minidb", "leveldb"];

fn registry() -> Registry {
    let mut registry = Registry::new();
    ckpt_backends::register_all(&mut registry);
    registry
}

fn place(registry: &Registry, db_type: &str, dir: &Path) -> Checkpoints {
    let driver = registry.driver(db_type, DriverOptions::new()).unwrap();
    Checkpoints::new(driver, dir.to_str().unwrap())
}

/// Runs a case on every local db_type, in a fresh folder each.
fn on_every_store(case: impl Fn(&Checkpoints)) {
    for db_type in LOCAL {
        let dir = tempfile::tempdir().unwrap();
        println!("on {db_type}");
        case(&place(&registry(), db_type, dir.path()));
    }
}

/// Caffe2's test pipeline for one node: a dataset of 0..10, a reader over it, and a total that every epoch adds three items to.
/// The position of the reader is part of the state, which is why resuming gives the same totals.
fn add_pipeline(job: &mut Job, node: &str) {
    job.init_group.add(Task::new("init", node, |task| {
        task.set("val", Tensor::from_vec([10], (0..10i64).collect())?);
        task.set("reader", Tensor::scalar(0i64));
        task.set("total", Tensor::from_slice([1], &[100i64])?);
        Ok(())
    }));
    job.epoch_group.add(Task::new("read", node, |task| {
        let data = task.tensor("val")?;
        let at = usize::try_from(task.tensor("reader")?.as_slice::<i64>()?[0]).unwrap();
        let items = &data.as_slice::<i64>()?[at..(at + 3).min(10)];
        let total = task.tensor("total")?.as_slice::<i64>()?[0] + items.iter().sum::<i64>();
        task.set("total", Tensor::from_slice([1], &[total])?);
        task.set("reader", Tensor::scalar((at + items.len()) as i64));
        task.set("exhausted", Tensor::scalar(at + items.len() >= 10));
        Ok(())
    }));
    job.add_stop_condition(TaskOutput::new(node, "exhausted"));
}

fn pipeline(nodes: &[&str]) -> Job {
    let mut job = Job::new();
    nodes.iter().for_each(|node| add_pipeline(&mut job, node));
    job
}

fn total(session: &LocalSession, node: &str) -> i64 {
    let blob = session.fetch(&TaskOutput::new(node, "total")).unwrap();
    blob.as_tensor().unwrap().as_slice::<i64>().unwrap()[0]
}

fn nodes(names: &[&str]) -> Vec<Node> {
    names.iter().map(|&name| Node::new(name)).collect()
}

fn no_retries(then: OnSaveFailure) -> SavePolicy {
    SavePolicy { retries: 0, backoff: Duration::ZERO, then }
}

/// `checkpoint_test` 1: a job is trained, and resumed from each of its epochs, with either manager.
#[test]
fn a_job_resumes_from_each_of_its_epochs() {
    on_every_store(|place| {
        let single = || CheckpointManager::new(place.clone(), "temp_node").unwrap().into();
        let multi = || MultiNodeCheckpointManager::new(place.clone());
        let managers: [&dyn Fn() -> MultiNodeCheckpointManager; 2] = [&single, &multi];
        for manager in managers {
            let runner = |resume| {
                JobRunner::new(pipeline(&["temp_node"])).with_checkpoints(manager()).with_resume(resume)
            };
            let mut session = LocalSession::new();
            assert_eq!(runner(Resume::Fresh).train(&mut session).unwrap(), 4);
            assert_eq!(total(&session, "temp_node"), 145);
            for epoch in 0..=4 {
                let mut session = LocalSession::new();
                assert_eq!(runner(Resume::Epoch(epoch)).train(&mut session).unwrap(), 4, "from {epoch}");
                assert_eq!(total(&session, "temp_node"), 145, "from {epoch}");
            }
            let manager = manager();
            manager.init(&nodes(&["temp_node"]), None).unwrap();
            for (epoch, expected) in (1..).zip(TOTALS) {
                let mut session = LocalSession::new();
                session.run(&manager.load(epoch).unwrap(), epoch).unwrap();
                assert_eq!(total(&session, "temp_node"), expected);
            }
        }
    });
}

/// `checkpoint_test` 2: names of dbs, and blobs of several nodes' checkpoints loaded without training.
#[test]
fn blobs_of_all_nodes_are_loaded_for_evaluation_or_none() {
    on_every_store(|place| {
        let names = ["trainer_0", "trainer_1", "trainer_2"];
        let manager = MultiNodeCheckpointManager::new(place.clone());
        manager.init(&nodes(&names), None).unwrap();
        for node in names {
            let expected = format!("{}/{node}.5", place.prefix());
            assert_eq!(manager.get_ckpt_db_name(&Node::new(node), 5).unwrap(), expected);
            let mut runner = JobRunner::new(pipeline(&[node]))
                .with_checkpoints(CheckpointManager::new(place.clone(), node).unwrap())
                .with_resume(Resume::Fresh);
            assert_eq!(runner.train(&mut LocalSession::new()).unwrap(), 4);
        }
        let runner = JobRunner::new(pipeline(&names)).with_checkpoints(manager);
        let wanted = Selection::names(["total"]);
        for (epoch, expected) in (1..).zip(TOTALS) {
            let mut session = LocalSession::new();
            assert!(runner.load_blobs_from_checkpoints(&wanted, epoch, &mut session).unwrap());
            for node in names {
                assert_eq!(total(&session, node), expected);
                assert_eq!(
                    session.workspace(&Node::new(node)).unwrap().snapshot().len(),
                    1,
                    "only what was asked for"
                );
            }
        }
        let mut session = LocalSession::new();
        assert!(!runner.load_blobs_from_checkpoints(&wanted, 5, &mut session).unwrap());
        place.destroy("trainer_2", 3).unwrap();
        assert!(!runner.load_blobs_from_checkpoints(&wanted, 3, &mut session).unwrap());
        let unknown = Selection::names(["total", "nowhere"]);
        let error = runner.load_blobs_from_checkpoints(&unknown, 4, &mut session).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("`nowhere`"), "{error}");
        for node in names {
            assert!(
                session.workspace(&Node::new(node)).unwrap().snapshot().is_empty(),
                "nothing was changed"
            );
        }
    });
}

/// A node whose data is damaged must not leave the others' workspaces half changed.
#[test]
fn a_partial_load_that_fails_on_one_node_changes_no_node() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(&registry(), "files", dir.path());
    let mut runner = JobRunner::new(pipeline(&["a", "b"]))
        .with_checkpoints(MultiNodeCheckpointManager::new(place.clone()));
    runner.train(&mut LocalSession::new()).unwrap();
    let file = dir.path().join("b.2");
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes
        .windows(8)
        .position(|window| window == 136i64.to_le_bytes() || window == 115i64.to_le_bytes())
        .unwrap();
    bytes[at] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let mut session = LocalSession::new();
    let error =
        runner.load_blobs_from_checkpoints(&Selection::names(["total"]), 2, &mut session).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("blob `total`"), "{error}");
    assert!(session.workspace(&Node::new("a")).unwrap().snapshot().is_empty());
}

/// A blob that only one node holds is found there, and blobs of different nodes together make up what was asked for.
#[test]
fn names_are_looked_for_on_all_nodes() {
    on_every_store(|place| {
        let mut job = Job::new();
        for (node, own) in [("a", "only_a"), ("b", "only_b")] {
            job.init_group.add(Task::new("init", node, move |task| {
                task.set(own, Tensor::scalar(1u8));
                task.set("both", Tensor::scalar(2u8));
                Ok(())
            }));
        }
        epoch_limiter(&mut job, 1).unwrap();
        let mut runner = JobRunner::new(job).with_checkpoints(MultiNodeCheckpointManager::new(place.clone()));
        runner.train(&mut LocalSession::new()).unwrap();
        let names_of = |selection: Selection| {
            let mut session = LocalSession::new();
            assert!(runner.load_blobs_from_checkpoints(&selection, 1, &mut session).unwrap());
            let of = |node| {
                session
                    .workspace(&Node::new(node))
                    .unwrap()
                    .snapshot()
                    .names()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            };
            (of("a"), of("b"))
        };
        let own = (vec!["only_a".to_owned()], vec!["only_b".to_owned()]);
        assert_eq!(names_of(Selection::names(["only_a", "only_b"])), own);
        assert_eq!(names_of(Selection::globs(["only_*"])), own);
        assert_eq!(names_of(Selection::names(["only_b"])), (Vec::new(), own.1.clone()));
        let all = names_of(Selection::All).0;
        let ours = all.iter().filter(|name| *name != "blob_names").collect::<Vec<_>>();
        assert_eq!(ours, ["both", "only_a"], "and Caffe2's list of names where it belongs");
    });
}

/// Copies dbs by hand, as the test's own builder does.
struct ToDirectory(Checkpoints);

impl UploadTaskGroupBuilder for ToDirectory {
    fn build(&self, epoch: u64, manager: &MultiNodeCheckpointManager) -> Result<TaskGroup> {
        let task = |manager: Arc<CheckpointManager>| {
            let to = self.0.clone();
            Task::new("upload", Node::new(manager.node()), move |_: &TaskContext| {
                manager.place().copy_to(manager.node(), epoch, &to).map(drop)
            })
        };
        Ok(manager.managers().into_iter().map(task).collect())
    }
}

/// `checkpoint_test` 3: the last epoch is uploaded, by a builder of one's own and by ours, to another db_type.
#[test]
fn the_last_epoch_is_uploaded() {
    on_every_store(|place| {
        for db_type in LOCAL {
            let dir = tempfile::tempdir().unwrap();
            let (own, ours) = (dir.path().join("own"), dir.path().join("ours"));
            let registry = registry();
            let own = self::place(&registry, db_type, &own);
            let ours = self::place(&registry, db_type, &ours);
            assert!(!ours.exists("trainer_0", 4).unwrap());
            let runner = || {
                JobRunner::new(pipeline(&["trainer_0", "trainer_1"]))
                    .with_checkpoints(MultiNodeCheckpointManager::new(place.clone()))
            };
            runner().with_upload(ToDirectory(own.clone())).train(&mut LocalSession::new()).unwrap();
            let upload = StoreUpload::new(ours.clone());
            runner().with_upload(upload.clone()).train(&mut LocalSession::new()).unwrap();
            assert_eq!(upload.reports().len(), 2);
            for node in ["trainer_0", "trainer_1"] {
                assert_eq!(own.load(node, 4).unwrap(), place.load(node, 4).unwrap());
                assert!(ours.verify(node, 4).unwrap().is_ok());
                assert!(!ours.exists(node, 3).unwrap());
            }
            assert_eq!(own.latest_complete().unwrap(), None, "our record is what makes it count");
            assert_eq!(ours.latest_complete().unwrap(), Some(4));
            // What was uploaded is where a job can go on.
            let manager = MultiNodeCheckpointManager::new(place.clone()).with_resume_place(ours.clone());
            let mut session = LocalSession::new();
            let mut resumed = JobRunner::new(pipeline(&["trainer_0", "trainer_1"])).with_checkpoints(manager);
            assert_eq!(resumed.train(&mut session).unwrap(), 4);
            assert_eq!(resumed.report().resumed_from, Some(4));
            assert_eq!(total(&session, "trainer_1"), 145);
        }
    });
}

/// `checkpoint_test` 4: Caffe2's job runs to its end although no checkpoint can be saved. Here that has to be asked for.
#[test]
fn a_save_that_fails_fails_the_job_unless_the_policy_says_otherwise() {
    for db_type in ["files", "rocksdb", "lmdb"] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "in the way").unwrap();
        let place = place(&registry(), db_type, &file);
        let runner = |then| {
            JobRunner::new(pipeline(&["a"]))
                .with_checkpoints(MultiNodeCheckpointManager::new(place.clone()))
                .with_resume(Resume::Fresh)
                .with_save_policy(no_retries(then))
        };
        let error = runner(OnSaveFailure::Fail).train(&mut LocalSession::new()).unwrap_err();
        assert!(error.to_string().contains("cannot save epoch 0"), "{error}");
        let mut session = LocalSession::new();
        let mut warned = runner(OnSaveFailure::WarnUpTo(5));
        assert_eq!(warned.train(&mut session).unwrap(), 4);
        assert_eq!(total(&session, "a"), 145);
        let unsaved: Vec<u64> = warned.report().unsaved.iter().map(|(epoch, _)| *epoch).collect();
        assert_eq!(unsaved, [0, 1, 2, 3, 4]);
        let error = runner(OnSaveFailure::WarnUpTo(2)).train(&mut LocalSession::new()).unwrap_err();
        assert!(error.to_string().contains("cannot save epoch 2"), "{error}");
        assert_eq!(std::fs::read(&file).unwrap(), b"in the way");
    }
}

/// `checkpoint_test` 5: the download group runs after the epochs.
#[test]
fn the_download_group_runs_after_the_epochs_and_before_exit() {
    let mut job = Job::new();
    job.init_group.add(Task::new("init", "n", |task| {
        for name in ["input1", "input2", "output", "download_result"] {
            task.set(name, Tensor::from_vec([8], vec![1.0f32; 8])?);
        }
        Ok(())
    }));
    job.epoch_group.add(Task::new("add", "n", |task| {
        let (a, b) = (task.tensor("input1")?, task.tensor("input2")?);
        let sum = a.as_slice::<f32>()?.iter().zip(b.as_slice::<f32>()?).map(|(a, b)| a + b).collect();
        task.set("output", Tensor::from_vec([8], sum)?);
        Ok(())
    }));
    job.download_group.add(Task::new("download", "n", |task| {
        task.set("download_result", task.get("output")?);
        Ok(())
    }));
    job.exit_group.add(Task::new("exit", "n", |task| {
        assert_eq!(task.tensor("download_result")?.as_slice::<f32>()?, [2.0; 8]);
        task.set("exited", Tensor::scalar(true));
        Ok(())
    }));
    epoch_limiter(&mut job, 1).unwrap();
    let mut session = LocalSession::new();
    assert_eq!(JobRunner::new(job).train(&mut session).unwrap(), 1);
    assert!(session.fetch_bool(&TaskOutput::new("n", "exited")).unwrap());
}

/// `checkpoint_test` 6: one manager, one session and one job, used again and again.
#[test]
fn a_runner_is_used_again() {
    on_every_store(|place| {
        let mut session = LocalSession::new();
        let mut runner = JobRunner::new(pipeline(&["t0", "t1", "t2"]))
            .with_checkpoints(MultiNodeCheckpointManager::new(place.clone()));
        assert_eq!(runner.train(&mut session).unwrap(), 4);
        for epoch in 1..=4 {
            runner.set_resume(Resume::Epoch(epoch));
            assert_eq!(runner.train(&mut session).unwrap(), 4);
            assert_eq!(runner.report().resumed_from, Some(epoch));
            assert_eq!(runner.report().trained, (epoch + 1..=4).collect::<Vec<_>>());
            for node in ["t0", "t1", "t2"] {
                assert_eq!(total(&session, node), 145);
            }
        }
    });
}

#[test]
fn a_finished_job_runs_no_further_epoch_and_a_raised_limit_trains_on() {
    on_every_store(|place| {
        let runner = |limit| {
            let mut job = Job::new();
            job.init_group.add(Task::new("init", "n", |task| {
                task.set("count", Tensor::scalar(0i64));
                Ok(())
            }));
            job.epoch_group.add(Task::new("count", "n", |task| {
                let count = task.tensor("count")?.as_slice::<i64>()?[0];
                assert_eq!(count + 1, task.epoch() as i64);
                task.set("count", Tensor::scalar(count + 1));
                Ok(())
            }));
            epoch_limiter(&mut job, limit).unwrap();
            JobRunner::new(job).with_checkpoints(MultiNodeCheckpointManager::new(place.clone()))
        };
        assert_eq!(runner(3).train(&mut LocalSession::new()).unwrap(), 3);
        let mut again = runner(3);
        assert_eq!(again.train(&mut LocalSession::new()).unwrap(), 3);
        assert_eq!((again.report().resumed_from, again.report().trained.len()), (Some(3), 0));
        let mut raised = runner(5);
        assert_eq!(raised.train(&mut LocalSession::new()).unwrap(), 5);
        assert_eq!(raised.report().trained, [4, 5]);
    });
}

#[test]
fn blobs_made_during_an_epoch_are_saved_too() {
    on_every_store(|place| {
        let mut job = pipeline(&["n"]);
        job.epoch_group.add(Task::new("late", "n", |task| {
            task.set("moment", Tensor::scalar(task.epoch() as i64));
            Ok(())
        }));
        JobRunner::new(job)
            .with_checkpoints(MultiNodeCheckpointManager::new(place.clone()))
            .train(&mut LocalSession::new())
            .unwrap();
        assert_eq!(place.load("n", 2).unwrap().tensor("moment").unwrap(), &Tensor::scalar(2i64));
    });
}

/// Resuming walks back past what is damaged, deletes none of it, and never starts over what it cannot read.
#[test]
fn resume_takes_the_newest_epoch_that_is_intact_on_every_node() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(&registry(), "files", dir.path());
    let runner = || {
        JobRunner::new(pipeline(&["a", "b"])).with_checkpoints(MultiNodeCheckpointManager::new(place.clone()))
    };
    runner().train(&mut LocalSession::new()).unwrap();
    let damage = |epoch: u64, node: &str| {
        let file = dir.path().join(format!("{node}.{epoch}"));
        let mut bytes = std::fs::read(&file).unwrap();
        // The first record begins after the header; it holds small blobs.
        bytes[4096] ^= 0xff;
        std::fs::write(&file, bytes).unwrap();
    };
    damage(4, "b");
    place.destroy("a", 3).unwrap();
    let mut session = LocalSession::new();
    let mut resumed = runner();
    // Epoch 4 is damaged and of epoch 3 a db is gone.
    assert_eq!(resumed.train(&mut session).unwrap(), 4);
    assert_eq!(resumed.report().resumed_from, Some(2));
    assert_eq!((total(&session, "a"), total(&session, "b")), (145, 145));
    damage(4, "a");
    let mut exact = runner().with_resume(Resume::Epoch(4));
    let error = exact.train(&mut LocalSession::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("damaged") && error.to_string().contains("a.4"), "{error}");
    let missing = runner().with_resume(Resume::Epoch(9)).train(&mut LocalSession::new()).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    for epoch in 0..=3 {
        damage(epoch, "a");
    }
    let error = runner().train(&mut LocalSession::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("no epoch can be resumed from"), "{error}");
    for epoch in 0..=4 {
        assert!(
            place.exists("a", epoch).unwrap() && place.exists("b", epoch).unwrap(),
            "nothing was deleted"
        );
    }
}

/// The dbs of an epoch must be of one attempt: a save that only one node finished does not make the epoch count.
#[test]
fn dbs_of_two_attempts_do_not_mix() {
    on_every_store(|place| {
        let runner = || {
            JobRunner::new(pipeline(&["a", "b"]))
                .with_checkpoints(MultiNodeCheckpointManager::new(place.clone()))
        };
        runner().train(&mut LocalSession::new()).unwrap();
        let mut other = Workspace::new();
        other.insert("total", Tensor::from_slice([1], &[0i64]).unwrap());
        place.save(&other, "a", 4).unwrap();
        let mut session = LocalSession::new();
        let mut resumed = runner();
        resumed.train(&mut session).unwrap();
        assert_eq!(resumed.report().resumed_from, Some(3));
        assert_eq!(total(&session, "a"), 145);
    });
}

#[test]
fn resume_from_another_place_saves_to_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let registry = registry();
    let old = place(&registry, "lmdb", &dir.path().join("old"));
    let new = place(&registry, "rocksdb", &dir.path().join("new"));
    let mut job = pipeline(&["n"]);
    epoch_limiter(&mut job, 2).unwrap();
    JobRunner::new(job)
        .with_checkpoints(MultiNodeCheckpointManager::new(old.clone()))
        .train(&mut LocalSession::new())
        .unwrap();
    let manager = MultiNodeCheckpointManager::new(new.clone()).with_resume_place(old.clone());
    let mut session = LocalSession::new();
    let mut runner = JobRunner::new(pipeline(&["n"])).with_checkpoints(manager);
    assert_eq!(runner.train(&mut session).unwrap(), 4);
    assert_eq!((runner.report().resumed_from, total(&session, "n")), (Some(2), 145));
    let epochs =
        |place: &Checkpoints| place.list().unwrap().into_iter().map(|db| db.epoch).collect::<Vec<_>>();
    assert_eq!((epochs(&old), epochs(&new)), (vec![0, 1, 2], vec![3, 4]));
}

/// A handler that notes the calls, and refuses the store for some time.
#[derive(Debug)]
struct Noting {
    calls: Mutex<Vec<String>>,
    refuse: AtomicU32,
    records: RecordsHandler,
}

impl Noting {
    fn new(refuse: u32) -> Arc<Self> {
        Arc::new(Self {
            calls: Mutex::default(),
            refuse: AtomicU32::new(refuse),
            records: RecordsHandler::new(),
        })
    }

    fn note(&self, call: String) {
        self.calls.lock().unwrap().push(call);
    }
}

impl MetadataHandler for Noting {
    fn set_params(&self, params: &JobParams) -> Result<()> {
        self.note(format!("set_params {:?}", params.nodes));
        self.records.set_params(params)
    }

    fn last_epoch(&self, user_epoch: Option<u64>) -> Result<Option<u64>> {
        self.note(format!("last_epoch {user_epoch:?}"));
        self.records.last_epoch(user_epoch)
    }

    fn write(&self, record: &EpochRecord) -> Result<()> {
        self.note(format!("write {}", record.epoch));
        self.records.write(record)
    }

    fn cp_accessible(&self, epoch: Option<u64>) -> Result<bool> {
        self.note(format!("cp_accessible {epoch:?}"));
        let left = self.refuse.load(Ordering::SeqCst);
        self.refuse.store(left.saturating_sub(1), Ordering::SeqCst);
        Ok(left == 0)
    }

    fn report(&self, action: Action, stats: &[NodeStat]) -> Result<()> {
        let dbs: Vec<_> = stats.iter().map(|stat| stat.db.rsplit('/').next().unwrap().to_owned()).collect();
        self.note(format!("report {action} {dbs:?}"));
        if action == Action::Save { Err(Error::invalid("the reports are not wanted")) } else { Ok(()) }
    }
}

#[test]
fn the_handler_is_called_in_order_and_a_store_that_is_away_is_retried() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(&registry(), "files", dir.path());
    let run = |refuse, retries| {
        let handler = Noting::new(refuse);
        let manager =
            MultiNodeCheckpointManager::new(place.clone()).with_handler(Arc::clone(&handler) as Arc<_>);
        let mut job = pipeline(&["a", "b"]);
        epoch_limiter(&mut job, 1).unwrap();
        let policy = SavePolicy { retries, backoff: Duration::from_millis(1), then: OnSaveFailure::Fail };
        let outcome = JobRunner::new(job)
            .with_checkpoints(manager)
            .with_save_policy(policy)
            .train(&mut LocalSession::new());
        (outcome, handler.calls.lock().unwrap().clone())
    };
    let (outcome, _) = run(3, 2);
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
    let (outcome, calls) = run(2, 2);
    assert_eq!(outcome.unwrap(), 1);
    let expected = [
        r#"set_params ["a", "b"]"#,
        "last_epoch None",
        "cp_accessible Some(0)",
        "cp_accessible Some(0)",
        "cp_accessible Some(0)",
        "write 0",
        r#"report checkpoint_save ["a.0", "b.0"]"#,
        "cp_accessible Some(1)",
        "write 1",
        r#"report checkpoint_save ["a.1", "b.1"]"#,
    ];
    assert_eq!(calls, expected);
    let (outcome, calls) = run(0, 0);
    assert_eq!(outcome.unwrap(), 1);
    assert_eq!(calls[2..], [r#"report checkpoint_load ["a.1", "b.1"]"#], "a finished job saves nothing");
}

#[test]
fn an_epoch_that_fails_leaves_the_last_checkpoint_and_names_node_and_task() {
    on_every_store(|place| {
        let mut job = pipeline(&["a", "b"]);
        job.epoch_group.add(Task::new("explode", "b", |task| {
            assert!(task.epoch() != 3, "on purpose");
            Ok(())
        }));
        let mut runner = JobRunner::new(job).with_checkpoints(MultiNodeCheckpointManager::new(place.clone()));
        let error = runner.train(&mut LocalSession::new()).unwrap_err();
        assert!(error.to_string().contains("explode") && error.to_string().contains('b'), "{error}");
        assert_eq!(place.latest_complete().unwrap(), Some(2));
        let mut session = LocalSession::new();
        let mut resumed = JobRunner::new(pipeline(&["a", "b"]))
            .with_checkpoints(MultiNodeCheckpointManager::new(place.clone()));
        assert_eq!(resumed.train(&mut session).unwrap(), 4);
        assert_eq!((resumed.report().resumed_from, total(&session, "b")), (Some(2), 145));
    });
}

#[test]
fn wrong_uses_say_so() {
    let kind = |result: Result<u64>| result.unwrap_err().kind();
    let mut session = LocalSession::new();
    let mut runner = JobRunner::new(pipeline(&["a"])).with_resume(Resume::Epoch(1));
    assert_eq!(kind(runner.train(&mut session)), ErrorKind::InvalidInput);
    let dir = tempfile::tempdir().unwrap();
    let place = place(&registry(), "files", dir.path());
    let mut job = pipeline(&["a"]);
    epoch_limiter(&mut job, 1).unwrap();
    let mut runner = JobRunner::new(job).with_upload(StoreUpload::new(place.clone()));
    assert_eq!(kind(runner.train(&mut session)), ErrorKind::InvalidInput, "an upload without checkpoints");
    let mut runner =
        JobRunner::new(pipeline(&["a/b"])).with_checkpoints(MultiNodeCheckpointManager::new(place));
    assert_eq!(
        kind(runner.train(&mut session)),
        ErrorKind::InvalidInput,
        "a node that no file can be named after"
    );
}
