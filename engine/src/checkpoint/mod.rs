//! The verbs on checkpoints: save, load, verify, copy, diff, list.
//!
//! [`Checkpoints`] is a place: a backend and a prefix, with the options for everything done there. [`Checkpoint`] is one open
//! db of it. One file per verb.

pub mod caffe2;
mod content;
mod copy;
mod diff;
mod epochs;
pub mod naming;
mod native;
mod open;
mod opened;
mod save;
mod verify;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

pub use copy::{CopyOutcome, CopyReport};
pub use diff::{Change, Changed, Diff};
pub use epochs::{Completeness, EpochState, NodeState};
pub use naming::DbName;
pub use open::Checkpoint;
pub use opened::{About, BlobInfo};
pub use save::SaveReport;
pub(crate) use save::unix_ms;
pub use verify::{Damage, VerifyReport};

pub use crate::format::codec::{Codec, Compression};

use crate::blob::{Blob, Selection, Tensor, Workspace};
use crate::db::{Driver, Layout, Limits, Locality, Source};
use crate::error::{Result, ResultExt};
use crate::manager::EpochRecords;
use crate::observer::{Observer, Silent};

/// How a place's verbs work.
#[derive(Clone)]
pub struct Options {
    /// How a save lays out a db, and a copy: `None` for what the db_type prefers, and for a copy, what the original has unless the
    /// db_type prefers another than the native one.
    pub layout: Option<Layout>,
    /// What a save tries on every chunk. The caffe2 layout has no compression.
    pub compression: Compression,
    /// How a load brings the bytes into memory.
    pub loading: Loading,
    /// What a save in the caffe2 layout may choose.
    pub caffe2: caffe2::SaveOptions,
    /// Threads and memory.
    pub limits: Limits,
    /// Kept in the manifest of every save.
    pub metadata: BTreeMap<String, String>,
    /// Told about progress.
    pub observer: Arc<dyn Observer>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            layout: None,
            compression: Compression::default(),
            loading: Loading::default(),
            caffe2: caffe2::SaveOptions::default(),
            limits: Limits::default(),
            metadata: BTreeMap::new(),
            observer: Arc::new(Silent),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("layout", &self.layout)
            .field("compression", &self.compression)
            .field("loading", &self.loading)
            .field("limits", &self.limits)
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}

/// How a load brings a checkpoint's bytes into memory.
///
/// A mapped load lends the stored bytes: nothing is copied, and what sits in the page cache is there at once. It is for blobs that were
/// stored raw, on a backend whose [`Values`](crate::db::Values) are mapped; any others are loaded as with `Copied`. Where only single
/// records are mapped, these are blobs of at most [`WHOLE_BYTES`](crate::format::layout::WHOLE_BYTES) that were saved there, not copied (or of a quarter of
/// the memory budget of the save, if that is less). A
/// buffer that is written to is copied first, so a checkpoint never changes. Pages come from the file as long as the workspace lives: a
/// program that cuts the file short meanwhile (which no save, copy or removal of ours does) ends this process by SIGBUS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Loading {
    /// Into memory of its own, checked in the same read.
    #[default]
    Copied,
    /// Mapped, and checked before it is returned, which touches all of it.
    Mapped,
    /// Mapped and not checked: returns at once, and reads a page when it is first touched. Damage is not noticed unless
    /// [`Checkpoints::verify`] is called.
    MappedUnchecked,
}

/// A place that holds checkpoints: a backend and a prefix.
///
/// Clones are cheap and mean the same place.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    driver: Arc<dyn Driver>,
    prefix: Arc<str>,
    options: Options,
}

impl Checkpoints {
    /// The place `prefix` of a backend. Touches nothing.
    pub fn new(driver: Arc<dyn Driver>, prefix: impl AsRef<str>) -> Self {
        Self { driver, prefix: Arc::from(prefix.as_ref()), options: Options::default() }
    }

    /// The same place with other options.
    #[must_use]
    pub fn with_options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// The same place with saves in this layout.
    #[must_use]
    pub fn with_layout(mut self, layout: Layout) -> Self {
        self.options.layout = Some(layout);
        self
    }

    /// How saves here are laid out.
    pub fn layout(&self) -> Layout {
        self.options.layout.unwrap_or_else(|| self.driver.capabilities().layout)
    }

    /// How a copy of a db of this layout is laid out here.
    fn layout_of_copy(&self, original: Layout) -> Layout {
        match (self.options.layout, self.driver.capabilities().layout) {
            (Some(layout), _) => layout,
            (None, Layout::Native) => original,
            (None, preferred) => preferred,
        }
    }

    /// The options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The backend.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// The prefix, in the backend's own syntax.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Where the db of a node at an epoch is. Fails with `InvalidInput` for a node name that cannot be part of a db's name.
    pub fn source(&self, node: &str, epoch: u64) -> Result<Source> {
        Ok(Source::new(&*self.prefix, naming::db_name(node, epoch)?))
    }

    /// The db's name for people: `<db_type>:<prefix>/<node>.<epoch>`.
    pub fn label(&self, source: &Source) -> String {
        format!("{}:{source}", self.driver.db_type())
    }

