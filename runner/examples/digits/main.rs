//! A training job that is killed and goes on: two trainers learn handwritten digits, the process dies by SIGKILL in the middle
//! of an epoch, and the next one ends with the weights of a run that nobody disturbed, bit for bit.
//!
//! ```sh
//! cargo build --release --workspace --example digits && target/release/examples/digits --db-type files
//! ```
//!
//! The whole state of a trainer is in its node's workspace (`state.rs`): weights, Adam's moments, the random generator, and where
//! the reader of the images stands. The job is in `train.rs`, what happens to it in `demo.rs`. A single run can be had by hand:
//! `digits train files:./ckpts`; stop it, start it again, raise `--epochs`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is there to be read")]
#![allow(unreachable_pub, reason = "nobody is outside an example")]

mod data;
mod demo;
mod model;
mod place;
mod random;
mod state;
mod train;

use std::io::stderr;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Trains on digits, is killed, goes on: with checkpoints in the store you name.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    step: Option<Step>,
    #[command(flatten)]
    demo: demo::Args,
}

#[derive(Subcommand)]
enum Step {
    /// Only trains, going on from the newest checkpoint in the store if there is one
    Train(train::Args),
}

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).without_time().init();
    let args = Args::parse();
    let ended = match args.step {
        None => demo::run(&args.demo),
        Some(Step::Train(args)) => train::run(&args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:?}");
            ExitCode::FAILURE
        }
    }
}
