//! What the machine can do: plain transfers of the same bytes in the same folder, and the same work in memory. Those to and from an
//! object store are the business of its backend.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ckpt_engine::blob::{Buffer, PAGE};
use ckpt_engine::{Error, Result};
use rustix::fs::{Advice, FallocateFlags, OFlags, fadvise, fallocate};

use super::rate;

/// A way to move bytes between memory and a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    direct: bool,
    /// The length of one request.
    block: usize,
    /// Requests in flight.
    depth: usize,
}

/// The ways that are tried. The best of them is the limit.
pub(super) const WAYS: [Way; 4] = [
    Way { direct: true, block: 1 << 20, depth: 4 },
    Way { direct: true, block: 1 << 20, depth: 16 },
    Way { direct: true, block: 256 << 10, depth: 32 },
    Way { direct: false, block: 1 << 20, depth: 1 },
];

impl Way {
    pub(super) fn is_buffered(self) -> bool {
        !self.direct
    }

    fn name(self) -> String {
        if !self.direct {
            return "buffered sequential".to_owned();
        }
        format!("direct {} x {}", length(self.block as u64), self.depth)
    }
}

/// To a store or from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Write,
    Read,
}

/// What a rate is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Probed {
    /// A file in the folder.
    Disk(Direction, Way),
    /// Plain objects beside the checkpoints.
    Remote {
        direction: Direction,
        db_type: String,
        /// The length of an object.
        object: u64,
        in_flight: usize,
    },
    Memcpy,
    Crc32,
}

impl Probed {
    pub(super) fn name(&self) -> String {
        match self {
            Self::Disk(Direction::Write, way) => format!("write, {}", way.name()),
            Self::Disk(Direction::Read, way) => format!("read, {}", way.name()),
            Self::Remote { direction, db_type, object, in_flight } => {
                let verb = if *direction == Direction::Write { "PUT" } else { "GET" };
                format!("{db_type} {verb}, objects of {} x {in_flight}", length(*object))
            }
            Self::Memcpy => "memcpy, all cpus".to_owned(),
            Self::Crc32 => "crc32, all cpus".to_owned(),
        }
    }
}

fn length(bytes: u64) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) }
}

/// Memory for the transfers, touched before the clock starts.
pub(super) struct Blocks(Vec<Buffer>);

impl Blocks {
    pub(super) fn new() -> Result<Self> {
        let depth = WAYS.iter().map(|way| way.depth).max().unwrap_or(1);
        let block = WAYS.iter().map(|way| way.block).max().unwrap_or(PAGE);
        let mut blocks = Vec::with_capacity(depth);
        for number in 0..depth {
            let mut buffer = Buffer::zeroed(block)?;
            // A disk may treat zeroes in a way of its own.
            for (at, byte) in buffer.as_mut()?.iter_mut().enumerate() {
                *byte = (at.wrapping_mul(0x9e37_79b1) >> 16) as u8 ^ number as u8;
            }
            blocks.push(buffer);
        }
        Ok(Self(blocks))
    }
}

/// Writes `bytes` to a new file at `path`, makes it durable and leaves nothing of it in the page cache. In MiB/s; `None` where the file
/// system has no such way.
pub(super) fn write(path: &Path, bytes: u64, way: Way, blocks: &mut Blocks) -> Result<Option<f64>> {
    let failed = |error| file_error("cannot write the probe", path, error);
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).map_err(failed)?;
    let Some(through) = reopen(path, way, OpenOptions::new().write(true))? else { return Ok(None) };
    let started = Instant::now();
    // As any program does that cares for speed; where it cannot be done, writing tells.
    let _ = fallocate(&file, FallocateFlags::empty(), 0, bytes);
    let done = transfer(bytes, way, blocks, |block, at| through.write_all_at(block, at));
    done.and_then(|()| file.sync_data()).map_err(failed)?;
    let rate = rate(bytes, started.elapsed());
    drop_cache(&file).map_err(failed)?;
    Ok(Some(rate))
}

/// Reads a file of `bytes` bytes that is not in the page cache. In MiB/s; `None` where the file system has no such way.
pub(super) fn read(path: &Path, bytes: u64, way: Way, blocks: &mut Blocks) -> Result<Option<f64>> {
    let failed = |error| file_error("cannot read the probe", path, error);
    let Some(file) = reopen(path, way, OpenOptions::new().read(true))? else { return Ok(None) };
    drop_cache(&file).map_err(failed)?;
    let started = Instant::now();
    transfer(bytes, way, blocks, |block, at| file.read_exact_at(block, at)).map_err(failed)?;
    let rate = rate(bytes, started.elapsed());
    drop_cache(&file).map_err(failed)?;
    Ok(Some(rate))
}

/// Leaves nothing of a file in the page cache. What is dirty stays, so it must have been synced.
pub(super) fn drop_cache(file: &File) -> io::Result<()> {
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

fn reopen(path: &Path, way: Way, options: &mut OpenOptions) -> Result<Option<File>> {
    if way.direct {
        options.custom_flags(OFlags::DIRECT.bits().cast_signed());
    }
    match options.open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if way.direct && error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
            Ok(None)
        }
        Err(error) => Err(file_error("cannot open the probe", path, error)),
    }
}

fn file_error(what: &str, path: &Path, error: io::Error) -> Error {
    Error::io(format!("{what} path=`{}`", path.display()), error)
}

/// Moves all blocks but the unaligned rest, with as many requests in flight as the way has.
fn transfer(
    bytes: u64,
    way: Way,
    blocks: &mut Blocks,
    work: impl Fn(&mut [u8], u64) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let next = AtomicU64::new(0);
    let block_len = way.block as u64;
    let end = bytes / PAGE as u64 * PAGE as u64;
    let run = |buffer: &mut Buffer| -> io::Result<()> {
        let memory = buffer.as_mut().map_err(io::Error::other)?;
        loop {
            let at = next.fetch_add(block_len, Ordering::Relaxed);
            if at >= end {
                return Ok(());
            }
            let len = usize::try_from(block_len.min(end - at)).unwrap_or(way.block);
            work(memory.get_mut(..len).unwrap_or_default(), at)?;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            blocks.0.iter_mut().take(way.depth).map(|block| scope.spawn(|| run(block))).collect();
        let mut ended = threads.into_iter().map(|thread| thread.join());
        ended.try_for_each(|ended| ended.unwrap_or_else(|_| Err(io::Error::other("a probe panicked"))))
    })
}

/// Copies of a payload in memory, with one thread a processor, into memory that was touched: MiB/s.
pub(super) fn memcpy(from: &[u8], to: &mut [u8]) -> f64 {
    let part = part_of(from);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for (from, to) in from.chunks(part).zip(to.chunks_mut(part)) {
            scope.spawn(move || to.copy_from_slice(from));
        }
    });
    rate(from.len() as u64, started.elapsed())
}

/// CRC-32 of a payload in memory, with one thread a processor, as a mapped load takes it: MiB/s.
pub(super) fn crc32(bytes: &[u8]) -> f64 {
    let part = part_of(bytes);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for bytes in bytes.chunks(part) {
            scope.spawn(move || std::hint::black_box(crc32fast::hash(bytes)));
        }
    });
    rate(bytes.len() as u64, started.elapsed())
}

fn part_of(bytes: &[u8]) -> usize {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    bytes.len().div_ceil(threads).max(1)
}
