//! Writing an object: in one request if it is small, else in parts, several under way at once.

use std::sync::Arc;

use bytes::Bytes;
use ckpt_engine::{Error, ErrorKind, Result};
use object_store::path::Path;
use object_store::{MultipartUpload, PutMode, PutMultipartOptions, PutPayload};
use tokio::task::JoinSet;

use super::Settings;
use super::bucket::{Bucket, Token};
use super::error::is_refusal;
use crate::store::{Expected, Writer};

/// The shortest part that S3 takes, but for the last.
pub(super) const MIN_PART: u64 = 5 << 20;

/// The longest part that S3 takes.
pub(super) const MAX_PART: u64 = 5 << 30;

/// So many parts may an upload have.
const MAX_PARTS: u64 = 10_000;

/// An object on its way. Dropped, its upload is aborted.
#[derive(Debug)]
pub(super) struct ObjectWriter {
    bucket: Arc<Bucket>,
    object: Path,
    token: Token,
    part_bytes: usize,
    /// Parts under way at once.
    max_in_flight: usize,
    /// The beginning of the next part.
    pending: Vec<Bytes>,
    pending_bytes: usize,
    /// Once there is more than one part.
    upload: Option<Upload>,
}

/// An upload in parts that was begun.
#[derive(Debug)]
struct Upload {
    multipart: Box<dyn MultipartUpload>,
    parts: u64,
    in_flight: JoinSet<object_store::Result<()>>,
}

impl ObjectWriter {
    /// Begins; sends nothing yet.
    pub(super) fn new(
        bucket: Arc<Bucket>,
        object: Path,
        expected: Expected,
        settings: Settings,
    ) -> Result<Self> {
        // A call from a place that must not wait is told now, not after gigabytes.
        bucket.io().handle()?;
        let part_bytes = part_bytes(expected.bytes, settings.part_bytes)?;
        // One more part than these is in memory: the pending one.
        let fit = (expected.limits.memory / part_bytes).saturating_sub(1);
        let max_in_flight = fit.clamp(1, settings.concurrency);
        let token = Token::random()?;
        Ok(Self {
            bucket,
            object,
            token,
            part_bytes,
            max_in_flight,
            pending: Vec::new(),
            pending_bytes: 0,
            upload: None,
        })
    }

    /// Sends the pending bytes as a part, when there is room for one more under way.
    fn send_part(&mut self) -> Result<()> {
        let Self { bucket, object, upload, .. } = self;
        let begun = match upload {
            Some(begun) => begun,
            None => {
                let options =
                    PutMultipartOptions { attributes: self.token.attributes(), ..Default::default() };
                let multipart = bucket.io().wait(bucket.store().put_multipart_opts(object, options))?;
                let multipart =
                    multipart.map_err(|error| bucket.failed("cannot begin upload", object, error))?;
                upload.insert(Upload { multipart, parts: 0, in_flight: JoinSet::new() })
            }
        };
        begun.wait_below(self.max_in_flight, bucket, object)?;
        if begun.parts == MAX_PARTS {
            let label = bucket.label(object);
            return Err(Error::invalid(format!(
                "more was written than planned: an object has at most {MAX_PARTS} parts object=`{label}`"
            )));
        }
        begun.parts += 1;
        let payload: PutPayload = std::mem::take(&mut self.pending).into_iter().collect();
        self.pending_bytes = 0;
        let part = begun.multipart.put_part(payload);
        begun.in_flight.spawn_on(part, &bucket.io().handle()?);
        Ok(())
    }

    /// Completes an upload whose parts have all arrived. If the answer is lost, finds out what happened.
    fn complete(&self, upload: &mut Upload) -> Result<()> {
        let (bucket, object, token) = (&self.bucket, &self.object, &self.token);
        bucket.io().wait(async {
            let Err(error) = upload.multipart.complete().await else {
                return Ok(());
            };
            let refused = is_refusal(&error);
            let error = bucket.failed("cannot complete upload", object, error);
            if matches!(bucket.is_ours(token, object).await, Ok(true)) {
                return Ok(());
            }
            // Once aborted it cannot be completed any more, so what is seen after that stays.
            let aborted = upload.multipart.abort().await.is_ok() && bucket.aborts();
            match bucket.is_ours(token, object).await {
                Ok(true) => Ok(()),
                Ok(false) if refused || aborted => Err(error),
                Err(_) if refused => Err(error),
                _ => Err(error.may_have_happened()),
            }
        })?
    }
}

