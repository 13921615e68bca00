//! Against a store in memory that can be made to fail in the ways that networks do.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use ckpt_engine::db::{Limits, ReadSink, Records};
use ckpt_engine::{Effect, ErrorKind};
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error as StoreError, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, UploadPart,
};

use super::*;
use crate::store::{Reader, Segment};

/// How requests go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Answer {
    #[default]
    Good,
    /// Carried out, but the answer is lost.
    Lost,
    /// Carried out, and again after the answer was lost: the second time it is there already.
    Repeated,
    /// Not carried out, and nobody knows why.
    Broken,
    /// Access denied.
    Denied,
}

impl Answer {
    fn carries_out(self) -> bool {
        matches!(self, Self::Good | Self::Lost | Self::Repeated)
    }

    fn give<T>(self, answer: T) -> object_store::Result<T> {
        let path = String::new();
        match self {
            Self::Good => Ok(answer),
            Self::Lost | Self::Broken => {
                Err(StoreError::Generic { store: "test", source: "connection reset".into() })
            }
            Self::Repeated => Err(StoreError::AlreadyExists { path, source: "412".into() }),
            Self::Denied => Err(StoreError::PermissionDenied { path, source: "403".into() }),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Answers {
    put: Answer,
    part: Answer,
    complete: Answer,
    abort: Answer,
    get: Answer,
}

#[derive(Debug, Default)]
struct State {
    inner: InMemory,
    answers: Mutex<Answers>,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
    aborted: AtomicUsize,
    gets: AtomicUsize,
}

impl State {
    fn answers(&self) -> Answers {
        *self.answers.lock().unwrap()
    }
}

#[derive(Clone, Debug, Default)]
struct Network(Arc<State>);

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("network")
    }
}

#[async_trait]
impl ObjectStore for Network {
    async fn put_opts(
        &self,
        at: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        let answer = self.0.answers().put;
        if !answer.carries_out() {
            return answer.give(PutResult { e_tag: None, version: None, extensions: Default::default() });
        }
        answer.give(self.0.inner.put_opts(at, payload, options).await?)
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        let inner = self.0.inner.put_multipart_opts(at, options).await?;
        Ok(Box::new(Parts { state: Arc::clone(&self.0), inner }))
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.0.gets.fetch_add(1, Ordering::Relaxed);
        self.0.answers().get.give(())?;
        self.0.inner.get_opts(at, options).await
    }

    fn delete_stream(
        &self,
        at: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.0.inner.delete_stream(at)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.0.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.0.answers().get.give(())?;
        self.0.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.0.inner.copy_opts(from, to, options).await
    }
}

#[derive(Debug)]
struct Parts {
    state: Arc<State>,
    inner: Box<dyn MultipartUpload>,
}

/// Counts a part for as long as it is sent, cancelled or not.
struct UnderWay<'a>(&'a State);

impl<'a> UnderWay<'a> {
    fn begin(state: &'a State) -> Self {
        let now = state.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        state.most_in_flight.fetch_max(now, Ordering::SeqCst);
        Self(state)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl MultipartUpload for Parts {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let part = self.inner.put_part(data);
        let state = Arc::clone(&self.state);
        Box::pin(async move {
            let _under_way = UnderWay::begin(&state);
            tokio::time::sleep(Duration::from_millis(2)).await;
            part.await?;
            state.answers().part.give(())
        })
    }

    async fn complete(&mut self) -> object_store::Result<PutResult> {
        let answer = self.state.answers().complete;
        if !answer.carries_out() {
            return answer.give(PutResult { e_tag: None, version: None, extensions: Default::default() });
        }
        answer.give(self.inner.complete().await?)
    }

    async fn abort(&mut self) -> object_store::Result<()> {
        assert_eq!(self.state.in_flight.load(Ordering::SeqCst), 0, "aborted with parts under way");
        self.state.aborted.fetch_add(1, Ordering::SeqCst);
        self.state.answers().abort.give(())
    }
}

struct Fixture {
    network: Network,
    bucket: Arc<Bucket>,
    place: Place,
}

const SETTINGS: Settings = Settings { concurrency: 4, part_bytes: 1000 };
const NAME: &str = "trainer:0.7";

impl Fixture {
    fn new() -> Self {
        let network = Network::default();
        let store: Arc<dyn ObjectStore> = Arc::new(network.clone());
        let bucket = Arc::new(Bucket::new(store, Arc::default(), "s3://bucket".to_owned(), true));
        Self { network, bucket, place: Place::parse("bucket/run").unwrap() }
    }

