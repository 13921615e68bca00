//! Walks the bytes of a `BlobProto` without reading its payload.
//!
//! The elements of a tensor and the content of a blob are nearly all of a record. A walk keeps where they lie and puts all other
//! fields together to a message without payload, a skeleton, which `prost` then decodes. As in protobuf, fields come in any order,
//! numbers packed or one by one, a repeated field in several runs, a message in several parts; unknown fields are skipped.

use std::ops::Range;

use prost::Message;

use super::proto::{BlobProto, TensorProto};
use crate::error::{Error, Result};

/// Reads the bytes of a record from an offset on into all of a buffer.
pub type ReadAt<'a> = dyn FnMut(u64, &mut [u8]) -> Result<()> + 'a;

/// Numbers of the fields of a `TensorProto` that hold payload.
pub mod field {
    /// `float_data`
    pub const FLOAT: u32 = 3;
    /// `int32_data`
    pub const INT32: u32 = 4;
    /// `byte_data`
    pub const BYTES: u32 = 5;
    /// `string_data`
    pub const STRING: u32 = 6;
    /// `double_data`
    pub const DOUBLE: u32 = 9;
    /// `int64_data`
    pub const INT64: u32 = 10;
    /// `raw_data`
    pub const RAW: u32 = 13;
}

/// The first read of a record, and of each place in it that is jumped to.
const FIRST_READ: usize = 512;
/// The largest read of a walk.
const MAX_READ: usize = 64 << 10;
/// No writer cuts a field of one chunk into more runs: a bound for what a hostile file can make of few bytes.
const MAX_RUNS: usize = 1 << 16;
/// As deep as protobuf itself goes into unknown groups.
const MAX_DEPTH: usize = 100;

/// Payload of one field that lies together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The field's number.
    pub field: u32,
    /// Where in the record.
    pub range: Range<u64>,
    /// How it lies there.
    pub form: Form,
    /// How many elements, where that can be told without reading them: all but packed varints.
    pub count: u64,
    /// Their bytes without tags and lengths.
    pub bytes: u64,
}

/// How the elements of a [`Run`] follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Without anything between them.
    Packed,
    /// Each with its tag, and its length where it has one.
    Tagged,
}

/// A record without its payload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Skeleton {
    /// All fields but the payload.
    pub blob: BlobProto,
    /// The payload of its tensor, in the order of the record.
    pub runs: Vec<Run>,
    /// Where `content` is.
    pub content: Option<Range<u64>>,
    /// Whether it has a `qtensor`, which is payload too.
    pub has_qtensor: bool,
    /// Whether there is nothing but name, type and content, each once: then these tell all of it.
    pub is_plain: bool,
}

impl Skeleton {
    /// Walks a record of `len` bytes.
    pub fn walk(len: u64, read: &mut ReadAt<'_>) -> Result<Self> {
        let mut window = Window { read, len, start: 0, bytes: Vec::new(), step: FIRST_READ };
        let mut skeleton = Self { is_plain: true, ..Self::default() };
        let (mut outer, mut inner) = (Vec::new(), Vec::new());
        let mut has_tensor = false;
        let mut last = 0;
        let mut at = 0;
        while let Some(found) = window.field(at, len)? {
            at = found.body.end;
            skeleton.is_plain &= matches!(found.number, 1 | 2 | 4) && found.number > last;
            last = found.number;
            match (found.number, found.wire) {
                (3, Wire::Len) => {
                    has_tensor = true;
                    skeleton.walk_tensor(&mut window, found.body, &mut inner)?;
                }
                (4, Wire::Len) => skeleton.content = Some(found.body),
                (5, Wire::Len) => skeleton.has_qtensor = true,
                _ => window.copy(found.whole(), &mut outer)?,
            }
        }
        let broken = |error| Error::corrupt("record is not a BlobProto").with_source(error);
        skeleton.blob = BlobProto::decode(outer.as_slice()).map_err(broken)?;
        if has_tensor {
            skeleton.blob.tensor = Some(TensorProto::decode(inner.as_slice()).map_err(broken)?);
        }
        Ok(skeleton)
    }

    fn walk_tensor(
        &mut self,
        window: &mut Window<'_, '_>,
        body: Range<u64>,
        inner: &mut Vec<u8>,
    ) -> Result<()> {
        let mut at = body.start;
        while let Some(found) = window.field(at, body.end)? {
            at = found.body.end;
            let bytes = found.body.end - found.body.start;
            let run = |range: Range<u64>, form, count| Run { field: found.number, range, form, count, bytes };
            match (found.number, found.wire) {
                // A single value: the last one counts.
                (field::BYTES | field::RAW, Wire::Len) => {
                    self.runs.retain(|run| run.field != found.number);
                    self.add_run(run(found.body, Form::Packed, bytes))?;
                }
                (field::FLOAT, Wire::Len) => self.add_run(run(found.body, Form::Packed, bytes / 4))?,
                (field::DOUBLE, Wire::Len) => self.add_run(run(found.body, Form::Packed, bytes / 8))?,
                (field::INT32 | field::INT64, Wire::Len) => self.add_run(run(found.body, Form::Packed, 0))?,
                (field::STRING, Wire::Len)
                | (field::FLOAT, Wire::Fixed32)
                | (field::DOUBLE, Wire::Fixed64)
                | (field::INT32 | field::INT64, Wire::Varint) => {
                    self.add_run(run(found.whole(), Form::Tagged, 1))?;
                }
                _ => window.copy(found.whole(), inner)?,
            }
        }
        Ok(())
    }

