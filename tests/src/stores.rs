//! Every db_type at a fresh place that the suites can look into, damage and count.
//!
//! The `s3` store is the server of [`s3_server`](crate::s3_server), one for the process; every [`Store`] has a bucket of its own
//! there. Drivers find it through the environment, so a suite calls [`init`] before it starts any thread.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ckpt_engine::Checkpoints;
use ckpt_engine::db::{Driver, DriverOptions, Layout, Registry, Source};
use tempfile::TempDir;

use crate::s3_server::{Answer, Hook, S3Server};

/// The db_types that pass every suite.
pub const DB_TYPES: [&str; 7] = ["memory", "files", "rocksdb", "lmdb", "minidb", "leveldb", "s3"];

/// The folder or key prefix under a place's root where dbs go. It is not made in advance.
const RUN: &str = "run";

/// A db_type at a place of its own, which is removed when it is dropped.
pub struct Store {
    db_type: &'static str,
    registry: Registry,
    place: Place,
}

enum Place {
    Process,
    Folder(TempDir),
    Bucket(String),
}

impl Store {
    /// A fresh place.
    pub fn fresh(db_type: &'static str) -> Self {
        let mut registry = Registry::new();
        ckpt_backends::register_all(&mut registry);
        let place = match db_type {
            "memory" => Place::Process,
            "s3" => Place::Bucket(fresh_bucket()),
            _ => Place::Folder(tempfile::tempdir().unwrap()),
        };
        Self { db_type, registry, place }
    }

    /// The db_type.
    pub fn db_type(&self) -> &'static str {
        self.db_type
    }

    /// The backends, as a program would have them.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// A new driver value: what it sees is in the store, not in a driver.
    pub fn driver(&self) -> Arc<dyn Driver> {
        self.registry.driver(self.db_type, DriverOptions::new()).unwrap()
    }

    /// The prefix of the place, in the driver's syntax.
    pub fn prefix(&self) -> String {
        match &self.place {
            Place::Process => RUN.to_owned(),
            Place::Folder(folder) => folder.path().join(RUN).to_str().unwrap().to_owned(),
            Place::Bucket(bucket) => format!("{bucket}/{RUN}"),
        }
    }

    /// Where the db `name` is.
    pub fn source(&self, name: &str) -> Source {
        Source::new(self.prefix(), name)
    }

    /// The place, opened anew. Every store passes the suites in the native layout, also those that prefer Caffe2's.
    pub fn checkpoints(&self) -> Checkpoints {
        Checkpoints::new(self.driver(), self.prefix()).with_layout(Layout::Native)
    }

    /// The folder that the dbs are in, of stores that keep files: of `s3`, the server's.
    pub fn folder(&self) -> Option<PathBuf> {
        match &self.place {
            Place::Process => None,
            Place::Folder(folder) => Some(folder.path().join(RUN)),
            Place::Bucket(bucket) => Some(s3().server.root().join(bucket).join(RUN)),
        }
    }

    /// The files that hold the db `name`, sorted. Empty if there is none.
    pub fn files(&self, name: &str) -> Vec<PathBuf> {
        let mut files = Vec::new();
        if let Some(folder) = self.folder() {
            collect_files(&folder.join(name), &mut files);
        }
        files.sort_unstable();
        files
    }

    /// What dead or failed writes have left in the place: staged files and folders, uploads that nobody ended.
    pub fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        if let Some(folder) = self.folder() {
            for folder in [folder.clone(), folder.join(".ckpt")] {
                let entries = fs::read_dir(folder).into_iter().flatten();
                let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
                left.extend(names.filter(|name| name.starts_with('.') && name != ".ckpt"));
            }
        }
        if let Place::Bucket(bucket) = &self.place {
            let requests = s3().with_bucket(bucket, |bucket| bucket.requests.clone());
            let begun = requests
                .iter()
                .filter(|request| request.method == "POST" && request.path.contains("?uploads"));
            // One may be completed more than once, when an answer is lost.
            let ended: BTreeSet<&str> = requests.iter().filter_map(Request::ends_upload).collect();
            if begun.clone().count() > ended.len() {
                left.push(format!("{} multipart uploads begun, {} ended", begun.count(), ended.len()));
            }
        }
        left
    }

    /// The bucket, of `s3`.
    pub fn bucket(&self) -> Option<&str> {
        match &self.place {
            Place::Bucket(bucket) => Some(bucket),
            _ => None,
        }
    }

    /// The requests that reached the bucket so far, of `s3`.
    pub fn requests(&self) -> Vec<Request> {
        let requests = |bucket| s3().with_bucket(bucket, |bucket| bucket.requests.clone());
        self.bucket().map_or_else(Vec::new, requests)
    }

    /// From now on `spoil` decides on the requests to the bucket, of `s3`.
    pub fn spoil(&self, spoil: impl Fn(&Request) -> Answer + Send + Sync + 'static) {
        if let Some(bucket) = self.bucket() {
            s3().with_bucket(bucket, |bucket| bucket.spoil = Some(Arc::new(spoil)));
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Place::Bucket(bucket) = &self.place {
            s3().buckets().remove(bucket);
            let _ = fs::remove_dir_all(s3().server.root().join(bucket));
        }
    }
}

