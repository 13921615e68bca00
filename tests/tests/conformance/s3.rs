//! What only a store behind a network must hold.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ckpt_engine::db::{Driver, DriverOptions, PutMode, Registry, Source};
use ckpt_engine::{Effect, ErrorKind, Result};
use ckpt_tests::data::{blobs, noise};
use ckpt_tests::s3_server::Answer;
use ckpt_tests::stores::{Request, Store, s3_server};

use crate::support::{assert_holds, entries, open, verify, write};
use crate::{Case, cases};

pub const CASES: &[Case] = cases! {
    only on "s3": "it is not behind a network";
    exists_is_one_request_whatever_the_size;
    more_than_a_thousand_objects_are_listed;
    a_bucket_that_is_not_there_is_an_error;
    refused_access_is_not_absence;
    no_server_is_an_error_within_bounds;
    a_failed_write_ends_its_upload;
    a_failing_server_is_asked_again;
    a_server_that_keeps_failing_is_an_error;
    lost_connections_while_reading_are_asked_again;
    a_lost_answer_to_a_commit_is_no_lie;
    a_lost_answer_to_a_creation_is_no_lie;
};

/// Names the place that a child process is to look at.
const PROBE: &str = "CKPT_TESTS_PROBE";

/// No call may keep its caller for longer when there is nobody to answer.
const BOUND: Duration = Duration::from_secs(60);

fn is_read(request: &Request) -> bool {
    request.method == "GET" || request.method == "HEAD"
}

fn exists_is_one_request_whatever_the_size(store: &Store) {
    store.checkpoints().save(&blobs(3, 7 << 20, 1), "n", 1).unwrap();
    for (name, there) in [("n.1", true), ("n.2", false)] {
        let before = store.requests().len();
        assert_eq!(store.driver().exists(&store.source(name)).unwrap(), there);
        let requests = store.requests().split_off(before);
        assert_eq!(requests.len(), 1, "{requests:?}");
        assert_eq!(requests[0].method, "HEAD");
    }
    let before = store.requests().len();
    store.checkpoints().open("n", 1).unwrap();
    let requests = store.requests().split_off(before);
    assert!(requests.len() <= 2 && requests.iter().all(is_read), "opening is a read or two: {requests:?}");
    verify(&store.checkpoints(), "n", 1);
}

fn more_than_a_thousand_objects_are_listed(store: &Store) {
    let folder = store.folder().unwrap();
    fs::create_dir_all(&folder).unwrap();
    let mut names: Vec<String> = (0..1234).map(|epoch| format!("n.{epoch}")).collect();
    for name in &names {
        fs::write(folder.join(name), "").unwrap();
    }
    let mut listed = store.driver().list(&store.prefix()).unwrap();
    listed.sort_unstable();
    names.sort_unstable();
    assert_eq!(listed, names);
    assert!(store.requests().len() > 1, "a page has a thousand");
}

fn a_bucket_that_is_not_there_is_an_error(store: &Store) {
    let (driver, source) = (store.driver(), Source::new("no-such-bucket/run", "n.1"));
    assert_eq!(driver.list(source.prefix()).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(driver.open(&source).unwrap_err().kind(), ErrorKind::NotFound);
    let error = write(&*driver, &source, &entries(["x"])).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::NotFound, Effect::None), "{error:?}");
    assert!(error.to_string().contains("no-such-bucket"), "{error}");
}

/// What every kind of call comes to in a process with this environment.
fn outcomes_in(store: &Store, environment: &[(&str, &str)]) -> BTreeMap<String, String> {
    let started = Instant::now();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.env(PROBE, store.prefix()).envs(environment.iter().copied());
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(started.elapsed() < BOUND, "it took {:?}: {text}", started.elapsed());
    let outcomes = text.lines().filter_map(|line| line.split_once(": "));
    outcomes.map(|(call, outcome)| (call.to_owned(), outcome.to_owned())).collect()
}

/// The place to probe, if this process is the child of [`outcomes_in`].
pub fn asked_to_probe() -> Option<String> {
    std::env::var(PROBE).ok()
}

