//! Peak memory: saving, loading, verifying and copying need no more than the budget over the payload.
//!
//! Each measurement is a process of its own, this program again, because the peak of a process never falls. The peak is
//! `VmHWM` of `/proc/self/status`, which counts mapped files too.

use std::process::Command;

use ckpt_engine::checkpoint::Compression;
use ckpt_engine::db::{DriverOptions, Layout, Limits, Registry};
use ckpt_engine::{Checkpoints, Options};
use ckpt_tests::data::blobs;
use ckpt_tests::stores::{self, DB_TYPES, Store};
use libtest_mimic::{Arguments, Trial};

/// What is saved: 48 blobs of 8 MiB.
const BLOBS: usize = 48;
const BLOB_BYTES: usize = 8 << 20;
const PAYLOAD: u64 = (BLOBS * BLOB_BYTES) as u64;

/// What a call may use over the budget: the program itself, stacks, buffers of libraries.
const SLACK: u64 = 64 << 20;

/// A budget that one in-memory copy of the payload would break by far.
const TIGHT: usize = 16 << 20;

/// Tells a child what to do: verb, budget, compression, db_type, prefix, and where a copy goes.
const CHILD: &str = "CKPT_TESTS_CHILD";

fn main() {
    if let Ok(task) = std::env::var(CHILD) {
        let task: Vec<&str> = task.split('\n').collect();
        let [verb, budget, compression, db_type, prefix, other] = task[..] else { panic!("{task:?}") };
        let limits = Limits { memory: budget.parse().unwrap(), ..Limits::default() };
        let options = Options {
            compression: compression.parse().unwrap(),
            limits,
            layout: Some(Layout::Native),
            ..Options::default()
        };
        run(verb, &options, db_type, prefix, other);
        println!("{}", peak());
        return;
    }
    stores::init();
    let mut arguments = Arguments::from_args();
    // One at a time: they fill memory and disk.
    arguments.test_threads.get_or_insert(1);
    let mut trials = Vec::new();
    for db_type in DB_TYPES.into_iter().filter(|db_type| *db_type != "memory") {
        let cases = [
            ("default", Limits::DEFAULT_MEMORY, Compression::None),
            ("tight", TIGHT, Compression::None),
            ("tight", TIGHT, Compression::Zstd(1)),
        ];
        for (name, budget, compression) in cases {
            let name = format!("{db_type}::stays_within_the_{name}_budget::{compression}");
            trials.push(Trial::test(name, move || stays_within(budget, db_type, compression)));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn stays_within(
    budget: usize,
    db_type: &'static str,
    compression: Compression,
) -> Result<(), libtest_mimic::Failed> {
    let store = Store::fresh(db_type);
    let copies = tempfile::tempdir()?;
    let allowed = budget as u64 + SLACK;
    // A save and a load hold the payload; the others hold nothing of it.
    for (verb, payload) in [("save", PAYLOAD), ("load", PAYLOAD), ("verify", 0), ("copy", 0)] {
        let (budget, compression) = (budget.to_string(), compression.to_string());
        let (prefix, other) = (store.prefix(), copies.path().to_str().unwrap());
        let task = [verb, &budget, &compression, db_type, &prefix, other].join("\n");
        let output = Command::new(std::env::current_exe()?).env(CHILD, task).output()?;
        if !output.status.success() {
            return Err(format!("{verb}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let peak: u64 = String::from_utf8(output.stdout)?.trim().parse()?;
        let over = peak.saturating_sub(payload);
        eprintln!("{db_type} {verb} {compression} budget {budget}: {} MiB over the payload", over >> 20);
        if peak < payload {
            return Err(format!("{verb}: a peak of {peak} bytes cannot hold the payload").into());
        }
        if over > allowed {
            return Err(format!("{verb}: {over} bytes over the payload, allowed are {allowed}").into());
        }
    }
    Ok(())
}

fn run(verb: &str, options: &Options, db_type: &str, prefix: &str, other: &str) {
    let mut registry = Registry::new();
    ckpt_backends::register_all(&mut registry);
    let place = |db_type, prefix| {
        let driver = registry.driver(db_type, DriverOptions::new()).unwrap();
        Checkpoints::new(driver, prefix).with_options(options.clone())
    };
    let place_of_test = place(db_type, prefix);
    match verb {
        "save" => drop(place_of_test.save(&blobs(BLOBS, BLOB_BYTES, 1), "n", 1).unwrap()),
        "load" => assert_eq!(place_of_test.load("n", 1).unwrap().len(), BLOBS),
        "verify" => assert!(place_of_test.verify("n", 1).unwrap().is_ok()),
        "copy" => {
            let report = place_of_test.copy_to("n", 1, &place("files", other)).unwrap();
            assert_eq!(report.bytes, PAYLOAD);
        }
        _ => panic!("unknown verb {verb}"),
    }
}

/// The peak of this process's resident memory, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kibibytes << 10
}
