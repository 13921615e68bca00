//! Reading a large file past the page cache, unless it is there.
//!
//! Direct reads go at the device's speed into memory that is asked for anyway, and leave the page cache to others. What already is in
//! the page cache comes faster from there; the system is asked for every part. What is lent, what is small and what is not aligned goes
//! through memory that is used again.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use ckpt_engine::blob::{Buffer, PAGE};
use ckpt_engine::db::{Limits, ReadSink};
use ckpt_engine::{Error, Result};
use memmap2::Mmap;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{io_error, is_any};
use crate::store::coalesce::{Joining, coalesce};
use crate::store::{Segment, parallel, zeroed};

/// Below this a part is read in the ordinary way.
const LEAST_DIRECT: usize = 128 << 10;
/// The length of one direct read, and what small parts are gathered to.
const BLOCK: usize = 1 << 20;
/// Reads under way at once.
const THREADS: usize = 8;
/// Small parts that lie close together are read at once.
const JOINING: Joining = Joining { max_len: BLOCK as u64, max_gap: 4 << 10, max_waste: 1 << 20 };

/// An open file. It stays the same one if another takes its name.
#[derive(Debug)]
pub(crate) struct FileReader {
    file: File,
    path: PathBuf,
    /// The same file for direct reads; `None` on a file system without them.
    direct: OnceLock<Option<File>>,
    /// Direct reads are refused although the file could be opened for them.
    refused: AtomicBool,
    /// The whole file, once it is needed.
    mapping: OnceLock<Bytes>,
    bytes_read: AtomicU64,
}

/// What a thread reads into and takes parts from. Page-aligned.
#[derive(Default)]
struct Scratch(Option<Buffer>);

impl Scratch {
    /// At least so many bytes of it.
    fn memory(&mut self, len: usize) -> Result<&mut [u8]> {
        let buffer = match self.0.take().filter(|buffer| buffer.len() >= len) {
            Some(buffer) => self.0.insert(buffer),
            None => self.0.insert(Buffer::zeroed(len.max(BLOCK + 2 * PAGE))?),
        };
        buffer.as_mut()
    }
}

impl FileReader {
    /// Reads `file`, which is at `path`.
    pub(crate) fn new(file: File, path: PathBuf) -> Self {
        // Small parts are wanted by themselves, large ones are asked for as a whole: what the system would read ahead is for nobody.
        // Only a wish.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
        Self {
            file,
            path,
            direct: OnceLock::new(),
            refused: AtomicBool::new(false),
            mapping: OnceLock::new(),
            bytes_read: AtomicU64::new(0),
        }
    }

    #[cfg(feature = "lmdb")]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// How many bytes were read so far.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    fn count(&self, bytes: u64) {
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Fills `into` from `offset` on, through the page cache.
    pub(crate) fn read_at(&self, into: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_exact_at(into, offset).map_err(|error| self.failed(error))?;
        self.count(into.len() as u64);
        Ok(())
    }

    /// The bytes of a range.
    pub(crate) fn fetch(&self, range: Range<u64>) -> Result<Bytes> {
        let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        if len < LEAST_DIRECT {
            let mut bytes = zeroed(len)?;
            self.read_at(&mut bytes, range.start)?;
            return Ok(bytes.into());
        }
        let mut buffer = Buffer::zeroed(len.saturating_add(2 * PAGE))?;
        let found = self.read_pages(buffer.as_mut()?, range.start, len)?;
        Ok(Bytes::from(buffer).slice(found))
    }

    /// Reads many ranges; each goes to `sink`.
    pub(crate) fn read(
        &self,
        mut segments: Vec<Segment<'_>>,
        limits: &Limits,
        sink: &ReadSink<'_>,
    ) -> Result<()> {
        segments.sort_by_key(|segment| segment.range.start);
        let lent = segments.iter().filter(|segment| segment.into.is_none()).map(|segment| segment.len);
        let memory = lent.max().unwrap_or_default().max(BLOCK) + 2 * PAGE;
        let threads = THREADS.max(limits.threads).min(limits.memory / memory).max(1);
        let runs = runs(segments);
        // A few large ones are each read by several threads.
        let each = threads / runs.len().max(1);
        parallel::for_each(threads, runs, |scratch: &mut Scratch, run| {
            self.read_run(scratch, run, each, sink)
        })
    }

