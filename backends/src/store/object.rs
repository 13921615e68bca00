//! Object stores: S3, Google Cloud Storage, Azure Blob Storage. The only place that knows `object_store` and tokio.
//!
//! A db is one object. It is written in parts, several under way at once; completing the upload is the commit, and what is
//! not completed is aborted. It is read by range requests, several at once. Everything above blocks: async ends here.
//!
//! An object that we write carries a random token in its metadata. Where the answer to a commit is lost, the token tells
//! whether it was ours; where even that cannot be found out, the error says that the write may have happened.

mod bucket;
mod connect;
mod error;
mod io;
mod place;
mod reader;
mod records;
mod scratch;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use ckpt_engine::Result;
use ckpt_engine::db::{Capabilities, DriverOptions, Layout, Locality, Order, Records, Source, Values};

use self::bucket::Bucket;
pub(crate) use self::connect::Provider;
use self::io::Io;
use self::place::Place;
use self::records::ObjectRecords;
pub(crate) use self::scratch::ObjectScratch;
use self::writer::ObjectWriter;
use super::{Expected, Opened, Store, Writer};

/// The longest object: S3's limit; the others allow about as much.
const MAX_OBJECT_LEN: u64 = 5 << 40;

/// Objects under a prefix that is `bucket/path` or `s3://bucket/path` (`gs`, `az`).
#[derive(Debug)]
pub(crate) struct ObjectStores {
    provider: Provider,
    settings: Settings,
    io: Arc<Io>,
    /// One client each, with its connections.
    buckets: Mutex<BTreeMap<String, Arc<Bucket>>>,
}

/// What a user may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Requests under way at once.
    concurrency: usize,
    /// The length of a part of an upload, at least.
    part_bytes: u64,
}

impl Settings {
    /// Takes `concurrency` and `part_bytes`.
    fn take(options: &mut DriverOptions) -> Result<Self> {
        let concurrency = options.take("concurrency")?.unwrap_or(16_usize).clamp(1, 1024);
        let part_bytes =
            options.take("part_bytes")?.unwrap_or(8 << 20).clamp(writer::MIN_PART, writer::MAX_PART);
        Ok(Self { concurrency, part_bytes })
    }
}

impl ObjectStores {
    /// The store of a provider. Credentials and endpoint come from the environment when a bucket is first used.
    pub(crate) fn new(provider: Provider, mut options: DriverOptions) -> Result<Self> {
        let settings = Settings::take(&mut options)?;
        options.finish(provider.db_type())?;
        Ok(Self { provider, settings, io: Arc::default(), buckets: Mutex::default() })
    }

    fn bucket(&self, name: &str) -> Result<Arc<Bucket>> {
        // A bucket that could not be made is not in the map, so a map whose holder panicked is whole.
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = buckets.get(name) {
            return Ok(Arc::clone(bucket));
        }
        let store = self.io.within(|| connect::connect(self.provider, name))??;
        let url = format!("{}://{name}", self.provider.db_type());
        let bucket = Arc::new(Bucket::new(store, Arc::clone(&self.io), url, self.provider.aborts()));
        buckets.insert(name.to_owned(), Arc::clone(&bucket));
        Ok(bucket)
    }

    fn place(&self, prefix: &str) -> Result<(Arc<Bucket>, Place)> {
        let place = Place::parse(prefix)?;
        Ok((self.bucket(place.bucket())?, place))
    }
}

impl Store for ObjectStores {
    fn db_type(&self) -> &'static str {
        self.provider.db_type()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_key_len: usize::from(u16::MAX),
            max_value_len: MAX_OBJECT_LEN,
            locality: Locality::Remote,
            values: Values::Copied,
            order: Order::Ascending,
            layout: Layout::Native,
        }
    }

    fn create(&self, at: &Source, expected: Expected) -> Result<Box<dyn Writer>> {
        let (bucket, place) = self.place(at.prefix())?;
        let path = place.object(at.name())?;
        Ok(Box::new(ObjectWriter::new(bucket, path, expected, self.settings)?))
    }

    fn open(&self, at: &Source) -> Result<Opened> {
        let (bucket, place) = self.place(at.prefix())?;
        reader::open(bucket, place.object(at.name())?, self.settings)
    }

    fn exists(&self, at: &Source) -> Result<bool> {
        let (bucket, place) = self.place(at.prefix())?;
        bucket.exists(&place.object(at.name())?)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let (bucket, place) = self.place(prefix)?;
        bucket.list(&place.folder())
    }

    fn delete(&self, at: &Source) -> Result<()> {
        let (bucket, place) = self.place(at.prefix())?;
        bucket.delete(&place.object(at.name())?)
    }

    fn records(&self, prefix: &str) -> Result<Arc<dyn Records>> {
        let (bucket, place) = self.place(prefix)?;
        Ok(Arc::new(ObjectRecords::new(bucket, place)))
    }
}
