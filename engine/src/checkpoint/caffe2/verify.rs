//! Verify: every record is read and decoded. There is no checksum to compare with.

use std::ops::Range;

use super::read::{Caffe2, bytes_of};
use crate::blob::{Buffer, DType, to_usize};
use crate::checkpoint::opened::{Fetch, Opened};
use crate::checkpoint::verify::reason;
use crate::checkpoint::{Damage, VerifyReport};
use crate::error::{ErrorKind, Result};
use crate::format::caffe2::index::{Contents, Entry};
use crate::format::caffe2::record::Piece;
use crate::format::manifest::BlobKind;

/// How much of a part is read at a time, where it need not be decoded.
const WINDOW: u64 = 16 << 20;

/// Reads and decodes everything.
pub(in crate::checkpoint) fn verify(caffe2: &Caffe2, opened: &Opened) -> Result<VerifyReport> {
    let observer = &opened.options.observer;
    let mut report = VerifyReport { blobs: caffe2.blobs().len() as u64, ..VerifyReport::default() };
    observer.started(&opened.label, caffe2.bytes());
    let outcome = caffe2.blobs().iter().enumerate().try_for_each(|(index, blob)| {
        let contents = match &blob.contents {
            Ok(contents) => contents,
            Err(reason) => {
                report.damage.push(damage(opened, blob, None, reason.clone()));
                return Ok(());
            }
        };
        for range in windows(contents)? {
            let mut bytes = Buffer::zeroed(to_usize(range.end - range.start)?)?;
            let fetch = Fetch { storage: index, range: range.clone(), out: bytes.as_mut()? };
            match caffe2.fetch(opened, vec![fetch], &**observer) {
                Ok(()) => report.bytes += range.end - range.start,
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    report.damage.push(damage(opened, blob, Some(range), reason(&error)));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    });
    observer.finished();
    outcome.map(|()| report)
}

/// The ranges in which a blob is read: of a part that must be decoded all at once, since it is decoded from its beginning.
fn windows(contents: &Contents) -> Result<Vec<Range<u64>>> {
    let mut windows = Vec::new();
    if matches!(contents.kind, BlobKind::Tensor { dtype: DType::String, .. }) {
        windows.push(0..contents.bytes);
        return Ok(windows);
    }
    let mut begin = 0;
    for part in &contents.parts {
        let end = begin + bytes_of(part)?;
        let is_direct = match &part.piece {
            Piece::Opaque(_) => true,
            Piece::Tensor(piece) => piece.is_direct(),
        };
        let step = if is_direct { WINDOW } else { end - begin };
        while begin < end {
            let next = end.min(begin + step);
            windows.push(begin..next);
            begin = next;
        }
    }
    Ok(windows)
}

fn damage(opened: &Opened, blob: &Entry, range: Option<Range<u64>>, reason: String) -> Damage {
    Damage { db: opened.label.clone(), blob: Some(blob.name.clone()), range, reason }
}