    fn answers(&self, answers: Answers) {
        *self.network.0.answers.lock().unwrap() = answers;
    }

    fn object(&self) -> Path {
        self.place.object(NAME).unwrap()
    }

    fn writer(&self, memory: usize) -> ObjectWriter {
        let expected = Expected { bytes: 0, limits: Limits { threads: 2, memory } };
        ObjectWriter::new(Arc::clone(&self.bucket), self.object(), expected, SETTINGS).unwrap()
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        let mut writer = Box::new(self.writer(1 << 20));
        for piece in bytes.chunks(700) {
            writer.append(vec![Bytes::copy_from_slice(piece)])?;
        }
        writer.commit()
    }

    /// What is stored, past all faults.
    fn stored(&self) -> Option<Bytes> {
        let (inner, object) = (&self.network.0.inner, self.object());
        self.bucket.io().wait(async { Some(inner.get(&object).await.ok()?.bytes().await.unwrap()) }).unwrap()
    }
}

fn numbered(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index % 251) as u8).collect()
}

#[test]
fn what_is_written_is_read_whatever_its_length() {
    for len in [0, 1, 699, 700, 999, 1000, 1001, 2000, 12_345] {
        let fixture = Fixture::new();
        let bytes = numbered(len);
        fixture.write(&bytes).unwrap();
        assert_eq!(fixture.stored().unwrap(), bytes, "{len}");
        let opened = reader::open(Arc::clone(&fixture.bucket), fixture.object(), SETTINGS).unwrap();
        assert_eq!((opened.len, &opened.tail[..]), (len as u64, &bytes[..]), "{len}");
        assert_eq!(opened.reader.fetch(0..len as u64).unwrap(), bytes, "{len}");
    }
}

#[test]
fn parts_under_way_stay_within_the_memory() {
    for (memory, most) in [(0, 1), (3000, 2), (1 << 30, 4)] {
        let fixture = Fixture::new();
        let mut writer = Box::new(fixture.writer(memory));
        writer.append(vec![Bytes::from(numbered(20_500))]).unwrap();
        writer.commit().unwrap();
        assert_eq!(fixture.network.0.most_in_flight.load(Ordering::SeqCst), most, "{memory}");
        assert_eq!(fixture.stored().unwrap(), numbered(20_500));
    }
}

#[test]
fn dropped_it_is_aborted() {
    let fixture = Fixture::new();
    let mut writer = fixture.writer(1 << 20);
    writer.append(vec![Bytes::from(numbered(500))]).unwrap();
    drop(writer);
    assert_eq!(fixture.network.0.aborted.load(Ordering::SeqCst), 0, "nothing was begun");
    let mut writer = fixture.writer(1 << 20);
    writer.append(vec![Bytes::from(numbered(5000))]).unwrap();
    drop(writer);
    assert_eq!(fixture.network.0.aborted.load(Ordering::SeqCst), 1);
    assert_eq!(fixture.stored(), None);
}

#[test]
fn a_part_that_fails_fails_the_write_and_aborts_it() {
    let fixture = Fixture::new();
    fixture.write(b"old").unwrap();
    fixture.answers(Answers { part: Answer::Broken, ..Answers::default() });
    let error = fixture.write(&numbered(5000)).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None));
    assert_eq!(fixture.network.0.aborted.load(Ordering::SeqCst), 1);
    assert_eq!(fixture.stored().unwrap(), "old");
}

/// Once the answer to a commit was lost and the write reported as failed, although it had happened; the job then saved the
/// epoch again, and with a lease would have found its own and given up.
#[test]
fn a_lost_answer_is_looked_up() {
    for len in [500, 5000] {
        let fixture = Fixture::new();
        fixture.write(b"old").unwrap();
        fixture.answers(Answers { put: Answer::Lost, complete: Answer::Lost, ..Answers::default() });
        fixture.write(&numbered(len)).unwrap();
        assert_eq!(fixture.stored().unwrap(), numbered(len));
    }
}

#[test]
fn what_cannot_be_found_out_may_have_happened() {
    for len in [500, 5000] {
        for answer in [Answer::Lost, Answer::Broken] {
            let fixture = Fixture::new();
            fixture.answers(Answers {
                put: answer,
                complete: answer,
                get: Answer::Broken,
                ..Answers::default()
            });
            let error = fixture.write(&numbered(len)).unwrap_err();
            assert_eq!(
                (error.kind(), error.effect()),
                (ErrorKind::Unavailable, Effect::MayHaveHappened),
                "{len}"
            );
        }
    }
}

