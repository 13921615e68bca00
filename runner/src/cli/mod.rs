//! The command line of `ckpt`, as clap sees it.

mod args;

use std::path::PathBuf;

use ckpt_engine::blob::DType;
use ckpt_engine::checkpoint::Compression;
use ckpt_engine::db::{Layout, Limits};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

use args::bytes;
pub use args::{DirArg, EpochArg, StoreArg};

/// One checkpoint engine for every store.
///
/// A STORE is DB_TYPE:PREFIX (files:./ckpts, rocksdb:/data/run1, lmdb:./ckpts, s3:bucket/run1) or a URL (s3://bucket/run1, gs://…,
/// az://…, file:///…), or one db in it (files:./ckpts/trainer:0.3, minidb:./model.minidb). Exit codes: 0 yes or done, 1 the answer is no (absent, differs,
/// damaged), 2 wrong usage, 3 failed.
#[derive(Debug, Parser)]
#[command(name = "ckpt", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,

    /// What holds for every command.
    #[command(flatten)]
    pub common: Common,
}

/// What holds for every command.
#[derive(Debug, Args)]
pub struct Common {
    /// Print one JSON document on standard output
    #[arg(long, global = true)]
    pub json: bool,

    /// Say nothing but errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Say more; twice: much more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,

    /// A setting of the store's driver, of copy of the destination's; can be repeated
    #[arg(long = "db-option", global = true, value_name = "KEY=VALUE", value_parser = key_value)]
    pub db_options: Vec<(String, String)>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Save the tensors of files as one checkpoint: .safetensors, .npz, .npy, and Caffe2's init_net.pb and .pkl
    Import(ImportArgs),
    /// Write blobs of a checkpoint to a .safetensors or .npz file
    Export(ExportArgs),
    /// List the epochs of a store and their nodes
    Ls(ManyArgs),
    /// Show the blobs of a checkpoint
    Show(ShowArgs),
    /// Whether a checkpoint exists: exit code 0 yes, 1 no
    Exists(OneArgs),
    /// Read and check everything; name what is damaged
    Verify(ManyArgs),
    /// Compare an epoch of two stores, the newest of each unless told otherwise: added, removed, reshaped and changed blobs
    Diff(DiffArgs),
    /// Copy checkpoints to another store, of any db_type: all epochs unless told otherwise, verified; a copy that was cut short goes on
    Copy(CopyArgs),
    /// Measure save, load, partial load and exists against what the disk or the server can do in the same minutes
    Bench(BenchArgs),
    /// One timed part of bench, in a process of its own
    #[command(hide = true)]
    BenchStep(BenchStepArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// The arguments of `import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// .safetensors, .npz, .npy, .pb (an init net) or .pkl files; together they make one checkpoint
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Where to
    pub store: StoreArg,

    /// The node, such as trainer:0
    #[arg(long)]
    pub node: String,

    /// The epoch
    #[arg(long)]
    pub epoch: u64,

    /// none, auto (compresses while the store is the slower one), zstd or zstd:LEVEL
    #[arg(long, default_value = "none")]
    pub compress: Compression,

    /// How the db is laid out; the default is what the db_type prefers: native, or caffe2 for minidb and leveldb
    #[arg(long, value_enum)]
    pub layout: Option<LayoutArg>,
}

/// The arguments of `export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Where from
    pub store: StoreArg,

    /// The file to write: .safetensors or .npz
    pub out: PathBuf,

    /// Which checkpoint
    #[command(flatten)]
    pub which: WhichOne,

    /// Only blobs whose name matches; can be repeated. Without it, blobs that the file cannot hold are left out with a warning
    #[arg(long = "blob", value_name = "GLOB")]
    pub blobs: Vec<String>,

    /// Name a blob by what follows this in its name, such as gpu_0/
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub strip_prefix: String,
}

/// The arguments of `show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Where
    pub store: StoreArg,

    /// Which checkpoint
    #[command(flatten)]
    pub which: WhichOne,

    /// Only blobs whose name matches; can be repeated
    #[arg(long = "blob", value_name = "GLOB")]
    pub blobs: Vec<String>,
}

/// The arguments of `exists`.
#[derive(Debug, Args)]
pub struct OneArgs {
    /// Where
    pub store: StoreArg,

    /// Which checkpoint
    #[command(flatten)]
    pub which: WhichOne,
}

/// One checkpoint of a store.
#[derive(Debug, Args)]
pub struct WhichOne {
    /// The epoch, or latest: the newest complete one (the default)
    #[arg(long, value_name = "N|latest")]
    pub epoch: Option<EpochArg>,

    /// The node; needed if there are several
    #[arg(long)]
    pub node: Option<String>,
}