    /// The epoch records beside the dbs.
    pub fn records(&self) -> Result<EpochRecords> {
        Ok(EpochRecords::new(self.driver.records(&self.prefix)?))
    }

    /// Saves the workspace as the checkpoint of a node at an epoch.
    ///
    /// After `Ok` it is durable and whole, in place of an older one of that node and epoch. After `Err` or a crash the older one
    /// is as it was, and nothing of this one is visible. It writes no epoch record: see [`EpochRecords`].
    pub fn save(&self, workspace: &Workspace, node: &str, epoch: u64) -> Result<SaveReport> {
        save::save(self, workspace, node, epoch)
    }

    /// Saves blobs under these names, in this order where the store keeps it, to the db at `source`, whatever its name. See
    /// [`save`](Self::save).
    pub fn save_blobs<'b>(
        &self,
        blobs: impl Iterator<Item = (&'b str, &'b Blob)>,
        source: &Source,
    ) -> Result<SaveReport> {
        save::save_blobs(self, blobs, source)
    }

    /// Opens the checkpoint of a node at an epoch: reads and checks its manifest. `NotFound` if there is none.
    pub fn open(&self, node: &str, epoch: u64) -> Result<Checkpoint> {
        self.open_source(self.source(node, epoch)?)
    }

    /// Opens the db at `source`.
    pub fn open_source(&self, source: Source) -> Result<Checkpoint> {
        let label = self.label(&source);
        self.driver
            .open(&source)
            .and_then(|db| Checkpoint::from_db(db, source, label.clone(), self.options.clone()))
            .context(|| format!("db `{label}`"))
    }

    /// Loads everything.
    pub fn load(&self, node: &str, epoch: u64) -> Result<Workspace> {
        self.load_blobs(node, epoch, &Selection::All)
    }

    /// Loads the chosen blobs, reading only their chunks and the index.
    pub fn load_blobs(&self, node: &str, epoch: u64, blobs: &Selection) -> Result<Workspace> {
        self.open(node, epoch)?.load(blobs)
    }

    /// Loads rows of the first dimension of one tensor, reading only the chunks that hold them.
    pub fn load_rows(&self, node: &str, epoch: u64, name: &str, rows: Range<u64>) -> Result<Tensor> {
        self.open(node, epoch)?.load_rows(name, rows)
    }

    /// Whether there is a checkpoint of a node at an epoch. "Cannot tell" is an error.
    pub fn exists(&self, node: &str, epoch: u64) -> Result<bool> {
        let source = self.source(node, epoch)?;
        self.driver.exists(&source).context(|| format!("db `{}`", self.label(&source)))
    }

    /// The nodes and epochs of all dbs here, by epoch, then node. Names that are not ours are passed over.
    pub fn list(&self) -> Result<Vec<DbName>> {
        let names = self
            .driver
            .list(&self.prefix)
            .context(|| format!("store `{}:{}`", self.driver.db_type(), self.prefix))?;
        let mut dbs: Vec<DbName> = names.iter().filter_map(|name| naming::parse_db_name(name)).collect();
        dbs.sort_unstable();
        Ok(dbs)
    }

    /// The epochs with their nodes, ascending: what is there, and whether it is complete.
    pub fn epochs(&self) -> Result<Vec<EpochState>> {
        epochs::epochs(self)
    }

    /// The newest complete epoch, or `None`. It opens the dbs of the newest epochs only, and passes over what is incomplete or
    /// does not open with a warning.
    pub fn latest_complete(&self) -> Result<Option<u64>> {
        epochs::latest_complete(self)
    }

    /// Reads and checks all of a checkpoint. Damage is part of the report; an error means that it could not be checked.
    pub fn verify(&self, node: &str, epoch: u64) -> Result<VerifyReport> {
        verify::verify(self, &self.source(node, epoch)?)
    }

    /// Reads and checks all of the db at `source`.
    pub fn verify_source(&self, source: &Source) -> Result<VerifyReport> {
        verify::verify(self, source)
    }

    /// Copies a checkpoint to another place, of any db_type, checking every chunk on the way. One that is there already, whole
    /// and of the same save, is left alone, so a copy that was cut short goes on where it stopped.
    pub fn copy_to(&self, node: &str, epoch: u64, to: &Self) -> Result<CopyReport> {
        self.copy_source(self.source(node, epoch)?, to, to.source(node, epoch)?)
    }

    /// Copies the db at `source` to `target` in another place. See [`copy_to`](Self::copy_to).
    pub fn copy_source(&self, source: Source, to: &Self, target: Source) -> Result<CopyReport> {
        copy::copy(self, source, to, target)
    }

    /// Removes the checkpoint of a node at an epoch. `Ok` if it is absent.
    pub fn destroy(&self, node: &str, epoch: u64) -> Result<()> {
        let source = self.source(node, epoch)?;
        self.driver.destroy(&source).context(|| format!("db `{}`", self.label(&source)))
    }

    /// How many requests to have under way: a remote store answers late, so more of them than processors.
    fn request_limits(&self) -> Limits {
        let at_least = match self.driver.capabilities().locality {
            Locality::Remote => 16,
            Locality::Local | Locality::Process => 1,
        };
        Limits { threads: self.options.limits.threads.max(at_least), ..self.options.limits }
    }
}
