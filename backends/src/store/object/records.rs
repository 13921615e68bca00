//! The small records of a place as objects under `<prefix>/.ckpt/`.

use std::sync::Arc;

use bytes::Bytes;
use ckpt_engine::Result;
use ckpt_engine::db::{PutMode, Records};

use super::bucket::Bucket;
use super::place::Place;
use crate::store::MAX_RECORD_LEN;

/// [`Records`] in a bucket.
#[derive(Debug)]
pub(super) struct ObjectRecords {
    bucket: Arc<Bucket>,
    place: Place,
}

impl ObjectRecords {
    /// The records of a place. Sends nothing.
    pub(super) fn new(bucket: Arc<Bucket>, place: Place) -> Self {
        Self { bucket, place }
    }
}

impl Records for ObjectRecords {
    fn get(&self, name: &str) -> Result<Option<Bytes>> {
        self.bucket.get(&self.place.record(name)?, MAX_RECORD_LEN)
    }

    fn put(&self, name: &str, value: Bytes, mode: PutMode) -> Result<()> {
        let mode = match mode {
            PutMode::Replace => object_store::PutMode::Overwrite,
            PutMode::Create => object_store::PutMode::Create,
        };
        self.bucket.put(&self.place.record(name)?, value.into(), mode)
    }

    fn list(&self) -> Result<Vec<String>> {
        self.bucket.list(&self.place.record_folder()?)
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.bucket.delete(&self.place.record(name)?)
    }
}