impl Upload {
    /// Waits until fewer than `limit` parts are under way.
    fn wait_below(&mut self, limit: usize, bucket: &Bucket, object: &Path) -> Result<()> {
        loop {
            let done = if self.in_flight.len() < limit {
                self.in_flight.try_join_next()
            } else {
                bucket.io().wait(self.in_flight.join_next())?
            };
            match done {
                None => return Ok(()),
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(error))) => return Err(bucket.failed("cannot upload part", object, error)),
                Some(Err(error)) => return Err(bucket.failed("cannot upload part", object, error.into())),
            }
        }
    }
}

impl Writer for ObjectWriter {
    fn append(&mut self, pieces: Vec<Bytes>) -> Result<()> {
        for mut piece in pieces {
            while self.pending_bytes + piece.len() >= self.part_bytes {
                self.pending.push(piece.split_to(self.part_bytes - self.pending_bytes));
                self.send_part()?;
            }
            if !piece.is_empty() {
                self.pending_bytes += piece.len();
                self.pending.push(piece);
            }
        }
        Ok(())
    }

    fn commit(mut self: Box<Self>) -> Result<()> {
        if self.upload.is_none() {
            let payload: PutPayload = std::mem::take(&mut self.pending).into_iter().collect();
            let put = self.bucket.put_as(&self.token, &self.object, payload, PutMode::Overwrite);
            return self.bucket.io().wait(put)?;
        }
        if self.pending_bytes > 0 {
            self.send_part()?;
        }
        if let Some(upload) = &mut self.upload {
            upload.wait_below(1, &self.bucket, &self.object)?;
        }
        // From here on nothing is aborted by the drop: completing sees to that itself.
        match self.upload.take() {
            Some(mut upload) => self.complete(&mut upload),
            None => Err(Error::internal("upload is gone")),
        }
    }
}

impl Drop for ObjectWriter {
    fn drop(&mut self) {
        let Some(mut upload) = self.upload.take() else { return };
        let aborted = self.bucket.io().wait(async {
            // A part that arrives after the abort would be kept, and paid for.
            upload.in_flight.shutdown().await;
            upload.multipart.abort().await
        });
        let failed = match aborted {
            Ok(Ok(())) => return,
            Ok(Err(error)) => self.bucket.failed("cannot abort upload", &self.object, error),
            Err(error) => error,
        };
        tracing::warn!(error = ?failed, "parts of a discarded upload stay in the bucket until its lifecycle rule removes them");
    }
}

/// The length of a part so that `bytes` fit into the parts that an upload may have.
fn part_bytes(bytes: u64, at_least: u64) -> Result<usize> {
    const MIB: u64 = 1 << 20;
    let part = bytes.div_ceil(MAX_PARTS).next_multiple_of(MIB).max(at_least);
    usize::try_from(part).ok().filter(|_| part <= MAX_PART).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidInput,
            format!("more than an object can hold was planned bytes=`{bytes}`"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_as_short_as_their_number_allows() {
        const MIB: u64 = 1 << 20;
        let of = |bytes| part_bytes(bytes, 8 * MIB).map(|part| part as u64);
        assert_eq!(of(0).unwrap(), 8 * MIB);
        assert_eq!(of(80_000 * MIB).unwrap(), 8 * MIB);
        assert_eq!(of(80_000 * MIB + 1).unwrap(), 9 * MIB);
        for bytes in [1_u64, 1 << 30, 1 << 40, 40 << 40] {
            assert!(bytes.div_ceil(of(bytes).unwrap()) <= MAX_PARTS, "{bytes}");
        }
        assert!(of(60 << 40).is_err());
        assert!(of(u64::MAX - 1).is_err());
    }
}
