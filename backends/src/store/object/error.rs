//! What the errors of the object store client mean to us.

use ckpt_engine::{Error, ErrorKind};
use object_store::Error as StoreError;

/// The error for a request that failed: what could not be done, with which object.
pub(super) fn map(what: &str, object: &str, error: StoreError) -> Error {
    use StoreError as Store;
    let (kind, hint) = match &error {
        Store::NotFound { .. } => (ErrorKind::NotFound, ": no such object or bucket"),
        Store::AlreadyExists { .. } => (ErrorKind::AlreadyExists, ": it exists already"),
        Store::Precondition { .. } | Store::NotModified { .. } => {
            (ErrorKind::Conflict, ": it was changed meanwhile")
        }
        Store::PermissionDenied { .. } => (ErrorKind::Unavailable, ": access denied"),
        Store::Unauthenticated { .. } => (ErrorKind::Unavailable, ": the credentials are not accepted"),
        Store::NotSupported { .. } | Store::NotImplemented { .. } => {
            (ErrorKind::Unsupported, ": the store cannot do that")
        }
        Store::InvalidPath { .. } => (ErrorKind::InvalidInput, ": no valid name for an object"),
        Store::UnknownConfigurationKey { .. } => (ErrorKind::InvalidInput, ""),
        Store::JoinError { .. } => (ErrorKind::Internal, ""),
        _ => (ErrorKind::Unavailable, ""),
    };
    Error::new(kind, format!("{what}{hint} object=`{object}`")).with_source(error)
}

/// Whether the error shows that a write was refused. Any other may hide one whose answer was lost.
pub(super) fn is_refusal(error: &StoreError) -> bool {
    use StoreError as Store;
    matches!(
        error,
        Store::PermissionDenied { .. }
            | Store::Unauthenticated { .. }
            | Store::NotSupported { .. }
            | Store::NotImplemented { .. }
            | Store::InvalidPath { .. }
            | Store::UnknownConfigurationKey { .. }
    )
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
        for (error, kind, refusal) in cases {
            assert_eq!(is_refusal(&error), refusal, "{error}");
            let mapped = map("cannot do", "s3://b/x", error);
            assert_eq!(mapped.kind(), kind, "{mapped}");
            assert!(mapped.to_string().ends_with("object=`s3://b/x`"), "{mapped}");
        }
    }
}
