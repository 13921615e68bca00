//! Writing a large file past the page cache, by several threads behind the caller's.
//!
//! Direct writes go at the device's speed whatever the state of memory, take no pages from others and leave no debt for the
//! sync. They want page-aligned memory, offsets and lengths: runs that have them are written from where they are, the rest is
//! gathered in blocks. A file system that has no direct writes gets ordinary ones.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use ckpt_engine::blob::{Buffer, PAGE};
use ckpt_engine::{Error, ErrorKind, Result};
use rustix::io::Errno;

use super::{StagedFile, io_error, is_any, steps};
use crate::store::{Expected, Writer};

/// Below this a file is written in the ordinary way: it is about the cost of the threads.
const LEAST: u64 = 4 << 20;

/// The length of one write.
const BLOCK: usize = 1 << 20;

/// Writes under way at once.
const THREADS: usize = 8;

/// Writes that wait for a thread, at most.
const WAITING: usize = 8;

/// Runs shorter than this are gathered rather than written by themselves.
const LEAST_RUN: usize = 64 << 10;

/// A file on its way. Dropped, it is removed.
#[derive(Debug)]
pub(super) struct FileWriter {
    // Before the file, so that nobody writes any more when that is removed.
    behind: Option<Behind>,
    staged: StagedFile,
}

impl FileWriter {
    /// Begins a file that will be `target`.
    pub(super) fn create(target: &Path, expected: Expected) -> Result<Self> {
        let staged = StagedFile::create(target)?;
        let behind = Behind::start(staged.path(), staged.file(), expected)?;
        Ok(Self { behind, staged })
    }
}

impl Writer for FileWriter {
    fn append(&mut self, pieces: Vec<Bytes>) -> Result<()> {
        match &mut self.behind {
            Some(behind) => behind.append(pieces),
            None => self.staged.write(&pieces),
        }
    }

    fn commit(self: Box<Self>) -> Result<()> {
        if let Some(behind) = self.behind {
            behind.finish()?;
        }
        self.staged.publish()
    }
}

/// The threads that write, and what is not handed to them yet. Dropped, they stop.
#[derive(Debug)]
pub(super) struct Behind {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Gathers what is not written from where it is.
    block: Buffer,
    filled: usize,
    /// Where `block` goes. A multiple of a page.
    offset: u64,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    direct: File,
    ordinary: File,
    max_waiting: usize,
    state: Mutex<State>,
    /// Something was added, or it is over.
    work: Condvar,
    /// Something was taken, or it is over.
    room: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Job>,
    /// Nothing will be added.
    closed: bool,
    /// The first failure: nothing is written after it.
    failed: Option<Failure>,
    /// Blocks to use again: fresh memory is slow.
    spare: Vec<Buffer>,
}

#[derive(Debug)]
enum Failure {
    New(io::Error),
    Told,
}

#[derive(Debug)]
struct Job {
    bytes: Source,
    offset: u64,
}

#[derive(Debug)]
enum Source {
    Run(Bytes),
    Block(Buffer, usize),
}

impl Source {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Run(bytes) => bytes,
            Self::Block(block, len) => block.get(..*len).unwrap_or_default(),
        }
    }
}

