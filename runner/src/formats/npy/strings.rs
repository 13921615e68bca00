//! Strings in cells of one width, as numpy keeps them: NULs at the end of a cell are not part of the string.

use ckpt_engine::blob::Buffer;
use ckpt_engine::{Error, Result};

use super::corrupt;

/// The cells of `width` bytes; of no bytes, `count` of them.
pub(super) fn cells(data: &[u8], width: usize, count: u64) -> impl Iterator<Item = &[u8]> {
    let empty = if width == 0 { count } else { 0 };
    data.chunks_exact(width.max(1)).chain((0..empty).map(|_| &[][..]))
}

/// Without the NULs that fill a cell.
pub(super) fn trim(cell: &[u8]) -> &[u8] {
    let len = cell.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    cell.get(..len).unwrap_or_default()
}

pub(super) fn text(cell: &[u8], code_point: fn([u8; 4]) -> u32) -> Result<String> {
    let points = cell.chunks_exact(4).filter_map(|bytes| bytes.first_chunk()).map(|bytes| code_point(*bytes));
    let chars = points.map(|point| {
        char::from_u32(point)
            .ok_or_else(|| corrupt(format!("string holds what is no character code=`{point:#x}`")))
    });
    let mut text = chars.collect::<Result<String>>()?;
    text.truncate(text.trim_end_matches('\0').len());
    Ok(text)
}

/// Strings as cells, as text if all of them are, else as bytes; and the `descr` of the cells.
pub(super) fn to_cells(strings: &[&[u8]]) -> Result<(String, Buffer)> {
    if strings.iter().any(|string| string.last() == Some(&0)) {
        return Err(Error::unsupported(
            "numpy cannot hold a string that ends in a NUL; leave the blob out with --blob",
        ));
    }
    let texts: Option<Vec<&str>> = strings.iter().map(|string| std::str::from_utf8(string).ok()).collect();
    match texts {
        None => {
            let width = strings.iter().map(|string| string.len()).max().unwrap_or(0).max(1);
            let mut cells = zeroed(strings.len(), width)?;
            for (cell, string) in cells.as_mut()?.chunks_exact_mut(width).zip(strings) {
                cell.iter_mut().zip(*string).for_each(|(to, from)| *to = *from);
            }
            Ok((format!("|S{width}"), cells))
        }
        Some(texts) => {
            let width = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0).max(1);
            let mut cells = zeroed(strings.len(), width.saturating_mul(4))?;
            for (cell, text) in cells.as_mut()?.chunks_exact_mut(width.saturating_mul(4)).zip(texts) {
                let points = text.chars().map(|point| u32::from(point).to_le_bytes());
                cell.chunks_exact_mut(4).zip(points).for_each(|(to, point)| to.copy_from_slice(&point));
            }
            Ok((format!("<U{width}"), cells))
        }
    }
}

/// One long string makes every cell long: that much memory may not be there.
fn zeroed(count: usize, width: usize) -> Result<Buffer> {
    Buffer::zeroed(count.saturating_mul(width).min(isize::MAX as usize / 2))
}
