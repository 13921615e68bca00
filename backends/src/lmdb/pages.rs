//! The pages of an LMDB data file, decoded. Pure; nothing that it reads is trusted.
//!
//! Numbers are in the byte order of the machine that wrote; the magic tells. Offsets are within a page:
//!
//! | page | bytes |
//! |---|---|
//! | all | 0: its number (8); 10: its type (2) |
//! | meta: 0 and 1 | 16: magic (4), version (4); 40: the list of free pages; 88: the main database; 136: the last page (8), transaction (8) |
//! | branch, leaf | 12: the end of the pointers (2), the begin of the nodes (2); 16: pointers to the nodes (2 each) |
//! | overflow | 12: how many pages it is (4); 16: the value |
//!
//! A database is 0: page size (4, in the first of the two), flags (2), depth (2); 32: entries (8), root (8). A node is 0: the
//! value's length (4) and flags (2), or the child's number (6); 6: the key's length (2), key, value or its overflow page (8).

use ckpt_engine::{Error, Result};

/// The bytes before what a page holds.
pub(super) const PAGE_HEADER: usize = 16;
/// The bytes before a node's key.
pub(super) const NODE_HEADER: usize = 8;
/// The first page that is not a meta page.
pub(super) const FIRST_PAGE: u64 = 2;
/// A meta page up to its last field.
const META_LEN: usize = 152;

pub(super) const MAGIC: u32 = 0xBEEF_C0DE;
pub(super) const VERSION: u32 = 1;
pub(super) const NO_PAGE: u64 = u64::MAX;
/// liblmdb's cursors go no deeper.
const MAX_DEPTH: u16 = 32;

pub(super) const META: u16 = 0x08;
pub(super) const OVERFLOW: u16 = 0x04;
/// Keys in another order, or several values for one: 0x02 to 0x40.
const ORDERED_OTHERWISE: u16 = 0x7e;

pub(super) const LARGE: u16 = 0x01;
/// Another database, or several values.
const NESTED: u16 = 0x06;

/// The types of page that the tree is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Branch = 0x01,
    Leaf = 0x02,
}

/// What the newest meta page says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meta {
    pub(super) page_size: usize,
    last_page: u64,
    transaction: u64,
    /// `None` if there are no entries.
    pub(super) root: Option<u64>,
    /// How many pages lie on the way from the root to a leaf, both included.
    pub(super) depth: u16,
    pub(super) entries: u64,
    pub(super) file_len: u64,
}

/// Where a value is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) len: u64,
    /// The overflow page that it begins on; `None` for one that is in a leaf.
    pub(super) overflow: Option<u64>,
}

/// A key and what hangs on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node<'p> {
    pub(super) key: &'p [u8],
    start: usize,
    low: u32,
    flags: u16,
}

impl Meta {
    /// Reads both meta pages: the newer one counts.
    pub(super) fn read(file_len: u64, fetch: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>) -> Result<Self> {
        let mut decode = |number: u64, page_size: u64| {
            let offset = number * page_size;
            if offset + META_LEN as u64 > file_len {
                return Err(damaged(number, "file ends before it does"));
            }
            let mut bytes = [0; META_LEN];
            fetch(offset, &mut bytes)?;
            Self::decode(&bytes, number, file_len)
        };
        let first = decode(0, 0)?;
        let second = decode(1, first.page_size as u64)?;
        if first.page_size != second.page_size {
            return Err(damaged(1, "its page size is not that of meta page 0"));
        }
        // Transaction n writes page n % 2.
        match (first.transaction, second.transaction) {
            (0, 0) => Ok(first),
            (even, odd) if even % 2 == 0 && even.abs_diff(odd) == 1 => {
                Ok(if odd > even { second } else { first })
            }
            _ => Err(damaged(0, "the transactions of the two meta pages do not follow each other")),
        }
    }

    fn decode(bytes: &[u8], number: u64, file_len: u64) -> Result<Self> {
        let why = |why| damaged(number, why);
        let magic = u32_at(bytes, 16)?;
        if magic == MAGIC.swap_bytes() {
            return Err(Error::unsupported("LMDB file was written on a machine of the other byte order"));
        }
        if magic != MAGIC || u32_at(bytes, 20)? != VERSION {
            return Err(why("it has not the magic number and version of an LMDB file of a 64-bit machine"));
        }
        check_header(bytes, number, META)?;
        let page_size = usize::try_from(u32_at(bytes, 40)?).ok();
        let page_size = page_size.filter(|size| size.is_power_of_two() && (512..=65536).contains(size));
        let root = Some(u64_at(bytes, 128)?).filter(|root| *root != NO_PAGE);
        let meta = Self {
            page_size: page_size.ok_or_else(|| why("its page size is impossible"))?,
            last_page: u64_at(bytes, 136)?,
            transaction: u64_at(bytes, 144)?,
            root,
            depth: u16_at(bytes, 94)?,
            entries: u64_at(bytes, 120)?,
            file_len,
        };
        let flags = u16_at(bytes, 92)?;
        if flags & !ORDERED_OTHERWISE != 0 {
            return Err(why("its main database has unknown flags"));
        }
        if flags != 0 {
            return Err(Error::unsupported(format!(
                "main database of the LMDB file has several values for a key, or keys in another order flags=`{flags:#x}`"
            )));
        }
        if meta.depth > MAX_DEPTH || (meta.depth == 0) != root.is_none() {
            return Err(why("its depth is impossible"));
        }
        if (meta.entries == 0) != root.is_none() {
            return Err(why("its number of entries is impossible"));
        }
        // Nothing was committed before transaction 1, and whatever is committed takes a page that is not given back.
        if (meta.transaction == 0 && root.is_some()) || (meta.transaction > 1 && meta.last_page < FIRST_PAGE)
        {
            return Err(why("its transaction is impossible"));
        }
        Ok(meta)
    }

