//! Bytes of a blob: aligned, shared, copied on write.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use bytes::Bytes;
#[cfg(target_os = "linux")]
use memmap2::Advice;
use memmap2::MmapMut;

use super::Element;
use crate::error::{Error, ErrorKind, Result};

/// The alignment of a buffer of at least this many bytes: what direct I/O and mapping need.
pub const PAGE: usize = 4096;

/// The alignment of a smaller buffer.
const LINE: usize = 64;

/// A buffer of at least this many bytes is a mapping of its own. The system zeroes its pages when they are first touched, by whichever
/// thread does that, and can use large ones; an allocator would zero all of it at once before it hands out aligned memory. A process
/// has some 65,000 mappings, so smaller ones stay with the allocator.
const MAPPED_FROM: usize = 1 << 20;

#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// Owned memory. Mappings and vectors of aligned units: aligned memory without any unsafe code.
enum Memory {
    Mapped(MmapMut),
    Pages(Vec<Page>),
    Lines(Vec<Line>),
}

impl Memory {
    /// Zeroed memory of at least `len` bytes; the system hands out large ones page by page on first touch.
    fn zeroed(len: usize) -> Option<Self> {
        if len >= MAPPED_FROM
            && let Ok(mapping) = MmapMut::map_anon(len)
        {
            // Fewer page faults; only a wish.
            #[cfg(target_os = "linux")]
            let _ = mapping.advise(Advice::HugePage);
            return Some(Self::Mapped(mapping));
        }
        if len < PAGE {
            let lines = bytemuck::allocation::try_zeroed_vec(len.div_ceil(LINE));
            lines.ok().map(Self::Lines)
        } else {
            let pages = bytemuck::allocation::try_zeroed_vec(len.div_ceil(PAGE));
            pages.ok().map(Self::Pages)
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(mapping) => mapping,
            Self::Pages(pages) => bytemuck::cast_slice(pages),
            Self::Lines(lines) => bytemuck::cast_slice(lines),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Mapped(mapping) => mapping,
            Self::Pages(pages) => bytemuck::cast_slice_mut(pages),
            Self::Lines(lines) => bytemuck::cast_slice_mut(lines),
        }
    }
}

#[derive(Clone)]
enum Storage {
    Owned(Arc<Memory>),
    /// Memory of someone else's, such as a mapped file or a vector.
    Foreign(Bytes),
}

/// A run of bytes that clones share until one of them writes.
///
/// A clone costs no copy, which is what makes a snapshot of a [`Workspace`](super::Workspace) free. A save holds clones
/// while it runs: a writer that changes a buffer meanwhile gets its own copy, and the save goes on with the old bytes.
#[derive(Clone)]
pub struct Buffer {
    storage: Storage,
    range: Range<usize>,
}

impl Buffer {
    /// `len` zero bytes. Fails with `Full` if there is not so much memory, so a length that a file claims is safe to ask for.
    pub fn zeroed(len: usize) -> Result<Self> {
        let memory = Memory::zeroed(len).ok_or_else(|| {
            Error::new(ErrorKind::Full, format!("out of memory for a buffer bytes=`{len}`"))
        })?;
        Ok(Self { storage: Storage::Owned(Arc::new(memory)), range: 0..len })
    }

    /// A copy of `bytes`, aligned.
    pub fn copy_from(bytes: &[u8]) -> Result<Self> {
        let mut buffer = Self::zeroed(bytes.len())?;
        buffer.as_mut()?.copy_from_slice(bytes);
        Ok(buffer)
    }

    /// The memory of a vector, without a copy.
    pub fn from_vec<T: Element>(elements: Vec<T>) -> Self {
        struct Owner<T>(Vec<T>);
        impl<T: Element> AsRef<[u8]> for Owner<T> {
            fn as_ref(&self) -> &[u8] {
                bytemuck::cast_slice(&self.0)
            }
        }
        // `Bytes` wants an owner that can be sent; elements are plain data.
        Bytes::from_owner(Owner(elements)).into()
    }

    /// The bytes, to be changed. Copies them first if anyone else holds them.
    pub fn as_mut(&mut self) -> Result<&mut [u8]> {
        if !self.is_unique() {
            *self = Self::copy_from(self)?;
        }
        match &mut self.storage {
            Storage::Owned(memory) => Arc::get_mut(memory)
                .and_then(|memory| memory.bytes_mut().get_mut(self.range.clone()))
                .ok_or_else(|| Error::internal("a unique buffer is shared")),
            Storage::Foreign(_) => Err(Error::internal("a copied buffer is foreign")),
        }
    }

