//! Reading an object: its end on opening, then ranges, several under way at once.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use ckpt_engine::db::{Limits, ReadSink};
use ckpt_engine::{Error, ErrorKind, Result};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use object_store::path::Path;
use object_store::{Error as StoreError, GetOptions, GetRange, ObjectMeta, ObjectStoreExt};

use super::Settings;
use super::bucket::Bucket;
use super::error::status;
use crate::store::coalesce::{Joining, coalesce};
use crate::store::{Opened, Reader, Segment, parallel, zeroed};

/// How much of an object's end is fetched on opening: the footer, the index and mostly the manifest.
const TAIL: u64 = 256 << 10;

/// How ranges are joined. What is wasted stays, with the tail, under the 1 MiB that a partial load may read too much.
const JOINING: Joining = Joining { max_len: 8 << 20, max_gap: 64 << 10, max_waste: 512 << 10 };

/// Opens an object: one request, where the store knows ranges from the end.
pub(super) fn open(bucket: Arc<Bucket>, object: Path, settings: Settings) -> Result<Opened> {
    let failed = |error| bucket.failed("cannot open object", &object, error);
    let (meta, tail) = bucket.io().wait(fetch_tail(&bucket, &object))?.map_err(failed)?;
    let len = meta.size;
    let bytes_read = AtomicU64::new(tail.len() as u64);
    let version = Version { e_tag: meta.e_tag, len };
    let reader = ObjectReader { bucket, object, version, settings, bytes_read };
    Ok(Opened { reader: Box::new(reader), len, tail })
}

async fn fetch_tail(bucket: &Bucket, object: &Path) -> object_store::Result<(ObjectMeta, Bytes)> {
    let get = |range| {
        let options = GetOptions { range: Some(range), ..GetOptions::default() };
        bucket.store().get_opts(object, options)
    };
    let from_end = match get(GetRange::Suffix(TAIL)).await {
        // Azure has no ranges from the end, and an empty object has no range to give anywhere.
        Err(error) if has_no_such_range(&error) => {
            let meta = bucket.store().head(object).await?;
            if meta.size == 0 {
                return Ok((meta, Bytes::new()));
            }
            get(GetRange::Bounded(meta.size.saturating_sub(TAIL)..meta.size)).await?
        }
        got => got?,
    };
    let meta = from_end.meta.clone();
    Ok((meta, from_end.bytes().await?))
}

fn has_no_such_range(error: &StoreError) -> bool {
    // Of an empty object some servers give all, which the client, in words only, calls no part.
    let gave_all = || error.to_string().contains("non-partial response");
    matches!(error, StoreError::NotSupported { .. }) || status(error) == Some(416) || gave_all()
}

/// What tells an object from one that took its name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    e_tag: Option<String>,
    len: u64,
}

/// An open object.
#[derive(Debug)]
struct ObjectReader {
    bucket: Arc<Bucket>,
    object: Path,
    version: Version,
    settings: Settings,
    bytes_read: AtomicU64,
}

/// One request, for one range or several that lie close.
struct Fetch<'a> {
    range: Range<u64>,
    parts: Vec<Part<'a>>,
}

/// A wanted range and the memory that it goes to.
struct Part<'a> {
    index: usize,
    range: Range<u64>,
    len: usize,
    memory: Memory<'a>,
}

enum Memory<'a> {
    Given(&'a mut [u8]),
    Own(Vec<u8>),
}

impl Memory<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Given(bytes) => bytes,
            Self::Own(bytes) => bytes,
        }
    }
}

