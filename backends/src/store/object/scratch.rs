//! Plain objects in a folder of our own: what the bucket can do, to compare with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ckpt_engine::db::DriverOptions;
use ckpt_engine::{Error, ErrorKind, Result};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStoreExt, PutPayload};
use tokio::task::{JoinError, JoinSet};

use super::bucket::Bucket;
use super::place::Place;
use super::{ObjectStores, Provider, Settings};
use crate::scratch::Scratch;
use crate::store::names::random;

/// [`Scratch`] in a bucket.
#[derive(Debug)]
pub(crate) struct ObjectScratch {
    provider: Provider,
    options: DriverOptions,
    settings: Settings,
    prefix: String,
}

impl ObjectScratch {
    /// A fresh folder under `prefix`. Sends nothing yet.
    pub(crate) fn new(provider: Provider, prefix: &str, options: DriverOptions) -> Result<Self> {
        Place::parse(prefix)?;
        let settings = Settings::take(&mut options.clone())?;
        let prefix = format!("{}/ckpt-bench-{}", prefix.trim_end_matches('/'), random()?);
        Ok(Self { provider, options, settings, prefix })
    }

    /// With connections of its own, as the driver has in another process.
    fn connect(&self) -> Result<(Arc<Bucket>, Place)> {
        ObjectStores::new(self.provider, self.options.clone())?.place(&self.prefix)
    }

    /// Transfers all objects, as many at once as the driver would.
    fn transfer<F>(&self, bytes: u64, one: impl Fn(Arc<Bucket>, Path, u64) -> F) -> Result<Duration>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let (bucket, place) = self.connect()?;
        let each = self.settings.part_bytes;
        let objects = (0..bytes.div_ceil(each)).map(|number| {
            let object = place.object(&format!("probe.{number}"))?;
            Ok((object, each.min(bytes - number * each)))
        });
        let objects: Vec<(Path, u64)> = objects.collect::<Result<_>>()?;
        let handle = bucket.io().handle()?;
        let started = Instant::now();
        bucket.io().wait(async {
            let mut in_flight = JoinSet::new();
            let mut outcome = Ok(());
            for (object, len) in objects {
                if in_flight.len() == self.settings.concurrency
                    && let Some(done) = in_flight.join_next().await
                {
                    outcome = ended(done);
                }
                if outcome.is_err() {
                    break;
                }
                in_flight.spawn_on(one(Arc::clone(&bucket), object, len), &handle);
            }
            // After a failure too: an object that arrives later would be left.
            while let Some(done) = in_flight.join_next().await {
                outcome = outcome.and(ended(done));
            }
            outcome
        })??;
        Ok(started.elapsed())
    }
}

fn ended(done: Result<Result<()>, JoinError>) -> Result<()> {
    done.unwrap_or_else(|error| Err(Error::internal("a plain transfer panicked").with_source(error)))
}

impl Scratch for ObjectScratch {
    fn prefix(&self) -> &str {
        &self.prefix
    }

    fn way(&self) -> (u64, usize) {
        (self.settings.part_bytes, self.settings.concurrency)
    }

    fn put(&self, bytes: u64, block: &Bytes) -> Result<Duration> {
        let longest = bytes.min(self.settings.part_bytes);
        if (block.len() as u64) < longest {
            let message =
                format!("block is shorter than an object length=`{}` object=`{longest}`", block.len());
            return Err(Error::invalid(message));
        }
        let block = block.clone();
        self.transfer(bytes, move |bucket, object, len| {
            let bytes = block.slice(..usize::try_from(len).unwrap_or(usize::MAX).min(block.len()));
            async move {
                let put = bucket.store().put(&object, PutPayload::from(bytes)).await;
                put.map(drop).map_err(|error| bucket.failed("cannot write object", &object, error))
            }
        })
    }

    fn get(&self, bytes: u64) -> Result<Duration> {
        self.transfer(bytes, |bucket, object, len| async move {
            let read = AtomicU64::new(0);
            let got = async {
                let mut stream = bucket.store().get(&object).await?.into_stream();
                while let Some(bytes) = stream.next().await {
                    read.fetch_add(bytes?.len() as u64, Ordering::Relaxed);
                }
                Ok(())
            };
            got.await.map_err(|error| bucket.failed("cannot read object", &object, error))?;
            if read.into_inner() == len {
                return Ok(());
            }
            let message = format!("answer was cut short object=`{}`", bucket.label(&object));
            Err(Error::new(ErrorKind::Unavailable, message))
        })
    }

    fn clear(&self) -> Result<()> {
        let (bucket, place) = self.connect()?;
        let folder = place.folder();
        let store = bucket.store();
        let cleared = bucket.io().wait(async {
            let listed: Vec<_> = store.list(Some(&folder)).try_collect().await?;
            let delete = |object: Path| async move {
                match store.delete(&object).await {
                    Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
                    Err(error) => Err(error),
                }
            };
            let deletes = listed.into_iter().map(|found| delete(found.location));
            futures_util::stream::iter(deletes)
                .buffer_unordered(self.settings.concurrency)
                .try_collect::<Vec<()>>()
                .await
        })?;
        let Err(error) = cleared else { return Ok(()) };
        let error = bucket.failed("cannot remove what was measured in", &folder, error);
        // In a bucket that is not there, nothing is left.
        if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) }
    }
}

impl Drop for ObjectScratch {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            let prefix = format!("{}://{}", self.provider.db_type(), self.prefix);
            tracing::warn!("{error}; remove what is left there prefix=`{prefix}`");
        }
    }
}
