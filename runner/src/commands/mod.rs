//! The commands, one file each. They parse nothing and do nothing by themselves: each calls the engine's verb of its name and
//! hands the outcome to `output`.

mod bench;
mod copy;
mod diff;
mod exists;
mod export;
mod import;
mod ls;
mod progress;
mod show;
mod store;
mod verify;

use std::sync::Arc;

use ckpt_engine::checkpoint::{Checkpoints, Options};
use ckpt_engine::db::{DriverOptions, Registry};
use ckpt_engine::{Error, ErrorKind};
use clap::CommandFactory;

use crate::cli::{Cli, Command, Common, StoreArg};
use crate::output::Output;
use store::Store;

/// What a command answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Yes, or done.
    Yes,
    /// Absent, different or damaged.
    No,
}

impl Answer {
    fn from_yes(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }

    /// 0 or 1.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Yes => 0,
            Self::No => 1,
        }
    }
}

/// Why a command gave no answer.
#[derive(Debug)]
pub enum Failure {
    /// The command line asks for something that cannot be.
    Usage(Error),
    /// It was understood and could not be done.
    Failed(Error),
}

impl Failure {
    fn usage(message: impl Into<String>) -> Self {
        Self::Usage(Error::invalid(message))
    }

    /// What went wrong.
    pub fn error(&self) -> &Error {
        match self {
            Self::Usage(error) | Self::Failed(error) => error,
        }
    }

    /// 2 or 3.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Failed(_) => 3,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

type Outcome = Result<Answer, Failure>;

/// Runs a command.
pub fn run(cli: &Cli) -> Outcome {
    let context = Context::new(&cli.common);
    match &cli.command {
        Command::Import(args) => import::run(&context, args),
        Command::Export(args) => export::run(&context, args),
        Command::Ls(args) => ls::run(&context, args),
        Command::Show(args) => show::run(&context, args),
        Command::Exists(args) => exists::run(&context, args),
        Command::Verify(args) => verify::run(&context, args),
        Command::Diff(args) => diff::run(&context, args),
        Command::Copy(args) => copy::run(&context, args),
        Command::Bench(args) => bench::run(&context, args),
        Command::BenchStep(args) => bench::run_step(&context, args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "ckpt", &mut script);
            context.output.raw(&script)?;
            Ok(Answer::Yes)
        }
    }
}

/// What every command needs.
struct Context {
    registry: Registry,
    driver_options: DriverOptions,
    options: Options,
    output: Output,
    quiet: bool,
}

impl Context {
    fn new(common: &Common) -> Self {
        let mut registry = Registry::new();
        ckpt_backends::register_all(&mut registry);
        let mut options = Options::default();
        if !common.quiet {
            options.observer = Arc::new(progress::Bar::new());
        }
        Self {
            registry,
            driver_options: common.db_options.iter().cloned().collect(),
            options,
            output: Output::new(common.json),
            quiet: common.quiet,
        }
    }

    /// The place that a STORE names. An unknown db_type or setting is wrong usage.
    fn place(&self, store: &StoreArg, options: Options) -> Result<Checkpoints, Failure> {
        self.place_with(store, options, self.driver_options.clone())
    }

    fn place_with(
        &self,
        store: &StoreArg,
        options: Options,
        driver_options: DriverOptions,
    ) -> Result<Checkpoints, Failure> {
        let driver = self.registry.driver(&store.db_type, driver_options);
        let driver = driver.map_err(|error| match error.kind() {
            ErrorKind::InvalidInput | ErrorKind::Unsupported => Failure::Usage(error),
            _ => Failure::Failed(error),
        })?;
        // The file of an LMDB environment stands for its directory, as people name it.
        let prefix = match store.prefix.strip_suffix("data.mdb") {
            Some("") if driver.db_type() == "lmdb" => ".",
            Some(dir) if driver.db_type() == "lmdb" && dir.ends_with('/') => dir.trim_end_matches('/'),
            _ => &store.prefix,
        };
        Ok(Checkpoints::new(driver, prefix).with_options(options))
    }

    /// A STORE to write. Of a db_type that keeps single files, a name that ends as one does is a mistake: a folder of that name would
    /// be made.
    fn target(&self, store: &StoreArg, options: Options) -> Result<Checkpoints, Failure> {
        let place = self.place(store, options)?;
        let is_file = [".minidb", ".mdl"].iter().any(|extension| store.prefix.ends_with(extension));
        if is_file && place.driver().db_type() == "minidb" {
            return Err(Failure::usage(format!(
                "name the folder to write to: it will hold the file NODE.EPOCH, as Caffe2 names it store=`{store}`"
            )));
        }
        Ok(place)
    }

    /// The STORE that a copy comes from: `--db-option` is for where it goes.
    fn copied(&self, store: &StoreArg, chosen: bool) -> Result<Store, Failure> {
        let place = self.place_with(store, self.options.clone(), DriverOptions::new())?;
        Ok(Store::new(place, store, chosen))
    }

    /// A STORE to read: a place or one db of it. `chosen` says that the command line names an epoch or a node, so that the STORE
    /// can only be a place.
    fn store(&self, store: &StoreArg, chosen: bool) -> Result<Store, Failure> {
        Ok(Store::new(self.place(store, self.options.clone())?, store, chosen))
    }
}
