//! What the errors of the object store client mean to us.

use ckpt_engine::{Error, ErrorKind};
use object_store::Error as StoreError;

/// The error for a request that failed: what could not be done, with which object.
pub(super) fn map(what: &str, object: &str, error: StoreError) -> Error {
    let (kind, hint) = kind(&error);
    Error::new(kind, format!("{what}{hint} object=`{object}`")).with_source(error)
}

fn kind(error: &StoreError) -> (ErrorKind, &'static str) {
    use StoreError as Store;
    const ABSENT: (ErrorKind, &str) = (ErrorKind::NotFound, ": no such object or bucket");
    const DENIED: (ErrorKind, &str) = (ErrorKind::Unavailable, ": access denied");
    const UNKNOWN: (ErrorKind, &str) = (ErrorKind::Unavailable, ": the credentials are not accepted");
    match error {
        Store::NotFound { .. } => ABSENT,
        Store::AlreadyExists { .. } => (ErrorKind::AlreadyExists, ": it exists already"),
        Store::Precondition { .. } | Store::NotModified { .. } => {
            (ErrorKind::Conflict, ": it was changed meanwhile")
        }
        Store::PermissionDenied { .. } => DENIED,
        Store::Unauthenticated { .. } => UNKNOWN,
        Store::NotSupported { .. } | Store::NotImplemented { .. } => {
            (ErrorKind::Unsupported, ": the store cannot do that")
        }
        Store::InvalidPath { .. } => (ErrorKind::InvalidInput, ": no valid name for an object"),
        Store::UnknownConfigurationKey { .. } => (ErrorKind::InvalidInput, ""),
        Store::JoinError { .. } => (ErrorKind::Internal, ""),
        other => match status(other) {
            Some(404) => ABSENT,
            Some(403) => DENIED,
            Some(401) => UNKNOWN,
            Some(507) => (ErrorKind::Full, ": no space left"),
            _ => (ErrorKind::Unavailable, ""),
        },
    }
}

/// The status that the server answered with, of an error that the client does not sort itself (those of listings and of
/// uploads). It gives the status in words only.
pub(super) fn status(error: &StoreError) -> Option<u16> {
    let text = error.to_string();
    let (_, after) = text.split_once("non-2xx status code: ")?;
    after.get(..3)?.parse().ok()
}

/// Whether the error shows that a write was refused. Any other may hide one whose answer was lost.
pub(super) fn is_refusal(error: &StoreError) -> bool {
    use StoreError as Store;
    match error {
        Store::PermissionDenied { .. }
        | Store::Unauthenticated { .. }
        | Store::NotSupported { .. }
        | Store::NotImplemented { .. }
        | Store::InvalidPath { .. }
        | Store::UnknownConfigurationKey { .. } => true,
        // The request is malformed, too long or not known there.
        other => matches!(status(other), Some(400 | 401 | 403 | 405 | 411 | 413 | 501)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_map_to_ours() {
        let path = String::new;
        let source = || "x".into();
        let cases = [
            (StoreError::NotFound { path: path(), source: source() }, ErrorKind::NotFound, false),
            (StoreError::AlreadyExists { path: path(), source: source() }, ErrorKind::AlreadyExists, false),
            (StoreError::Precondition { path: path(), source: source() }, ErrorKind::Conflict, false),
            (StoreError::PermissionDenied { path: path(), source: source() }, ErrorKind::Unavailable, true),
            (StoreError::Unauthenticated { path: path(), source: source() }, ErrorKind::Unavailable, true),
            (StoreError::NotSupported { source: source() }, ErrorKind::Unsupported, true),
            (StoreError::Generic { store: "S3", source: source() }, ErrorKind::Unavailable, false),
        ];
        let answered = |status: &str| StoreError::Generic {
            store: "S3",
            source: format!(
                "Error performing GET x - Server returned non-2xx status code: {status}: <Error>"
            )
            .into(),
        };
        let answers = [
            (answered("404 Not Found"), ErrorKind::NotFound, false),
            (answered("403 Forbidden"), ErrorKind::Unavailable, true),
            (answered("400 Bad Request"), ErrorKind::Unavailable, true),
            (answered("503 Slow Down"), ErrorKind::Unavailable, false),
            (answered("507 Insufficient Storage"), ErrorKind::Full, false),
            (answered("garbage"), ErrorKind::Unavailable, false),
        ];
        for (error, kind, refusal) in cases.into_iter().chain(answers) {
            assert_eq!(is_refusal(&error), refusal, "{error}");
            let mapped = map("cannot do", "s3://b/x", error);
            assert_eq!(mapped.kind(), kind, "{mapped}");
            assert!(mapped.to_string().ends_with("object=`s3://b/x`"), "{mapped}");
        }
    }
}