    fn read_run(
        &self,
        scratch: &mut Scratch,
        mut run: Vec<Segment<'_>>,
        threads: usize,
        sink: &ReadSink<'_>,
    ) -> Result<()> {
        if let [Segment { index, range, into: Some(into), .. }] = &mut run[..] {
            let found = self.read_by(threads, scratch, into, range.start);
            return sink(*index, found.map(|()| &**into));
        }
        let start = run.first().map_or(0, |segment| segment.range.start);
        let end = run.last().map_or(0, |segment| segment.range.end);
        let len = usize::try_from(end - start).map_err(|_| Error::internal("run of reads is too long"))?;
        let memory = scratch.memory(len.saturating_add(2 * PAGE))?;
        let found = match self.read_pages(memory, start, len) {
            Ok(found) => memory.get(found).unwrap_or_default(),
            Err(error) if run.len() > 1 => {
                // Each by itself: only what is past the end of a file that was cut is lost.
                tracing::debug!(%error, "cannot read a run at once");
                return run.into_iter().try_for_each(|one| self.read_run(scratch, vec![one], 1, sink));
            }
            Err(error) => return run.first().map_or(Ok(()), |segment| sink(segment.index, Err(error))),
        };
        run.into_iter().try_for_each(|segment| {
            let at = usize::try_from(segment.range.start - start).unwrap_or(usize::MAX);
            let found = found.get(at..at.saturating_add(segment.len)).unwrap_or_default();
            match segment.into {
                Some(into) => {
                    into.copy_from_slice(found);
                    sink(segment.index, Ok(into))
                }
                None => sink(segment.index, Ok(found)),
            }
        })
    }

    /// Reads `len` bytes from `offset` on into page-aligned memory with two pages more than that, and returns where they are.
    fn read_pages(&self, memory: &mut [u8], offset: u64, len: usize) -> Result<Range<usize>> {
        let start = usize::try_from(offset % PAGE as u64).unwrap_or_default();
        let end = start.saturating_add(len);
        if let Some(direct) = self.direct_for(offset, len) {
            let pages = memory.get_mut(..end.next_multiple_of(PAGE)).unwrap_or_default();
            if self.went_direct(fill(direct, pages, end, offset - start as u64), len)? {
                return Ok(start..end);
            }
        }
        self.read_at(memory.get_mut(start..end).unwrap_or_default(), offset)?;
        Ok(start..end)
    }

    /// Fills `into` from `offset` on, by so many threads if it is long enough for them.
    fn read_by(&self, threads: usize, scratch: &mut Scratch, into: &mut [u8], offset: u64) -> Result<()> {
        let each = into.len().div_ceil(threads.max(1)).next_multiple_of(BLOCK);
        if each >= into.len() {
            return self.read_part(scratch, into, offset);
        }
        let parts = (offset..).step_by(each).zip(into.chunks_mut(each)).collect();
        parallel::for_each(threads, parts, |scratch: &mut Scratch, (offset, part)| {
            self.read_part(scratch, part, offset)
        })
    }

    /// Fills `into` from `offset` on, in whichever way is the fastest.
    #[cfg(feature = "lmdb")]
    pub(crate) fn read_large(&self, into: &mut [u8], offset: u64) -> Result<()> {
        self.read_part(&mut Scratch::default(), into, offset)
    }

    fn read_part(&self, scratch: &mut Scratch, into: &mut [u8], offset: u64) -> Result<()> {
        if let Some(direct) = self.direct_for(offset, into.len()) {
            let read = Self::read_direct(direct, scratch, into, offset);
            if self.went_direct(read, into.len())? {
                return Ok(());
            }
        }
        self.read_at(into, offset)
    }

    /// Straight to its place what is aligned there and in the file; the rest by way of `scratch`.
    fn read_direct(
        direct: &File,
        scratch: &mut Scratch,
        mut into: &mut [u8],
        mut offset: u64,
    ) -> io::Result<()> {
        let page = PAGE as u64;
        if into.as_ptr().addr().is_multiple_of(PAGE) && offset.is_multiple_of(page) {
            let (aligned, rest) = into.split_at_mut(into.len() / PAGE * PAGE);
            direct.read_exact_at(aligned, offset)?;
            offset += aligned.len() as u64;
            into = rest;
        }
        while !into.is_empty() {
            let memory = scratch.memory(BLOCK).map_err(io::Error::other)?;
            let skip = usize::try_from(offset % page).unwrap_or_default();
            let wanted = into.len().min(BLOCK - skip);
            let asked = (skip + wanted).next_multiple_of(PAGE);
            let (start, needed) = (offset - offset % page, skip + wanted);
            fill(direct, memory.get_mut(..asked).unwrap_or_default(), needed, start)?;
            let (here, rest) = into.split_at_mut(wanted);
            here.copy_from_slice(memory.get(skip..needed).unwrap_or_default());
            offset += wanted as u64;
            into = rest;
        }
        Ok(())
    }

