//! What is saved and loaded: tensors like weights, the same for the same seed.

use bytes::Bytes;
use ckpt_engine::blob::{Buffer, DType, Tensor, Workspace};
use ckpt_engine::{Error, Result};
use serde::{Deserialize, Serialize};

/// What it is made of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Payload {
    /// Bytes of all blobs together.
    pub(super) bytes: u64,
    pub(super) blobs: u64,
    pub(super) dtype: String,
    pub(super) seed: u64,
}

impl Payload {
    /// As many blobs of equal size as make up about `bytes`.
    pub(super) fn new(bytes: u64, blobs: u64, dtype: DType, seed: u64) -> Result<Self> {
        let width = dtype.size().unwrap_or(1) as u64;
        let each = bytes / blobs.max(1) / width * width;
        if blobs == 0 || each == 0 {
            return Err(Error::invalid(format!(
                "a blob needs at least one element; give a larger --size or fewer --blobs bytes=`{bytes}` blobs=`{blobs}`"
            )));
        }
        Ok(Self { bytes: each * blobs, blobs, dtype: dtype.name().to_owned(), seed })
    }

    /// The bytes of one blob.
    fn each(&self) -> u64 {
        self.bytes / self.blobs.max(1)
    }

    pub(super) fn name(&self, blob: u64) -> String {
        format!("layer.{blob:06}.weight")
    }

    /// The blob whose loading is timed by itself.
    pub(super) fn middle(&self) -> u64 {
        self.blobs / 2
    }

    /// The bytes of one blob: numbers spread evenly over ±0.04. Their signs and mantissas are noise, and their exponents are as few as
    /// those of trained weights.
    fn fill(&self, blob: u64, out: &mut [u8]) {
        let mut state = self.seed.wrapping_add(blob.wrapping_mul(0xd134_2543_de82_ef95));
        let mut next = || {
            // SplitMix64.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        let number = |bits: u64| {
            let [a, b, c, d, ..] = bits.to_le_bytes();
            i32::from_le_bytes([a, b, c, d]) as f32 * (0.04 / 2_147_483_648.0)
        };
        if self.dtype == DType::F32.name() {
            for pair in out.chunks_mut(8) {
                let bits = next();
                let [a, b, c, d] = number(bits).to_le_bytes();
                let [e, f, g, h] = number(bits >> 32).to_le_bytes();
                pair.iter_mut().zip([a, b, c, d, e, f, g, h]).for_each(|(out, byte)| *out = byte);
            }
        } else {
            // The upper half of an f32 is a bf16.
            for four in out.chunks_mut(4) {
                let bits = next();
                let [_, _, a, b] = number(bits).to_le_bytes();
                let [_, _, c, d] = number(bits >> 32).to_le_bytes();
                four.iter_mut().zip([a, b, c, d]).for_each(|(out, byte)| *out = byte);
            }
        }
    }

    fn dtype(&self) -> Result<DType> {
        self.dtype.parse()
    }

    /// All blobs.
    pub(super) fn workspace(&self) -> Result<Workspace> {
        let dtype = self.dtype()?;
        let each = usize::try_from(self.each()).map_err(|_| Error::invalid("payload is too large"))?;
        let elements = self.each() / dtype.size().unwrap_or(1) as u64;
        (0..self.blobs)
            .map(|blob| {
                let mut data = Buffer::zeroed(each)?;
                self.fill(blob, data.as_mut()?);
                Ok((self.name(blob), Tensor::new(dtype, vec![elements], data)?.into()))
            })
            .collect()
    }

    /// Compares what was loaded, byte by byte. `blobs` are those that it must hold.
    pub(super) fn check(&self, loaded: &Workspace, blobs: impl Iterator<Item = u64>) -> Result<()> {
        let mut expected = vec![0; usize::try_from(self.each()).unwrap_or_default()];
        for blob in blobs {
            self.fill(blob, &mut expected);
            let name = self.name(blob);
            if loaded.tensor(&name)?.data()[..] != expected[..] {
                return Err(Error::internal(format!("a blob came back changed blob=`{name}`")));
            }
        }
        Ok(())
    }

    /// Memory of about the size of the payload, for probes.
    pub(super) fn block(&self, len: usize) -> Result<Bytes> {
        let mut block = Buffer::zeroed(len)?;
        self.fill(0, block.as_mut()?);
        Ok(block.into())
    }
}
