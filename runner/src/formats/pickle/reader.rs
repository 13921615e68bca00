//! The bytes of a pickle, one argument of an opcode after the other.

use bytes::Bytes;
use ckpt_engine::{Error, Result};

fn ended() -> Error {
    Error::corrupt("pickle ends early")
}

pub(super) struct Reader {
    file: Bytes,
    at: usize,
}

impl Reader {
    pub(super) fn new(file: Bytes) -> Self {
        Self { file, at: 0 }
    }

    /// How many bytes were read.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// How many bytes are left.
    pub(super) fn left(&self) -> usize {
        self.file.len().saturating_sub(self.at)
    }

    /// So many bytes, which share the file.
    pub(super) fn take(&mut self, len: u64) -> Result<Bytes> {
        let len = usize::try_from(len).ok().filter(|len| *len <= self.left()).ok_or_else(ended)?;
        let taken = self.file.slice(self.at..self.at + len);
        self.at += len;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let array = *self.file.get(self.at..).and_then(|rest| rest.first_chunk()).ok_or_else(ended)?;
        self.at += N;
        Ok(array)
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// The bytes to the end of the line, without it.
    pub(super) fn line(&mut self) -> Result<Bytes> {
        let rest = self.file.get(self.at..).unwrap_or_default();
        let len = rest.iter().position(|&byte| byte == b'\n').ok_or_else(ended)?;
        let line = self.take(len as u64)?;
        self.at += 1;
        Ok(line)
    }

    /// Bytes after their length in one byte.
    pub(super) fn short(&mut self) -> Result<Bytes> {
        let len = self.u8()?;
        self.take(u64::from(len))
    }

    /// Bytes after their length in four bytes, which Python 2 took for signed: it wrote none that are longer than that.
    pub(super) fn long(&mut self) -> Result<Bytes> {
        let len = self.u32()?;
        self.take(u64::from(len))
    }

    /// Bytes after their length in eight bytes.
    pub(super) fn huge(&mut self) -> Result<Bytes> {
        let len = self.array().map(u64::from_le_bytes)?;
        self.take(len)
    }
}