impl Behind {
    /// For the empty file `file`, which is at `path`. `None` if that is better written in the ordinary way: it is small, or on a file
    /// system without direct writes.
    pub(super) fn start(path: &Path, file: &File, expected: Expected) -> Result<Option<Self>> {
        if expected.bytes < LEAST {
            return Ok(None);
        }
        let path = path.to_owned();
        let failed = |error| io_error("cannot open file", &path, error);
        let direct = match steps::reopen_direct(&path) {
            Ok(direct) => direct,
            Err(error) if is_any(&error, &[Errno::INVAL, Errno::OPNOTSUPP]) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let ordinary = file.try_clone().map_err(failed)?;
        // Writes that lengthen a file wait for each other, those within it do not. Only a hint: the length is an upper bound.
        if let Err(error) = steps::preallocate(&ordinary, expected.bytes) {
            tracing::debug!(path = %path.display(), %error, "cannot allocate in advance");
            // What was taken before it failed may be all that others have left.
            steps::truncate(&path, &ordinary, 0).map_err(failed)?;
        }
        let max_waiting = (expected.limits.memory / BLOCK).saturating_sub(THREADS).clamp(1, WAITING);
        let shared = Arc::new(Shared {
            path,
            direct,
            ordinary,
            max_waiting,
            state: Mutex::default(),
            work: Condvar::new(),
            room: Condvar::new(),
        });
        let block = Buffer::zeroed(BLOCK)?;
        let mut behind = Self { shared, threads: Vec::new(), block, filled: 0, offset: 0 };
        for _ in 0..THREADS {
            let shared = Arc::clone(&behind.shared);
            let thread = thread::Builder::new().name("ckpt-write".to_owned()).spawn(move || shared.run());
            match thread {
                Ok(thread) => behind.threads.push(thread),
                Err(error) if behind.threads.is_empty() => {
                    return Err(Error::io("cannot start a thread for writing", error));
                }
                Err(_) => break,
            }
        }
        Ok(Some(behind))
    }

    pub(super) fn append(&mut self, pieces: Vec<Bytes>) -> Result<()> {
        pieces.into_iter().try_for_each(|piece| self.append_piece(piece))
    }

    fn append_piece(&mut self, mut piece: Bytes) -> Result<()> {
        while !piece.is_empty() {
            let aligned = self.filled.is_multiple_of(PAGE) && piece.as_ptr().addr().is_multiple_of(PAGE);
            if aligned && piece.len() >= LEAST_RUN {
                self.flush()?;
                let len = (piece.len() / PAGE * PAGE).min(BLOCK);
                self.hand_over(Source::Run(piece.split_to(len)), len)?;
                continue;
            }
            let len = piece.len().min(BLOCK - self.filled);
            let source = piece.split_to(len);
            let target = self.block.as_mut()?.get_mut(self.filled..self.filled + len);
            target.ok_or_else(|| Error::internal("block is too short"))?.copy_from_slice(&source);
            self.filled += len;
            if self.filled == BLOCK {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Hands over what was gathered, which is whole pages.
    fn flush(&mut self) -> Result<()> {
        if self.filled == 0 {
            return Ok(());
        }
        let spare = self.shared.lock().spare.pop();
        let fresh = spare.map_or_else(|| Buffer::zeroed(BLOCK), Ok)?;
        let block = std::mem::replace(&mut self.block, fresh);
        let len = std::mem::take(&mut self.filled);
        self.hand_over(Source::Block(block, len), len)
    }

    fn hand_over(&mut self, bytes: Source, len: usize) -> Result<()> {
        let job = Job { bytes, offset: self.offset };
        self.offset += len as u64;
        let shared = &self.shared;
        let full = |state: &mut State| state.failed.is_none() && state.waiting.len() >= shared.max_waiting;
        let mut state = shared.room.wait_while(shared.lock(), full).unwrap_or_else(PoisonError::into_inner);
        if state.failed.is_some() {
            return Err(shared.failure(&mut state));
        }
        state.waiting.push_back(job);
        shared.work.notify_one();
        Ok(())
    }

    /// Writes the rest and waits for all. The last page is written whole and then cut.
    pub(super) fn finish(mut self) -> Result<()> {
        let len = self.offset + self.filled as u64;
        let padded = self.filled.next_multiple_of(PAGE);
        if let Some(padding) = self.block.as_mut()?.get_mut(self.filled..padded) {
            padding.fill(0);
        }
        self.filled = padded;
        self.flush()?;
        self.join();
        let shared = &self.shared;
        let mut state = shared.lock();
        if state.failed.is_some() {
            return Err(shared.failure(&mut state));
        }
        steps::truncate(&shared.path, &shared.ordinary, len)
            .map_err(|error| io_error("cannot cut file to its length", &shared.path, error))
    }

    fn join(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                let mut state = self.shared.lock();
                let error = io::Error::other("a thread for writing panicked");
                state.failed.get_or_insert(Failure::New(error));
            }
        }
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        // After `finish` there is nothing left.
        self.shared.lock().waiting.clear();
        self.join();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that panics is done under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error of the write that failed. It is told once: the write is lost and whoever goes on is told so.
    fn failure(&self, state: &mut State) -> Error {
        match state.failed.replace(Failure::Told) {
            Some(Failure::New(error)) => io_error("cannot write file", &self.path, error),
            _ => Error::new(ErrorKind::Closed, format!("write failed before path=`{}`", self.path.display())),
        }
    }

    /// A thread: writes what is handed over until that ends.
    fn run(&self) {
        let mut state = self.lock();
        loop {
            let idle =
                |state: &mut State| state.waiting.is_empty() && !state.closed && state.failed.is_none();
            state = self.work.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
            let Some(job) = state.waiting.pop_front() else { return };
            self.room.notify_one();
            drop(state);
            let written = self.write(&job);
            state = self.lock();
            if let Err(error) = written {
                state.failed.get_or_insert(Failure::New(error));
                state.waiting.clear();
                self.work.notify_all();
                self.room.notify_all();
                return;
            }
            if let Source::Block(block, _) = job.bytes {
                state.spare.push(block);
            }
        }
    }

    fn write(&self, job: &Job) -> io::Result<()> {
        match steps::write_at(&self.path, &self.direct, job.bytes.bytes(), job.offset) {
            // Opened for direct writes, and yet it does not take these.
            Err(error) if is_any(&error, &[Errno::INVAL]) => {
                steps::write_at(&self.path, &self.ordinary, job.bytes.bytes(), job.offset)
            }
            written => written,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ckpt_engine::db::Limits;

    use super::super::faults::{Faults, Plan, Step};
    use super::*;

    fn expected(memory: usize) -> Expected {
        Expected { bytes: 8 << 20, limits: Limits { threads: 2, memory } }
    }

    /// Pieces as a pack makes them: a page, then values of all lengths, in memory that is aligned or not.
    fn pieces() -> Vec<Bytes> {
        let mut lens = vec![PAGE];
        for len in [1, 63, PAGE - 64, 100_000, PAGE * 20, (3 << 20) + 5, 0, 2 << 20, BLOCK - 1, 700] {
            lens.extend([len, len.next_multiple_of(PAGE) - len]);
        }
        let numbered = |len: usize, skip: usize| {
            let mut buffer = Buffer::zeroed(len + skip).unwrap();
            let bytes = buffer.as_mut().unwrap();
            bytes.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index % 251) as u8 ^ len as u8);
            Bytes::from(buffer).slice(skip..)
        };
        lens.into_iter().enumerate().map(|(number, len)| numbered(len, number % 3 * 100)).collect()
    }

    fn write(path: &Path, memory: usize) -> Result<()> {
        let mut writer = Box::new(FileWriter::create(path, expected(memory))?);
        assert!(writer.behind.is_some(), "the file system of the tests has direct writes");
        for piece in pieces() {
            writer.append(vec![piece])?;
        }
        writer.commit()
    }

    #[test]
    fn every_byte_is_where_it_belongs_and_none_is_left_over() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x.1");
        for memory in [0, 10 << 20, 1 << 30] {
            write(&path, memory).unwrap();
            assert!(fs::read(&path).unwrap() == pieces().concat());
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_empty_one_is_empty() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x.1");
        Box::new(FileWriter::create(&path, expected(0)).unwrap()).commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
    }

    /// A full disk at any write: told, even if only at the end, and nothing published or left.
    #[test]
    fn a_write_that_fails_behind_fails_the_whole() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x.1");
        fs::write(&path, "old").unwrap();
        let counting = Faults::under(root.path(), Plan::Count);
        write(&path, 0).unwrap();
        let steps = counting.steps();
        drop(counting);
        fs::write(&path, "old").unwrap();
        let writes = steps.iter().enumerate().filter(|(_, step)| **step == Step::Write);
        for (number, _) in writes {
            let faults = Faults::under(root.path(), Plan::FailOnce(number, 28));
            let error = write(&path, 1 << 30).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Full, "{number}: {error}");
            assert!(!faults.steps().contains(&Step::SyncFile), "{number}");
            assert_eq!(fs::read(&path).unwrap(), b"old");
            assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn after_a_failure_it_is_closed() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x.1");
        // The first step makes the file, the second is the first write.
        let _faults = Faults::under(root.path(), Plan::FailOnce(1, 28));
        let mut writer = FileWriter::create(&path, expected(0)).unwrap();
        let block = Bytes::from(vec![0; 4 * BLOCK]);
        let kinds: Vec<_> = (0..100)
            .filter_map(|_| writer.append(vec![block.clone()]).err())
            .map(|error| error.kind())
            .collect();
        assert_eq!(kinds[..2], [ErrorKind::Full, ErrorKind::Closed]);
        drop(writer);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn dropped_it_stops_and_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let mut writer = FileWriter::create(&root.path().join("x.1"), expected(0)).unwrap();
        writer.append(pieces()).unwrap();
        drop(writer);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
