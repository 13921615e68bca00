//! What is told while a verb runs, for progress bars and tests.

/// Told about the progress of a verb. Methods are called from several threads, must return at once, and must not panic.
pub trait Observer: Send + Sync {
    /// A db is about to be written, read or checked: `bytes` of payload lie ahead.
    fn started(&self, what: &str, bytes: u64) {
        let _ = (what, bytes);
    }

    /// `bytes` more of the payload are done.
    fn advanced(&self, bytes: u64) {
        let _ = bytes;
    }

    /// What [`started`](Self::started) announced has ended, well or not.
    fn finished(&self) {}
}

/// Tells nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}