    /// The file for direct reads, if that is the best way to this part.
    fn direct_for(&self, offset: u64, len: usize) -> Option<&File> {
        if len < LEAST_DIRECT || self.is_cached(offset, len) { None } else { self.direct() }
    }

    /// Whether a direct read was one; it was none where the file system refuses.
    fn went_direct(&self, read: io::Result<()>, len: usize) -> Result<bool> {
        match read {
            Err(error) if is_any(&error, &[Errno::INVAL, Errno::OPNOTSUPP]) => {
                self.refused.store(true, Ordering::Relaxed);
                Ok(false)
            }
            Err(error) => Err(self.failed(error)),
            Ok(()) => {
                self.count(len as u64);
                Ok(true)
            }
        }
    }

    fn direct(&self) -> Option<&File> {
        if self.refused.load(Ordering::Relaxed) {
            return None;
        }
        let open = || {
            // By the descriptor: another file may have the name by now.
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&self.file));
            let flags = OFlags::DIRECT.bits().cast_signed();
            let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
            opened.inspect_err(|error| tracing::debug!(%error, "no direct reads")).ok()
        };
        self.direct.get_or_init(open).as_ref()
    }

    /// Whether most of a part is in the page cache.
    pub(super) fn is_cached(&self, offset: u64, len: usize) -> bool {
        let Ok(map) = self.mapping() else { return false };
        let page = rustix::param::page_size();
        let Some(start) = usize::try_from(offset).ok().map(|offset| offset / page * page) else {
            return false;
        };
        let len = len.min(map.len().saturating_sub(start));
        let mut pages = vec![0u8; len.div_ceil(page)];
        if pages.is_empty() {
            return false;
        }
        // SAFETY: `start..start + len` is within the mapping and begins at a page, and `pages` has a byte for each page of it. The call
        // writes nothing else and does not touch the mapped bytes.
        let asked =
            unsafe { libc::mincore(map.as_ptr().add(start).cast_mut().cast(), len, pages.as_mut_ptr()) };
        let resident = pages.iter().filter(|&&page| page & 1 == 1).count();
        asked == 0 && resident * 4 > pages.len() * 3
    }

    /// The whole file, mapped.
    fn mapping(&self) -> Result<&Bytes> {
        if let Some(mapping) = self.mapping.get() {
            return Ok(mapping);
        }
        // SAFETY: the mapping is read-only, and its bytes must not change while it lives. Nobody changes a published file: a db is
        // replaced by another file of its name, and this one stays as it is for as long as it is mapped. (A program that writes into
        // it all the same breaks every reader of it.)
        let mapping = unsafe { Mmap::map(&self.file) };
        let mapping = mapping.map_err(|error| io_error("cannot map file", &self.path, error))?;
        Ok(self.mapping.get_or_init(|| Bytes::from_owner(mapping)))
    }

    /// A range of the file, mapped, and on its way into the page cache. `None` if it is not all within the file.
    pub(crate) fn map(&self, range: Range<u64>) -> Result<Option<Bytes>> {
        let mapping = self.mapping()?;
        let (Ok(start), Ok(end)) = (usize::try_from(range.start), usize::try_from(range.end)) else {
            return Ok(None);
        };
        if start > end || end > mapping.len() {
            return Ok(None);
        }
        // Whoever maps is about to read all of it, and a page fault at a time is slow on a disk. Only a wish.
        let _ = rustix::fs::fadvise(
            &self.file,
            range.start,
            std::num::NonZeroU64::new(range.end - range.start),
            rustix::fs::Advice::WillNeed,
        );
        self.count(range.end - range.start);
        Ok(Some(mapping.slice(start..end)))
    }

    fn failed(&self, error: io::Error) -> Error {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return io_error("file was cut short after it was opened", &self.path, error);
        }
        io_error("cannot read file", &self.path, error)
    }
}

/// Reads at least `needed` bytes; more as far as the file goes.
fn fill(file: &File, into: &mut [u8], needed: usize, offset: u64) -> io::Result<()> {
    let mut filled = 0;
    while filled < needed {
        match file.read_at(into.get_mut(filled..).unwrap_or_default(), offset + filled as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            // What is not a whole page was the end of the file.
            Ok(read) if !read.is_multiple_of(PAGE) && filled + read < needed => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Large parts by themselves, small ones with their neighbours.
fn runs(segments: Vec<Segment<'_>>) -> Vec<Vec<Segment<'_>>> {
    let ranges: Vec<_> = segments.iter().map(|segment| segment.range.clone()).collect();
    let groups = coalesce(&ranges, JOINING);
    let mut segments = segments.into_iter();
    groups.into_iter().map(|group| segments.by_ref().take(group.len()).collect()).collect()
}