    /// Where in the file a page is, or `count` that follow each other.
    pub(super) fn locate(&self, number: u64, count: u64) -> Result<u64> {
        let size = self.page_size as u64;
        let end = number.checked_add(count).filter(|end| number >= FIRST_PAGE && end - 1 <= self.last_page);
        let end = end.ok_or_else(|| damaged(number, "no such page is in use"))?;
        match end.checked_mul(size) {
            Some(end) if end <= self.file_len => Ok(number * size),
            _ => Err(damaged(number, "file ends before it does")),
        }
    }

    /// How many overflow pages a value takes.
    pub(super) fn overflow_pages(&self, len: u64) -> u64 {
        (len + PAGE_HEADER as u64).div_ceil(self.page_size as u64)
    }

    /// Where the value of a leaf's node is. `page` is the leaf, `number` its number.
    pub(super) fn value(&self, page: &[u8], number: u64, node: &Node<'_>) -> Result<Extent> {
        let (start, len) = (node.start + NODE_HEADER + node.key.len(), u64::from(node.low));
        if node.flags & LARGE == 0 {
            return Ok(Extent { offset: self.locate(number, 1)? + start as u64, len, overflow: None });
        }
        let overflow = u64_at(page, start)?;
        let offset = self.locate(overflow, self.overflow_pages(len))?;
        Ok(Extent { offset: offset + PAGE_HEADER as u64, len, overflow: Some(overflow) })
    }

    /// Checks the header of the overflow page that a value begins on.
    pub(super) fn check_overflow(&self, header: &[u8], number: u64, len: u64) -> Result<()> {
        check_header(header, number, OVERFLOW)?;
        if u64::from(u32_at(header, 12)?) < self.overflow_pages(len) {
            return Err(damaged(number, "it is shorter than the value that begins on it"));
        }
        Ok(())
    }
}

impl Node<'_> {
    /// The page that a branch's node leads to.
    pub(super) fn child(&self) -> u64 {
        u64::from(self.low) | u64::from(self.flags) << 32
    }
}

/// The nodes of a page of the tree in key order. They fill it from the first to its end, without a gap.
pub(super) fn nodes(page: &[u8], number: u64, kind: Kind) -> Result<Vec<Node<'_>>> {
    let why = |why| damaged(number, why);
    check_header(page, number, kind as u16)?;
    let lower = usize::from(u16_at(page, 12)?);
    let upper = usize::from(u16_at(page, 14)?);
    if lower < PAGE_HEADER || lower % 2 != 0 || lower > upper || upper > page.len() {
        return Err(why("its bounds are impossible"));
    }
    let count = (lower - PAGE_HEADER) / 2;
    // A branch to one child only is never left standing.
    if count < if kind == Kind::Branch { 2 } else { 1 } {
        return Err(why("it has too few nodes"));
    }
    let mut nodes = Vec::with_capacity(count);
    let mut spans = Vec::with_capacity(count);
    for pointer in 0..count {
        let start = usize::from(u16_at(page, PAGE_HEADER + 2 * pointer)?);
        let (node, len) = node(page, number, kind, start)?;
        nodes.push(node);
        spans.push((start, start + len.next_multiple_of(2)));
    }
    spans.sort_unstable();
    let end = spans.iter().try_fold(upper, |end, span| (span.0 == end).then_some(span.1));
    if end != Some(page.len()) {
        return Err(why("its nodes do not fill it"));
    }
    Ok(nodes)
}

/// A node, and how long it is.
fn node(page: &[u8], number: u64, kind: Kind, start: usize) -> Result<(Node<'_>, usize)> {
    let (low, flags) = (u32_at(page, start)?, u16_at(page, start + 4)?);
    let value = match kind {
        Kind::Branch => 0,
        Kind::Leaf if flags & NESTED != 0 => {
            return Err(Error::unsupported(format!(
                "LMDB file has a named database or several values for a key page=`{number}`"
            )));
        }
        Kind::Leaf if flags & !LARGE != 0 => return Err(damaged(number, "a node has unknown flags")),
        Kind::Leaf if flags & LARGE != 0 => size_of::<u64>(),
        Kind::Leaf => low as usize,
    };
    let key_len = usize::from(u16_at(page, start + 6)?);
    let key_start = start + NODE_HEADER;
    let key = page.get(key_start..key_start + key_len);
    let key = key.ok_or_else(|| damaged(number, "a key ends outside of it"))?;
    Ok((Node { key, start, low, flags }, NODE_HEADER + key_len + value))
}

fn check_header(page: &[u8], number: u64, kind: u16) -> Result<()> {
    if u64_at(page, 0)? != number {
        return Err(damaged(number, "it has another number"));
    }
    if u16_at(page, 10)? != kind {
        return Err(damaged(number, "it is of another type"));
    }
    Ok(())
}

/// The error for a page that is not what liblmdb writes.
pub(super) fn damaged(number: u64, why: &str) -> Error {
    Error::corrupt(format!("page of the LMDB file is damaged: {why} page=`{number}`"))
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    let field = bytes.get(at..).and_then(<[u8]>::first_chunk);
    field.copied().ok_or_else(|| Error::corrupt(format!("LMDB page ends within a field offset=`{at}`")))
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16> {
    Ok(u16::from_ne_bytes(field(bytes, at)?))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    Ok(u32::from_ne_bytes(field(bytes, at)?))
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64> {
    Ok(u64::from_ne_bytes(field(bytes, at)?))
}