impl Fetch<'_> {
    /// The memory that it will take over what the caller gave.
    fn own_bytes(&self) -> usize {
        let own = self.parts.iter().filter(|part| matches!(part.memory, Memory::Own(_)));
        own.map(|part| part.len).sum()
    }

    fn make_room(&mut self) -> Result<()> {
        for part in &mut self.parts {
            if let Memory::Own(bytes) = &mut part.memory {
                *bytes = zeroed(part.len)?;
            }
        }
        Ok(())
    }

    /// Brings bytes that belong at `at` to the parts that want them.
    fn scatter(&mut self, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        let from = self.parts.partition_point(|part| part.range.end <= at);
        for part in self.parts.iter_mut().skip(from).take_while(|part| part.range.start < end) {
            let (start, stop) = (at.max(part.range.start), end.min(part.range.end));
            // All differences are lengths within `bytes` or the part.
            let within =
                |range: Range<u64>, base: u64| (range.start - base) as usize..(range.end - base) as usize;
            let source = bytes.get(within(start..stop, at));
            let target = part.memory.bytes().get_mut(within(start..stop, part.range.start));
            if let (Some(source), Some(target)) = (source, target) {
                target.copy_from_slice(source);
            }
        }
    }
}

/// Cuts reads into requests.
fn plan(mut segments: Vec<Segment<'_>>) -> VecDeque<Fetch<'_>> {
    segments.sort_by_key(|segment| (segment.range.start, segment.range.end));
    let ranges: Vec<Range<u64>> = segments.iter().map(|segment| segment.range.clone()).collect();
    let mut segments = segments.into_iter();
    let groups = coalesce(&ranges, JOINING).into_iter();
    let fetches = groups.map(|group| {
        let parts: Vec<Part<'_>> = segments
            .by_ref()
            .take(group.len())
            .map(|Segment { index, range, len, into }| {
                let memory = into.map_or_else(|| Memory::Own(Vec::new()), Memory::Given);
                Part { index, range, len, memory }
            })
            .collect();
        let start = parts.first().map_or(0, |part| part.range.start);
        let end = parts.last().map_or(0, |part| part.range.end);
        Fetch { range: start..end, parts }
    });
    fetches.collect()
}

impl ObjectReader {
    /// One request: its bytes go to their places as they arrive.
    async fn run<'a>(&self, mut fetch: Fetch<'a>) -> (Fetch<'a>, Result<()>) {
        let outcome = match fetch.make_room() {
            Ok(()) if fetch.range.is_empty() => Ok(()),
            Ok(()) => self.stream(&mut fetch).await,
            Err(error) => Err(error),
        };
        (fetch, outcome)
    }

    async fn stream(&self, fetch: &mut Fetch<'_>) -> Result<()> {
        let failed = |error| self.bucket.failed("cannot read object", &self.object, error);
        let options =
            GetOptions { range: Some(GetRange::Bounded(fetch.range.clone())), ..GetOptions::default() };
        let found = match self.bucket.store().get_opts(&self.object, options).await {
            // The object that was opened has this range.
            Err(error) if status(&error) == Some(416) => return Err(self.replaced().with_source(error)),
            found => found.map_err(failed)?,
        };
        // Part of one object and part of another would make a db that never was.
        if self.version != (Version { e_tag: found.meta.e_tag.clone(), len: found.meta.size }) {
            return Err(self.replaced());
        }
        let mut at = fetch.range.start;
        let mut stream = found.into_stream();
        while let Some(bytes) = stream.next().await {
            let bytes = bytes.map_err(failed)?;
            self.bytes_read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            fetch.scatter(at, &bytes);
            at += bytes.len() as u64;
        }
        if at == fetch.range.end {
            return Ok(());
        }
        let message = format!("answer was cut short object=`{}`", self.bucket.label(&self.object));
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    fn replaced(&self) -> Error {
        let label = self.bucket.label(&self.object);
        let message = format!("object was replaced while it was read: open it again object=`{label}`");
        Error::new(ErrorKind::Conflict, message)
    }

    /// One thread's part in a read: keeps requests under way and hands on what arrives.
    fn work(&self, queue: &Mutex<VecDeque<Fetch<'_>>>, share: Limits, sink: &ReadSink<'_>) -> Result<()> {
        let mut in_flight = FuturesUnordered::new();
        let mut own_bytes = 0;
        loop {
            while in_flight.len() < share.threads {
                let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
                let fits = |fetch: &Fetch<'_>| own_bytes + fetch.own_bytes() <= share.memory;
                if !in_flight.is_empty() && !queue.front().is_some_and(fits) {
                    break;
                }
                let Some(fetch) = queue.pop_front() else { break };
                own_bytes += fetch.own_bytes();
                in_flight.push(self.run(fetch));
            }
            // The sink is called out here: it may use this or another store itself.
            let Some((mut fetch, outcome)) = self.bucket.io().wait(in_flight.next())? else {
                return Ok(());
            };
            own_bytes -= fetch.own_bytes();
            for part in &mut fetch.parts {
                let found = match &outcome {
                    Ok(()) => Ok(&*part.memory.bytes()),
                    Err(error) => Err(again(error)),
                };
                sink(part.index, found)?;
            }
        }
    }
}

/// The same error for one more read of a request. The causes below it go into the message, since they cannot be copied.
fn again(error: &Error) -> Error {
    let mut message = error.to_string();
    let mut below = std::error::Error::source(error);
    while let Some(cause) = below {
        message = format!("{message}: {cause}");
        below = cause.source();
    }
    Error::new(error.kind(), message)
}

impl Reader for ObjectReader {
    fn map(&self, _range: Range<u64>) -> Result<Option<Bytes>> {
        Ok(None)
    }

    fn fetch(&self, range: Range<u64>) -> Result<Bytes> {
        let len = range.end.saturating_sub(range.start);
        let mut bytes = zeroed(usize::try_from(len).unwrap_or(usize::MAX))?;
        let mut start = range.start;
        let pieces = bytes.chunks_mut(JOINING.max_len as usize).enumerate();
        let segments = pieces.map(|(index, into)| {
            let len = into.len();
            let range = start..start + len as u64;
            start = range.end;
            Segment { index, range, len, into: Some(into) }
        });
        self.read(segments.collect(), &Limits::default(), &|_, found| found.map(drop))?;
        Ok(bytes.into())
    }

    fn read(&self, segments: Vec<Segment<'_>>, limits: &Limits, sink: &ReadSink<'_>) -> Result<()> {
        let fetches = plan(segments);
        let in_flight = self.settings.concurrency.min(fetches.len());
        let threads = limits.threads.min(in_flight).max(1);
        // Here a thread's share of the requests that are under way at once.
        let share = Limits { threads: in_flight.div_ceil(threads), memory: limits.memory / threads };
        let queue = Mutex::new(fetches);
        parallel::for_each(threads, vec![(); threads], |(), ()| {
            let worked = self.work(&queue, share, sink);
            if worked.is_err() {
                queue.lock().unwrap_or_else(PoisonError::into_inner).clear();
            }
            worked
        })
    }

    fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_to_their_places_however_they_are_cut() {
        let object: Vec<u8> = (0..100).collect();
        for cut in 1..=60 {
            let mut given = [0; 7];
            let segment = |index, range: Range<u64>, into| Segment {
                index,
                len: (range.end - range.start) as usize,
                range,
                into,
            };
            let segments = vec![
                segment(0, 40..47, Some(&mut given[..])),
                segment(1, 20..30, None),
                segment(2, 33..33, None),
                segment(3, 50..60, None),
                segment(4, 30..33, None),
            ];
            let mut fetches = plan(segments);
            assert_eq!(fetches.len(), 1);
            let mut fetch = fetches.pop_front().unwrap();
            assert_eq!((fetch.range.clone(), fetch.own_bytes()), (20..60, 23));
            fetch.make_room().unwrap();
            let mut at = 20;
            for bytes in object[20..60].chunks(cut) {
                fetch.scatter(at, bytes);
                at += bytes.len() as u64;
            }
            for part in &mut fetch.parts {
                let wanted = &object[part.range.start as usize..part.range.end as usize];
                assert_eq!(part.memory.bytes(), wanted, "{cut} {}", part.index);
            }
        }
    }
}