/// A request to the S3 server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `PUT`, …
    pub method: String,
    /// The path, with the query.
    pub path: String,
}

impl Request {
    /// The id of the multipart upload that it completes or aborts.
    fn ends_upload(&self) -> Option<&str> {
        let id = self.path.split(['?', '&']).find_map(|part| part.strip_prefix("uploadId="));
        id.filter(|_| self.method == "POST" || self.method == "DELETE")
    }
}

/// Decides what becomes of a request.
type Spoil = Arc<dyn Fn(&Request) -> Answer + Send + Sync>;

/// What is known of one bucket.
#[derive(Default)]
struct Bucket {
    requests: Vec<Request>,
    spoil: Option<Spoil>,
}

type Buckets = Arc<Mutex<HashMap<String, Bucket>>>;

/// The S3 server of the process.
struct S3 {
    server: S3Server,
    buckets: Buckets,
}

static S3: OnceLock<S3> = OnceLock::new();

/// Starts the S3 server and points the environment to it. To be called once, first thing in `main`.
pub fn init() {
    let buckets = Buckets::default();
    let seen = Arc::clone(&buckets);
    let hook: Hook = Arc::new(move |method, path| {
        let name = path.trim_start_matches('/').split(['/', '?']).next().unwrap_or_default();
        let request = Request { method: method.to_owned(), path: path.to_owned() };
        let mut buckets = lock(&seen);
        // A bucket that is gone: a client that outlived its test.
        let Some(bucket) = buckets.get_mut(name) else { return Answer::Serve };
        bucket.requests.push(request.clone());
        let spoil = bucket.spoil.clone();
        drop(buckets);
        spoil.map_or(Answer::Serve, |spoil| spoil(&request))
    });
    let server = S3Server::temporary(hook).unwrap();
    for (name, value) in server.environment() {
        // SAFETY: the only other threads are the server's, which read no variables.
        unsafe { std::env::set_var(name, value) };
    }
    assert!(S3.set(S3 { server, buckets }).is_ok(), "`init` is called once");
}

fn s3() -> &'static S3 {
    S3.get().expect("`init` is called first")
}

/// The S3 server of the process.
pub fn s3_server() -> &'static S3Server {
    &s3().server
}

impl S3 {
    fn buckets(&self) -> MutexGuard<'_, HashMap<String, Bucket>> {
        lock(&self.buckets)
    }

    fn with_bucket<T>(&self, name: &str, look: impl FnOnce(&mut Bucket) -> T) -> T {
        look(self.buckets().entry(name.to_owned()).or_default())
    }
}

fn fresh_bucket() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("bucket-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    s3().server.create_bucket(&name).unwrap();
    s3().buckets().insert(name.clone(), Bucket::default());
    name
}

fn collect_files(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            collect_files(&entry.unwrap().path(), files);
        }
    } else if path.exists() {
        files.push(path.to_owned());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