/// The child: tries every kind of call at once and prints the outcomes.
pub fn probe(prefix: &str) {
    let mut registry = Registry::new();
    ckpt_backends::register_all(&mut registry);
    let driver = registry.driver("s3", DriverOptions::new()).unwrap();
    type Call = fn(&dyn Driver, &str) -> Result<String>;
    let calls: [(&str, Call); 7] = [
        ("exists", |driver, prefix| Ok(driver.exists(&Source::new(prefix, "n.1"))?.to_string())),
        ("open", |driver, prefix| driver.open(&Source::new(prefix, "n.1")).map(|_| "opened".to_owned())),
        ("list", |driver, prefix| Ok(driver.list(prefix)?.join(" "))),
        ("destroy", |driver, prefix| {
            // Not the db that the other calls look at meanwhile.
            driver.destroy(&Source::new(prefix, "n.2")).map(|()| "destroyed".to_owned())
        }),
        ("write", |driver, prefix| {
            write(driver, &Source::new(prefix, "n.3"), &entries(["y"])).map(|()| "written".to_owned())
        }),
        ("record", |driver, prefix| Ok(format!("{:?}", driver.records(prefix)?.get("epoch.1")?))),
        ("records", |driver, prefix| Ok(format!("{:?}", driver.records(prefix)?.list()?))),
    ];
    std::thread::scope(|scope| {
        for (name, call) in calls {
            let driver = &driver;
            scope.spawn(move || {
                let outcome =
                    call(&**driver, prefix).unwrap_or_else(|error| format!("{:?} {error}", error.kind()));
                println!("{name}: {outcome}");
            });
        }
    });
}

fn assert_all_unavailable(outcomes: &BTreeMap<String, String>) {
    assert_eq!(outcomes.len(), 7, "{outcomes:?}");
    for (call, outcome) in outcomes {
        assert!(outcome.starts_with("Unavailable "), "{call}: {outcome}");
    }
}

fn refused_access_is_not_absence(store: &Store) {
    write(&*store.driver(), &store.source("n.1"), &entries(["x"])).unwrap();
    assert_eq!(outcomes_in(store, &[])["exists"], "true", "with the right ones it works");
    write(&*store.driver(), &store.source("n.1"), &entries(["x"])).unwrap();
    for wrong in [[("AWS_SECRET_ACCESS_KEY", "wrong")], [("AWS_ACCESS_KEY_ID", "wrong")]] {
        assert_all_unavailable(&outcomes_in(store, &wrong));
    }
    assert_holds(&*open(&store.driver(), &store.source("n.1")), &entries(["x"]));
    assert_eq!(store.leftovers(), [""; 0]);
}

fn no_server_is_an_error_within_bounds(store: &Store) {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = format!("http://127.0.0.1:{port}");
    assert_all_unavailable(&outcomes_in(store, &[("AWS_ENDPOINT_URL", endpoint.as_str())]));
}

fn a_failed_write_ends_its_upload(store: &Store) {
    let put = entries([noise(20 << 20, 1), noise(20 << 20, 2)]);
    let outcome =
        store.driver().write(&store.source("n.1"), &crate::support::plan(&put), &mut |transaction| {
            for (key, value) in &put {
                transaction.put(key, value.clone().into())?;
            }
            Err(ckpt_engine::Error::new(ErrorKind::Full, "on purpose"))
        });
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Full);
    let begun = store.requests().iter().filter(|request| request.path.contains("?uploads")).count();
    assert!(begun > 0, "so much is not sent in one piece");
    assert_eq!(store.leftovers(), [""; 0]);
    assert_eq!(s3_server().keys(store.bucket().unwrap()).unwrap(), [""; 0]);
}

/// Spoils every `nth` of the requests that `which` picks.
fn spoil_every(store: &Store, nth: usize, answer: Answer, which: fn(&Request) -> bool) {
    let count = AtomicUsize::new(0);
    store.spoil(move |request| {
        let spoiled = which(request) && count.fetch_add(1, Ordering::Relaxed) % nth == nth - 1;
        if spoiled { answer } else { Answer::Serve }
    });
}