/// The arguments of `ls` and `verify`.
#[derive(Debug, Args)]
pub struct ManyArgs {
    /// Where
    pub store: StoreArg,

    /// Which checkpoints
    #[command(flatten)]
    pub which: WhichMany,
}

/// Checkpoints of a store.
#[derive(Debug, Args)]
pub struct WhichMany {
    /// Only this epoch; can be repeated
    #[arg(long = "epoch", value_name = "N|latest")]
    pub epochs: Vec<EpochArg>,

    /// Only this node
    #[arg(long)]
    pub node: Option<String>,
}

/// The arguments of `diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// One store
    pub store_a: StoreArg,

    /// The other store
    pub store_b: StoreArg,

    /// The epoch of the one
    #[arg(long, value_name = "N|latest")]
    pub epoch_a: Option<EpochArg>,

    /// The epoch of the other
    #[arg(long, value_name = "N|latest")]
    pub epoch_b: Option<EpochArg>,

    /// Only this node
    #[arg(long)]
    pub node: Option<String>,
}

/// The arguments of `copy`.
#[derive(Debug, Args)]
pub struct CopyArgs {
    /// Where from
    pub store: StoreArg,

    /// Where to
    pub dst: StoreArg,

    /// Which checkpoints
    #[command(flatten)]
    pub which: WhichMany,

    /// How the copies are laid out; the default is as the originals are, but caffe2 for minidb and leveldb
    #[arg(long, value_enum)]
    pub layout: Option<LayoutArg>,
}

/// The arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to measure, separated by commas; an object store (s3, gs, az) needs its own --dir
    #[arg(
        long = "db-type",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "files,rocksdb,lmdb"
    )]
    pub db_types: Vec<String>,

    /// Bytes of all blobs together, such as 64MiB or 1GiB
    #[arg(long, value_parser = bytes, default_value = "1GiB")]
    pub size: u64,

    /// How many blobs of equal size
    #[arg(long, default_value_t = 64)]
    pub blobs: u64,

    /// The type of their elements
    #[arg(long, value_enum, default_value_t = BenchDType::F32)]
    pub dtype: BenchDType,

    /// Where the numbers begin: the same seed makes the same payload
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Where to measure: a folder on the disk that is meant [default: .], and for an object store the URL of a place in it, such as
    /// s3://BUCKET/PREFIX; can be repeated. What is made there is removed again
    #[arg(long = "dir", value_name = "DIR|URL")]
    pub dirs: Vec<DirArg>,

    /// How often everything is measured
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,

    /// none, auto (compresses while the store is the slower one), zstd or zstd:LEVEL
    #[arg(long, default_value = "none")]
    pub compress: Compression,

    /// Memory over the payload that a save or a load may use; its peak is to be at most 64 MiB above
    #[arg(long, value_parser = bytes, default_value = "256MiB")]
    pub budget: u64,

    /// Threads for checksums and compression [default: one a processor]
    #[arg(long)]
    pub threads: Option<usize>,

    /// Write a page with charts as well
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl BenchArgs {
    /// The threads, at least one.
    pub fn threads(&self) -> usize {
        self.threads.unwrap_or_else(|| Limits::default().threads).max(1)
    }
}

/// The element types of a bench's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchDType {
    /// IEEE single precision
    F32,
    /// The upper half of it
    Bf16,
}

impl From<BenchDType> for DType {
    fn from(arg: BenchDType) -> Self {
        match arg {
            BenchDType::F32 => Self::F32,
            BenchDType::Bf16 => Self::Bf16,
        }
    }
}

/// The argument of `bench-step`.
#[derive(Debug, Args)]
pub struct BenchStepArgs {
    /// What to do, as JSON
    pub step: String,
}

/// How a db is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LayoutArg {
    /// Chunks and a manifest
    Native,
    /// As Caffe2 writes them, without checksums
    Caffe2,
}

impl From<LayoutArg> for Layout {
    fn from(arg: LayoutArg) -> Self {
        match arg {
            LayoutArg::Native => Self::Native,
            LayoutArg::Caffe2 => Self::Caffe2,
        }
    }
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("give it as KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn several_files_and_a_store() {
        let line = [
            "ckpt",
            "import",
            "a.npy",
            "b.npz",
            "files:./c",
            "--node",
            "n",
            "--epoch",
            "3",
            "--compress",
            "zstd:7",
        ];
        let Command::Import(args) = Cli::try_parse_from(line).unwrap().command else {
            panic!("not an import")
        };
        assert_eq!(args.files.len(), 2);
        assert_eq!(args.store.to_string(), "files:./c");
        assert_eq!(args.compress, Compression::Zstd(7));
    }
}
