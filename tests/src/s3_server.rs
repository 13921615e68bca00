//! An S3 server in this process, on the loopback interface: crate `s3s-fs` over a folder.
//!
//! It runs on a thread with an async runtime of its own and stops when it is dropped. What S3 promises and `s3s-fs` leaves
//! out is added in `rules`. A [`Hook`] sees every request and may spoil its answer: that is how tests count requests and
//! lose connections.

mod rules;

use std::fmt;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpResponse, StdError};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use rules::Rules;

/// The access key that the server knows.
pub const ACCESS_KEY: &str = "ckpt";
/// The secret that goes with it.
pub const SECRET_KEY: &str = "ckpt-secret";
/// The region it claims to be in. It accepts any.
pub const REGION: &str = "us-east-1";

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is served.
    Serve,
    /// It is not served: the answer is this HTTP status.
    Refuse(u16),
    /// It is not served: the connection is closed.
    HangUp,
    /// It is served, but its answer is lost: the connection is closed.
    ServeAndHangUp,
}

/// Sees a request's method and its path with query before it is served.
pub type Hook = Arc<dyn Fn(&str, &str) -> Answer + Send + Sync>;

/// A running server.
pub struct S3Server {
    address: SocketAddr,
    root: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    // Removed after the thread has ended.
    _temporary: Option<TempDir>,
}

impl S3Server {
    /// Serves `root`, whose folders are the buckets. Port 0 takes a free one.
    pub fn start(root: &Path, port: u16, hook: Hook) -> io::Result<Self> {
        let rules = Rules::new(root).map_err(|error| io::Error::other(format!("{error:?}")))?;
        let mut builder = S3ServiceBuilder::new(rules);
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let service = builder.build();
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let thread = std::thread::Builder::new().name("s3-server".to_owned()).spawn(move || {
            runtime.spawn(serve(listener, service, hook));
            // Ends when the sender is dropped; shutting down then drops the connections where they are.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_timeout(Duration::from_secs(5));
        })?;
        Ok(Self { address, root: root.to_owned(), stop: Some(stop), thread: Some(thread), _temporary: None })
    }

    /// Serves a fresh temporary folder on a free port.
    pub fn temporary(hook: Hook) -> io::Result<Self> {
        let root = tempfile::tempdir()?;
        let mut server = Self::start(root.path(), 0, hook)?;
        server._temporary = Some(root);
        Ok(server)
    }

    /// `http://127.0.0.1:<port>`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The folder that is served.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Makes a bucket, if it is not there yet.
    pub fn create_bucket(&self, name: &str) -> io::Result<()> {
        fs::create_dir_all(self.root.join(name))
    }

    /// The keys of a bucket's objects, sorted.
    pub fn keys(&self, bucket: &str) -> io::Result<Vec<String>> {
        let bucket = self.root.join(bucket);
        let mut keys = Vec::new();
        let mut folders = vec![bucket.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if let Ok(key) = path.strip_prefix(&bucket) {
                    keys.push(key.to_string_lossy().into_owned());
                }
            }
        }
        keys.sort_unstable();
        Ok(keys)
    }

    /// What is left of multipart uploads that were neither completed nor aborted, in all buckets.
    pub fn pending_uploads(&self) -> io::Result<Vec<String>> {
        let names =
            fs::read_dir(&self.root)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let names: io::Result<Vec<String>> = names.collect();
        Ok(names?.into_iter().filter(|name| name.starts_with(".upload")).collect())
    }

    /// The environment that lets a client find the server.
    pub fn environment(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT_URL", self.endpoint()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
        ]
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for S3Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Server").field("address", &self.address).field("root", &self.root).finish()
    }
}

/// A hook that spoils nothing.
pub fn serve_all() -> Hook {
    Arc::new(|_, _| Answer::Serve)
}

async fn serve(listener: std::net::TcpListener, service: S3Service, hook: Hook) {
    let listener = TcpListener::from_std(listener).expect("the listener does not block");
    loop {
        // Out of descriptors, or a client that has gone again: the next one may fare better.
        let Ok((socket, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let _ = socket.set_nodelay(true);
        let (service, hook) = (service.clone(), Arc::clone(&hook));
        tokio::spawn(async move {
            let answer = service_fn(|request| answer(&service, &hook, request.map(Body::from)));
            // How a connection ends is its client's business.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), answer).await;
        });
    }
}

async fn answer(service: &S3Service, hook: &Hook, request: Request<Body>) -> Result<HttpResponse, StdError> {
    let path = request.uri().path_and_query().map_or("", |path| path.as_str());
    let verdict = hook(request.method().as_str(), path);
    match verdict {
        Answer::HangUp => return Err("hung up on purpose".into()),
        Answer::Refuse(status) => {
            let mut refusal = HttpResponse::new(Body::empty());
            *refusal.status_mut() = StatusCode::from_u16(status)?;
            return Ok(refusal);
        }
        Answer::Serve | Answer::ServeAndHangUp => {}
    }
    let response = service.call(request).await?;
    if verdict == Answer::ServeAndHangUp {
        return Err("hung up on purpose".into());
    }
    Ok(response)
}
