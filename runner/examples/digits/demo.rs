//! The demo: six steps, each with what a person should see. Every training run is a process of its own.

use std::env;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use ckpt_engine::blob::Selection;
use ckpt_engine::{Checkpoints, Error, ErrorKind, Result};

use crate::data::Digits;
use crate::model::parameters;
use crate::place;
use crate::train::{HALFWAY, TRAINERS, evaluate};

/// A network that knows fewer of the digits it never saw has not learned.
const ACCURACY: f32 = 0.95;
const SIGKILL: i32 = 9;

#[derive(clap::Args)]
pub struct Args {
    /// Where the jobs save: files, rocksdb, lmdb, ...
    #[arg(long, value_name = "DB_TYPE", default_value = "files")]
    db_type: String,
    /// Where the last epoch is uploaded to; another db_type of this build unless given
    #[arg(long, value_name = "DB_TYPE")]
    upload_db_type: Option<String>,
    /// The folder (or place in the store) for the checkpoints; a temporary folder unless given
    #[arg(long)]
    dir: Option<String>,
    /// How many epochs to train; with fewer than 4 it has not learned enough
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(4..))]
    epochs: u64,
    /// The epoch in whose middle the process is killed
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..))]
    kill_in: u64,
}

pub fn run(args: &Args) -> Result<()> {
    if args.kill_in > args.epochs {
        return Err(Error::invalid(format!(
            "the epoch to be killed in is after the last epochs=`{}` kill-in=`{}`",
            args.epochs, args.kill_in
        )));
    }
    let upload_type = upload_type(args)?;
    let temporary =
        tempfile::tempdir().map_err(|error| Error::io("cannot make a temporary folder", error))?;
    let dir = args.dir.clone().unwrap_or_else(|| temporary.path().display().to_string());
    let reference = format!("{}:{dir}/undisturbed", args.db_type);
    let killed = format!("{}:{dir}/killed", args.db_type);
    let uploaded = format!("{upload_type}:{dir}/uploaded");
    for store in [&reference, &killed, &uploaded] {
        check_unused(store)?;
    }
    let epochs = args.epochs.to_string();

    println!("1. Two trainers learn for {epochs} epochs and save each one to {reference}");
    ended_well(follow(start(&["train", &reference, "--epochs", &epochs])?, |_| false)?)?;

    println!("2. The same job, saving to {killed}, is killed in the middle of epoch {}", args.kill_in);
    let kill_in = args.kill_in.to_string();
    let child = start(&["train", &killed, "--epochs", &epochs, "--wait-in", &kill_in])?;
    let pid = child.id();
    let status = follow(child, |line| line.starts_with(HALFWAY))?;
    if status.signal() != Some(SIGKILL) {
        return Err(Error::internal(format!("the process was not killed status=`{status}`")));
    }
    let newest = place::open(&killed)?.latest_complete()?;
    let newest = newest.map_or("none".to_owned(), |epoch| format!("epoch {epoch}"));
    println!("   killed process {pid} with SIGKILL; newest complete checkpoint: {newest}");

    println!("3. It is started again, and nobody tells it where it was");
    ended_well(follow(start(&["train", &killed, "--epochs", &epochs, "--upload-to", &uploaded])?, |_| {
        false
    })?)?;

    println!("4. Its epoch {epochs} is compared with that of the undisturbed run");
    compare(&place::open(&reference)?, &place::open(&killed)?, args.epochs)?;

    println!("5. Its epoch {epochs} was uploaded to {uploaded}; the copy is read and checked");
    verify(&place::open(&uploaded)?, args.epochs)?;

    println!("6. The network is evaluated from the copy, reading nothing but its weights");
    let accuracy = evaluate_weights(&place::open(&uploaded)?, args.epochs)?;
    if accuracy < ACCURACY {
        return Err(Error::internal(format!("the network has not learned accuracy=`{accuracy}`")));
    }
    Ok(())
}