    /// Whether [`as_mut`](Self::as_mut) would not copy.
    pub fn is_unique(&mut self) -> bool {
        match &mut self.storage {
            Storage::Owned(memory) => Arc::get_mut(memory).is_some(),
            Storage::Foreign(_) => false,
        }
    }

    /// Whether both are the same bytes in memory, as those of tied weights are. Empty ones never are.
    pub fn shares(&self, other: &Self) -> bool {
        !self.is_empty() && self.as_ptr() == other.as_ptr() && self.len() == other.len()
    }

    /// A part of the buffer, shared with it.
    pub fn slice(&self, range: Range<usize>) -> Result<Self> {
        if range.start > range.end || range.end > self.len() {
            return Err(Error::invalid(format!(
                "range is outside the buffer range=`{}..{}` length=`{}`",
                range.start,
                range.end,
                self.len()
            )));
        }
        Ok(Self {
            storage: self.storage.clone(),
            range: self.range.start + range.start..self.range.start + range.end,
        })
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all = match &self.storage {
            Storage::Owned(memory) => memory.bytes(),
            Storage::Foreign(bytes) => bytes,
        };
        // The range is within the memory since the buffer was made; an empty slice cannot come of it.
        all.get(self.range.clone()).unwrap_or_default()
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Bytes> for Buffer {
    /// Shares the bytes.
    fn from(bytes: Bytes) -> Self {
        Self { range: 0..bytes.len(), storage: Storage::Foreign(bytes) }
    }
}

impl From<Buffer> for Bytes {
    /// Shares the buffer.
    fn from(buffer: Buffer) -> Self {
        match buffer.storage {
            Storage::Foreign(bytes) => bytes.slice(buffer.range),
            Storage::Owned(_) => Bytes::from_owner(buffer),
        }
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Buffer {}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_shares_until_one_writes() {
        let mut a = Buffer::copy_from(&[1, 2, 3]).unwrap();
        let b = a.clone();
        assert!(a.shares(&b) && !a.is_unique());
        a.as_mut().unwrap()[0] = 9;
        assert_eq!((&*a, &*b), (&[9, 2, 3][..], &[1, 2, 3][..]));
        assert!(!a.shares(&b) && a.is_unique());
    }

    #[test]
    fn bytes_in_flight_keep_the_old_value() {
        let mut buffer = Buffer::copy_from(&[1; 5000]).unwrap();
        let in_flight = Bytes::from(buffer.clone());
        buffer.as_mut().unwrap().fill(2);
        assert!(in_flight.iter().all(|&byte| byte == 1));
        drop(in_flight);
        let address = buffer.as_ptr();
        buffer.as_mut().unwrap().fill(3);
        assert_eq!(buffer.as_ptr(), address, "alone again: changed in place");
    }

    #[test]
    fn memory_is_aligned() {
        for len in [1, 64, 4095] {
            assert_eq!(Buffer::zeroed(len).unwrap().as_ptr() as usize % LINE, 0);
        }
        for len in [4096, 4097, MAPPED_FROM - 1, MAPPED_FROM, MAPPED_FROM + 1] {
            assert_eq!(Buffer::zeroed(len).unwrap().as_ptr() as usize % PAGE, 0);
        }
    }

    #[test]
    fn a_length_that_no_machine_has_is_an_error() {
        let error = Buffer::zeroed(usize::MAX / 2 - PAGE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
    }

    #[test]
    fn a_vector_is_taken_without_a_copy() {
        let vector = vec![1.0f32, -0.0];
        let address = vector.as_ptr() as usize;
        let buffer = Buffer::from_vec(vector);
        assert_eq!(buffer.as_ptr() as usize, address);
        assert_eq!(*buffer, [0, 0, 0x80, 0x3f, 0, 0, 0, 0x80]);
    }

    #[test]
    fn a_slice_outside_is_an_error() {
        let buffer = Buffer::zeroed(10).unwrap();
        assert_eq!(buffer.slice(2..5).unwrap().len(), 3);
        assert!(buffer.slice(2..11).is_err());
    }
}
