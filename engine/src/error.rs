//! The one public error of the engine.
//!
//! An [`Error`] has a kind that a caller can act on, a one-line message that says what, where and what to do, the
//! contexts that the layers above added (each once), and a source. For writes it also says whether the effect may have
//! happened all the same ([`Effect`]), because such a write must not be retried blindly.

use std::error::Error as StdError;
use std::fmt;

/// The result of every fallible call of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as far as a caller would act differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// What was asked for is not there. Never used for "cannot tell".
    NotFound,
    /// What was to be made exists already.
    AlreadyExists,
    /// The call's arguments or the given data are wrong; calling again with the same ones fails again.
    InvalidInput,
    /// The request is sound, but this backend, build or version cannot do it.
    Unsupported,
    /// Another writer got there first, or the thing changed under the call.
    Conflict,
    /// A disk, a quota, a map or memory is full.
    Full,
    /// Stored bytes are not what was written.
    Corrupt,
    /// The store did not answer, refused access, or failed in a way that may pass.
    Unavailable,
    /// The handle was closed by an earlier failure and must be opened anew.
    Closed,
    /// A bug in this library or in one below it.
    Internal,
}

impl ErrorKind {
    /// The kind in words, as errors print it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not found",
            Self::AlreadyExists => "already exists",
            Self::InvalidInput => "invalid input",
            Self::Unsupported => "unsupported",
            Self::Conflict => "conflict",
            Self::Full => "full",
            Self::Corrupt => "corrupt",
            Self::Unavailable => "unavailable",
            Self::Closed => "closed",
            Self::Internal => "internal error",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether a failed write may have taken effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// It did not happen.
    #[default]
    None,
    /// It may have happened: the answer was lost. Look before trying again.
    MayHaveHappened,
}

/// An error of the engine or of a backend. See the [module](self).
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    /// Innermost first.
    contexts: Vec<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
    effect: Effect,
}

impl Error {
    /// An error with a one-line, lower-case message that ends in its variables as ``key=`value` ``.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            contexts: Vec::new(),
            source: None,
            effect: Effect::None,
        }))
    }

    /// [`ErrorKind::NotFound`].
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// [`ErrorKind::InvalidInput`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    /// [`ErrorKind::Corrupt`].
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// [`ErrorKind::Unsupported`].
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// [`ErrorKind::Internal`].
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// The kind a [`std::io::Error`] stands for, with `message` in front of it.
    pub fn io(message: impl Into<String>, error: std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let kind = match error.kind() {
            Io::NotFound => ErrorKind::NotFound,
            Io::AlreadyExists => ErrorKind::AlreadyExists,
            Io::InvalidInput
            | Io::NotADirectory
            | Io::IsADirectory
            | Io::InvalidFilename
            | Io::DirectoryNotEmpty => ErrorKind::InvalidInput,
            Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge | Io::OutOfMemory => ErrorKind::Full,
            Io::UnexpectedEof | Io::InvalidData => ErrorKind::Corrupt,
            Io::Unsupported => ErrorKind::Unsupported,
            _ => ErrorKind::Unavailable,
        };
        Self::new(kind, message).with_source(error)
    }

    /// Adds what the layer above was doing, once per layer.
    #[must_use]
    pub fn context(mut self, context: impl Into<String>) -> Self {
        self.0.contexts.push(context.into());
        self
    }

    /// Adds the error below this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Replaces the kind, for a layer that knows better what a failure means.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Marks a write whose effect may have happened.
    #[must_use]
    pub fn may_have_happened(mut self) -> Self {
        self.0.effect = Effect::MayHaveHappened;
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// For a write: whether it may have happened all the same.
    pub fn effect(&self) -> Effect {
        self.0.effect
    }
}

impl fmt::Display for Error {
    /// One line: the contexts, outermost first, then the message. The source is not part of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for context in self.0.contexts.iter().rev() {
            write!(f, "{context}: ")?;
        }
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self, self.0.kind)?;
        if self.0.effect == Effect::MayHaveHappened {
            f.write_str(" (may have happened)")?;
        }
        let mut source = self.source();
        while let Some(error) = source {
            write!(f, "\n  caused by: {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }
}

/// Adds a context to the error of a [`Result`].
pub trait ResultExt<T> {
    /// The context is only made when there is an error.
    fn context<C: Into<String>>(self, context: impl FnOnce() -> C) -> Result<T>;
}

impl<T> ResultExt<T> for Result<T> {
    fn context<C: Into<String>>(self, context: impl FnOnce() -> C) -> Result<T> {
        self.map_err(|error| error.context(context()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_one_line_with_the_outermost_context_first() {
        let error = Error::corrupt("checksum differs chunk=`3`")
            .context("blob `w`")
            .context("db `files:/c/a.1`")
            .with_source(std::io::Error::other("below"));
        assert_eq!(error.to_string(), "db `files:/c/a.1`: blob `w`: checksum differs chunk=`3`");
        assert!(format!("{error:?}").ends_with("caused by: below"));
    }

    #[test]
    fn io_kinds_map_to_ours() {
        let cases = [
            ("ENOENT", 2, ErrorKind::NotFound),
            ("EEXIST", 17, ErrorKind::AlreadyExists),
            ("ENOTDIR", 20, ErrorKind::InvalidInput),
            ("EISDIR", 21, ErrorKind::InvalidInput),
            ("ENOSPC", 28, ErrorKind::Full),
            ("EDQUOT", 122, ErrorKind::Full),
            ("EFBIG", 27, ErrorKind::Full),
            ("EACCES", 13, ErrorKind::Unavailable),
            ("EIO", 5, ErrorKind::Unavailable),
        ];
        for (name, errno, kind) in cases {
            let error = Error::io("x", std::io::Error::from_raw_os_error(errno));
            assert_eq!(error.kind(), kind, "{name}");
        }
    }
}