    fn add_run(&mut self, run: Run) -> Result<()> {
        let is_list = !matches!(run.field, field::BYTES | field::RAW);
        if is_list && run.range.is_empty() {
            return Ok(());
        }
        if let Some(last) = self.runs.last_mut()
            && (last.field, last.form, run.form) == (run.field, Form::Tagged, Form::Tagged)
            && last.range.end == run.range.start
        {
            last.range.end = run.range.end;
            last.count += run.count;
            last.bytes += run.bytes;
            return Ok(());
        }
        if self.runs.len() >= MAX_RUNS {
            return Err(Error::corrupt("record has its payload in more pieces than any writer makes"));
        }
        self.runs.push(run);
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wire {
    Varint,
    Fixed64,
    Len,
    Fixed32,
    Group,
}

/// One field of a message.
#[derive(Debug)]
struct Found {
    number: u32,
    wire: Wire,
    start: u64,
    /// Without tag and length.
    body: Range<u64>,
}

impl Found {
    fn whole(&self) -> Range<u64> {
        self.start..self.body.end
    }
}

/// A part of the record that is in memory.
struct Window<'w, 'r> {
    read: &'w mut ReadAt<'r>,
    len: u64,
    start: u64,
    bytes: Vec<u8>,
    step: usize,
}

impl Window<'_, '_> {
    /// `want` bytes from `at` on, or those that are left.
    fn peek(&mut self, at: u64, want: usize) -> Result<&[u8]> {
        let want = usize::try_from(self.len.saturating_sub(at)).unwrap_or(usize::MAX).min(want);
        let here = at.checked_sub(self.start).and_then(|offset| usize::try_from(offset).ok());
        let loaded = here.filter(|offset| offset.saturating_add(want) <= self.bytes.len());
        let offset = match loaded {
            Some(offset) => offset,
            None => {
                let goes_on = here.is_some_and(|offset| offset <= self.bytes.len()) && !self.bytes.is_empty();
                self.step = if goes_on { (self.step * 2).min(MAX_READ) } else { FIRST_READ };
                let left = usize::try_from(self.len - at).unwrap_or(usize::MAX);
                self.bytes.resize(self.step.max(want).min(left), 0);
                (self.read)(at, &mut self.bytes)?;
                self.start = at;
                0
            }
        };
        Ok(self.bytes.get(offset..offset + want).unwrap_or_default())
    }

    /// Adds the bytes of a range, which is within the record, to `out`.
    fn copy(&mut self, range: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let want = usize::try_from(range.end - at).unwrap_or(MAX_READ).min(MAX_READ);
            let bytes = self.peek(at, want)?;
            out.extend_from_slice(bytes);
            at += want as u64;
        }
        Ok(())
    }

    /// The field at `at` of a message that ends at `end`, or `None` at its end.
    fn field(&mut self, at: u64, end: u64) -> Result<Option<Found>> {
        if at >= end {
            return Ok(None);
        }
        let (tag, body) = self.varint(at, end)?;
        let number = u32::try_from(tag >> 3).ok().filter(|&number| number > 0 && number < 1 << 29);
        let number = number.ok_or_else(|| broken("has a field without a number"))?;
        let (wire, body) = match tag & 7 {
            0 => (Wire::Varint, body..self.varint(body, end)?.1),
            1 => (Wire::Fixed64, body..body.saturating_add(8)),
            2 => {
                let (len, start) = self.varint(body, end)?;
                (Wire::Len, start..start.saturating_add(len))
            }
            3 => (Wire::Group, body..self.group_end(number, body, end)?),
            5 => (Wire::Fixed32, body..body.saturating_add(4)),
            _ => return Err(broken("has a field of an unknown kind")),
        };
        if body.end > end {
            return Err(broken("has a field that is longer than what is left"));
        }
        Ok(Some(Found { number, wire, start: at, body }))
    }

    /// Where a group ends that began before `at`: unknown, and skipped.
    fn group_end(&mut self, number: u32, mut at: u64, end: u64) -> Result<u64> {
        let mut open = vec![number];
        while let Some(&innermost) = open.last() {
            let (tag, body) = self.varint(at, end)?;
            let inner = u32::try_from(tag >> 3).map_err(|_| broken("has a field without a number"))?;
            at = match tag & 7 {
                3 if open.len() < MAX_DEPTH => {
                    open.push(inner);
                    body
                }
                4 if inner == innermost => {
                    open.pop();
                    body
                }
                0 => self.varint(body, end)?.1,
                1 => body.saturating_add(8),
                2 => {
                    let (len, start) = self.varint(body, end)?;
                    start.saturating_add(len)
                }
                5 => body.saturating_add(4),
                _ => return Err(broken("has a group that does not end")),
            };
            if at > end {
                return Err(broken("has a field that is longer than what is left"));
            }
        }
        Ok(at)
    }

    /// The number at `at`, and where it ends.
    fn varint(&mut self, at: u64, end: u64) -> Result<(u64, u64)> {
        let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(10);
        let bytes = self.peek(at, most)?;
        let (value, len) = varint(bytes).ok_or_else(|| broken("ends within a number"))?;
        Ok((value, at + len as u64))
    }
}

/// The varint that `bytes` begin with, and its length; `None` if it does not end or is longer than any is.
pub fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (index, &byte) in bytes.iter().take(10).enumerate() {
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has room for one bit.
        if index == 9 && byte > 1 {
            return None;
        }
        value |= bits << (7 * index);
        if byte < 0x80 {
            return Some((value, index + 1));
        }
    }
    None
}

fn broken(what: &str) -> Error {
    Error::corrupt(format!("record is not a BlobProto: {what}"))
}