#[test]
fn an_upload_that_was_not_completed_and_is_aborted_did_not_happen() {
    let fixture = Fixture::new();
    fixture.write(b"old").unwrap();
    fixture.answers(Answers { complete: Answer::Broken, ..Answers::default() });
    let error = fixture.write(&numbered(5000)).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None));
    fixture.answers(Answers { complete: Answer::Broken, abort: Answer::Broken, ..Answers::default() });
    let error = fixture.write(&numbered(5000)).unwrap_err();
    assert_eq!(error.effect(), Effect::MayHaveHappened);
    assert_eq!(fixture.stored().unwrap(), "old");
}

#[test]
fn a_refused_write_did_not_happen() {
    for len in [500, 5000] {
        let fixture = Fixture::new();
        fixture.write(b"old").unwrap();
        let denied = Answers {
            put: Answer::Denied,
            complete: Answer::Denied,
            get: Answer::Denied,
            ..Answers::default()
        };
        fixture.answers(denied);
        let error = fixture.write(&numbered(len)).unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{len}");
        assert!(error.to_string().contains("access denied object=`s3://bucket/run/trainer:0.7`"), "{error}");
        assert_eq!(fixture.stored().unwrap(), "old");
    }
}

#[test]
fn cannot_tell_is_not_no() {
    let fixture = Fixture::new();
    assert!(!fixture.bucket.exists(&fixture.object()).unwrap());
    fixture.write(b"x").unwrap();
    assert!(fixture.bucket.exists(&fixture.object()).unwrap());
    let open = || reader::open(Arc::clone(&fixture.bucket), fixture.object(), SETTINGS);
    for answer in [Answer::Denied, Answer::Broken] {
        fixture.answers(Answers { get: answer, ..Answers::default() });
        assert_eq!(fixture.bucket.exists(&fixture.object()).unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(fixture.bucket.list(&fixture.place.folder()).unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(open().unwrap_err().kind(), ErrorKind::Unavailable);
    }
    fixture.answers(Answers::default());
    fixture.bucket.delete(&fixture.object()).unwrap();
    fixture.bucket.delete(&fixture.object()).unwrap();
    assert_eq!(open().unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn names_are_listed_without_what_is_hidden_or_deeper() {
    let fixture = Fixture::new();
    let put = |path: &str| {
        let path = Path::parse(path).unwrap();
        fixture.bucket.put(&path, PutPayload::new(), object_store::PutMode::Overwrite).unwrap();
    };
    for path in ["run/a.1", "run/b:0~%.2", "run/.hidden", "run/.ckpt/epoch.1", "run/deeper/c.1", "other/d.1"]
    {
        put(path);
    }
    let mut names = fixture.bucket.list(&fixture.place.folder()).unwrap();
    names.sort();
    assert_eq!(names, ["a.1", "b:0~%.2"]);
}

fn read_all(reader: &dyn Reader, ranges: &[Range<u64>], limits: Limits) -> Result<Vec<Option<Vec<u8>>>> {
    let segments = ranges.iter().enumerate().map(|(index, range)| {
        let len = (range.end - range.start) as usize;
        Segment { index, range: range.clone(), len, into: None }
    });
    let found = Mutex::new(vec![None; ranges.len()]);
    let sink: &ReadSink<'_> = &|index, bytes| {
        assert!(found.lock().unwrap()[index].replace(bytes?.to_vec()).is_none(), "twice");
        Ok(())
    };
    reader.read(segments.collect(), &limits, sink)?;
    Ok(found.into_inner().unwrap())
}

#[test]
fn ranges_are_read_joined_within_the_memory() {
    let fixture = Fixture::new();
    let bytes = numbered(1 << 20);
    fixture.write(&bytes).unwrap();
    let opened = reader::open(Arc::clone(&fixture.bucket), fixture.object(), SETTINGS).unwrap();
    let ranges = [0..10, 500_000..600_000, 10..20, 20..20, 5..15, 900_000..1 << 20, 600_010..600_020];
    for memory in [0, 1000, 1 << 30] {
        for threads in [1, 2, 8] {
            let before = fixture.network.0.gets.load(Ordering::Relaxed);
            let found = read_all(&*opened.reader, &ranges, Limits { threads, memory }).unwrap();
            for (range, found) in ranges.iter().zip(found) {
                assert_eq!(found.unwrap(), bytes[range.start as usize..range.end as usize], "{range:?}");
            }
            let gets = fixture.network.0.gets.load(Ordering::Relaxed) - before;
            // Joined are 10..20 with 20..20, and the two at 600,000.
            assert_eq!(gets, 5);
        }
    }
}

/// Half of an epoch's older copy and half of its newer one would pass for neither.
#[test]
fn a_db_that_is_replaced_while_it_is_read_is_a_conflict() {
    let fixture = Fixture::new();
    fixture.write(&numbered(5000)).unwrap();
    let opened = reader::open(Arc::clone(&fixture.bucket), fixture.object(), SETTINGS).unwrap();
    fixture.write(&numbered(5000)).unwrap();
    assert_eq!(opened.reader.fetch(0..10).unwrap_err().kind(), ErrorKind::Conflict);
}

#[test]
fn each_read_is_told_of_its_failure() {
    let fixture = Fixture::new();
    fixture.write(&numbered(5000)).unwrap();
    let opened = reader::open(Arc::clone(&fixture.bucket), fixture.object(), SETTINGS).unwrap();
    fixture.answers(Answers { get: Answer::Denied, ..Answers::default() });
    let told = Mutex::new(Vec::new());
    let segments = (0..3).map(|index| Segment { index, range: 0..5, len: 5, into: None }).collect();
    let sink: &ReadSink<'_> = &|index, found| {
        let error = found.unwrap_err();
        told.lock().unwrap().push((index, error.kind(), error.to_string().contains("access denied")));
        Ok(())
    };
    opened.reader.read(segments, &Limits { threads: 2, memory: 0 }, sink).unwrap();
    let mut told = told.into_inner().unwrap();
    told.sort_by_key(|(index, ..)| *index);
    assert_eq!(told, [0, 1, 2].map(|index| (index, ErrorKind::Unavailable, true)));
}

#[test]
fn an_error_of_the_sink_ends_the_read() {
    let fixture = Fixture::new();
    fixture.write(&numbered(5000)).unwrap();
    let opened = reader::open(Arc::clone(&fixture.bucket), fixture.object(), SETTINGS).unwrap();
    let segments = (0..100).map(|index| Segment { index, range: 0..5, len: 5, into: None }).collect();
    let calls = AtomicUsize::new(0);
    let sink: &ReadSink<'_> = &|_, _| {
        calls.fetch_add(1, Ordering::SeqCst);
        Err(ckpt_engine::Error::corrupt("stop"))
    };
    let error = opened.reader.read(segments, &Limits { threads: 2, memory: 1 << 20 }, sink).unwrap_err();
    assert_eq!(error.to_string(), "stop");
    assert!(calls.into_inner() <= 2);
}

#[test]
fn records_come_back_and_one_creator_wins() {
    let fixture = Fixture::new();
    let records = ObjectRecords::new(Arc::clone(&fixture.bucket), fixture.place.clone());
    let put = |value: &'static str, mode| records.put("epoch.1", Bytes::from_static(value.as_bytes()), mode);
    use ckpt_engine::db::PutMode::{Create, Replace};
    assert_eq!(records.list().unwrap(), Vec::<String>::new());
    assert_eq!(records.get("epoch.1").unwrap(), None);
    put("a", Create).unwrap();
    assert_eq!(put("b", Create).unwrap_err().kind(), ErrorKind::AlreadyExists);
    put("c", Replace).unwrap();
    assert_eq!(records.get("epoch.1").unwrap().unwrap(), "c");
    assert_eq!(records.list().unwrap(), ["epoch.1"]);
    records.delete("epoch.1").unwrap();
    records.delete("epoch.1").unwrap();
    assert_eq!(records.list().unwrap(), Vec::<String>::new());
    assert!(records.put(".ckpt/x", Bytes::new(), Replace).is_err());
}

/// The client repeats a request whose answer was lost, and then finds what it made itself the first time.
#[test]
fn a_creator_that_finds_its_own_has_won() {
    let fixture = Fixture::new();
    let records = ObjectRecords::new(Arc::clone(&fixture.bucket), fixture.place.clone());
    let create = |value: &'static str| {
        records.put("lease", Bytes::from_static(value.as_bytes()), ckpt_engine::db::PutMode::Create)
    };
    fixture.answers(Answers { put: Answer::Repeated, ..Answers::default() });
    create("mine").unwrap();
    fixture.answers(Answers::default());
    assert_eq!(create("other").unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(records.get("lease").unwrap().unwrap(), "mine");
}