/// The db_type to upload to: the given one, else one that differs from where the jobs save.
fn upload_type(args: &Args) -> Result<String> {
    let registry = place::registry();
    let has = |name: &str| registry.db_types().any(|known| known == name);
    let others =
        ["lmdb", "rocksdb", "files"].into_iter().filter(|name| !name.eq_ignore_ascii_case(&args.db_type));
    let found =
        args.upload_db_type.clone().or_else(|| others.into_iter().find(|name| has(name)).map(str::to_owned));
    let db_types = [Some(&args.db_type), found.as_ref()];
    if db_types.iter().flatten().any(|name| name.eq_ignore_ascii_case("memory")) {
        return Err(Error::invalid("memory is gone with its process: name another db_type db_type=`memory`"));
    }
    found
        .ok_or_else(|| Error::unsupported("this build has no second db_type: name one with --upload-db-type"))
}

/// A job that finds checkpoints goes on from them, so the demo wants an unused place.
fn check_unused(store: &str) -> Result<()> {
    match place::open(store)?.list() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Ok(dbs) if dbs.is_empty() => Ok(()),
        Ok(_) => {
            Err(Error::invalid(format!("there are checkpoints already: name another --dir store=`{store}`")))
        }
        Err(error) => Err(error),
    }
}

/// Starts this program with other arguments.
fn start(args: &[&str]) -> Result<Child> {
    env::current_exe()
        .and_then(|program| Command::new(program).args(args).stdout(Stdio::piped()).spawn())
        .map_err(|error| Error::io("cannot start a training process", error))
}

/// Shows what a process prints until it ends, and kills it when it prints a line that is `the_end`.
fn follow(mut child: Child, the_end: impl Fn(&str) -> bool) -> Result<ExitStatus> {
    let lost = |error| Error::io("lost a training process", error);
    let printed = child.stdout.take().map(BufReader::new);
    for line in printed.into_iter().flat_map(BufRead::lines) {
        let line = line.map_err(lost)?;
        println!("   {line}");
        if the_end(&line) {
            child.kill().map_err(lost)?;
        }
    }
    child.wait().map_err(lost)
}

fn ended_well(status: ExitStatus) -> Result<()> {
    if status.success() {
        return Ok(());
    }
    Err(Error::internal(format!("a training process failed status=`{status}`")))
}

fn compare(undisturbed: &Checkpoints, killed: &Checkpoints, epoch: u64) -> Result<()> {
    for node in TRAINERS {
        let (a, b) = (undisturbed.open(node, epoch)?, killed.open(node, epoch)?);
        let diff = a.diff(&b)?;
        if !diff.is_equal() {
            return Err(Error::internal(format!("the two runs differ node=`{node}` diff=`{diff:?}`")));
        }
        let (blobs, bytes) = (a.blob_count(), a.bytes());
        println!("   {node}: {blobs} blobs, {bytes} bytes, not one bit differs");
    }
    Ok(())
}

fn verify(uploaded: &Checkpoints, epoch: u64) -> Result<()> {
    for node in TRAINERS {
        let report = uploaded.verify(node, epoch)?;
        if let Some(damage) = report.damage.first() {
            return Err(Error::corrupt(format!("the uploaded copy is damaged: {damage:?} node=`{node}`")));
        }
        println!("   {node}: {} blobs, {} bytes, intact", report.blobs, report.bytes);
    }
    match uploaded.latest_complete()? {
        Some(latest) if latest == epoch => Ok(()),
        other => Err(Error::internal(format!("the uploaded epoch is not complete latest=`{other:?}`"))),
    }
}

fn evaluate_weights(place: &Checkpoints, epoch: u64) -> Result<f32> {
    let (_, held_out) = Digits::load()?;
    let checkpoint = place.open(TRAINERS[0], epoch)?;
    let names = parameters().into_iter().map(|parameter| parameter.name);
    let weights = checkpoint.load(&Selection::names(names))?;
    let accuracy = evaluate(&weights, &held_out)?;
    let (read, stored) = (checkpoint.db().bytes_read(), checkpoint.stored_bytes());
    println!(
        "   {} of {} blobs; {read} bytes read of {stored} stored",
        weights.len(),
        checkpoint.names().len()
    );
    println!("   accuracy {accuracy:.4} on {} digits that it never saw", held_out.len());
    Ok(accuracy)
}