fn a_failing_server_is_asked_again(store: &Store) {
    let saved = blobs(4, 7 << 20, 1);
    for answer in [Answer::Refuse(503), Answer::Refuse(500)] {
        spoil_every(store, 3, answer, |_| true);
        store.checkpoints().save(&saved, "n", 1).unwrap();
        assert_eq!(store.checkpoints().load("n", 1).unwrap(), saved);
        store.spoil(|_| Answer::Serve);
        verify(&store.checkpoints(), "n", 1);
    }
}

fn a_server_that_keeps_failing_is_an_error(store: &Store) {
    let saved = blobs(2, 100, 1);
    store.checkpoints().save(&saved, "n", 1).unwrap();
    store.spoil(|_| Answer::Refuse(503));
    let started = Instant::now();
    let driver = store.driver();
    let errors = [
        driver.exists(&store.source("n.1")).unwrap_err(),
        driver.open(&store.source("n.1")).unwrap_err(),
        driver.list(&store.prefix()).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    }
    assert!(started.elapsed() < 3 * BOUND, "{:?}", started.elapsed());
    store.spoil(|_| Answer::Serve);
    verify(&store.checkpoints(), "n", 1);
}

fn lost_connections_while_reading_are_asked_again(store: &Store) {
    let saved = blobs(4, 7 << 20, 1);
    store.checkpoints().save(&saved, "n", 1).unwrap();
    spoil_every(store, 3, Answer::HangUp, is_read);
    assert_eq!(store.checkpoints().load("n", 1).unwrap(), saved);
    store.spoil(|_| Answer::Serve);
    verify(&store.checkpoints(), "n", 1);
}

fn a_lost_answer_to_a_commit_is_no_lie(store: &Store) {
    let (older, newer) = (blobs(2, 100, 1), blobs(3, 9 << 20, 2));
    for (epoch, saved) in [(1, &newer), (2, &blobs(2, 50, 3))] {
        store.checkpoints().save(&older, "n", epoch).unwrap();
        // The request that commits: the one that completes an upload, or the only one.
        let lost = AtomicUsize::new(0);
        store.spoil(move |request| {
            let commits = match request.method.as_str() {
                "POST" => request.path.contains("uploadId="),
                "PUT" => !request.path.contains("uploadId="),
                _ => false,
            };
            let first = commits && lost.fetch_add(1, Ordering::Relaxed) == 0;
            if first { Answer::ServeAndHangUp } else { Answer::Serve }
        });
        let outcome = store.checkpoints().save(saved, "n", epoch);
        store.spoil(|_| Answer::Serve);
        if let Err(error) = outcome {
            assert_eq!(error.effect(), Effect::MayHaveHappened, "it did happen: {error:?}");
        }
        assert_eq!(&store.checkpoints().load("n", epoch).unwrap(), saved);
        verify(&store.checkpoints(), "n", epoch);
    }
    assert_eq!(store.leftovers(), [""; 0]);
}

fn a_lost_answer_to_a_creation_is_no_lie(store: &Store) {
    let records = store.driver().records(&store.prefix()).unwrap();
    let lost = AtomicUsize::new(0);
    store.spoil(move |request| {
        let first = request.method == "PUT" && lost.fetch_add(1, Ordering::Relaxed) == 0;
        if first { Answer::ServeAndHangUp } else { Answer::Serve }
    });
    let outcome = records.put("lease", Bytes::from_static(b"mine"), PutMode::Create);
    store.spoil(|_| Answer::Serve);
    // It was created by this call. To be told that someone else was faster would be wrong.
    if let Err(error) = outcome {
        assert_ne!(error.kind(), ErrorKind::AlreadyExists, "{error:?}");
        assert_eq!(error.effect(), Effect::MayHaveHappened, "{error:?}");
    }
    assert_eq!(records.get("lease").unwrap().unwrap(), "mine");
}
