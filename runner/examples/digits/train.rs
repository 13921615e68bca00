//! The job: two trainers that each learn from half of the digits and average what they learned after every epoch.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ckpt_engine::blob::{Blob, Tensor, Workspace};
use ckpt_engine::{Error, Result};
use ckpt_runner::job::{Job, JobRunner, Node, Task, epoch_limiter};
use ckpt_runner::multi_node::MultiNodeCheckpointManager;
use ckpt_runner::session::{LocalSession, TaskContext};
use ckpt_runner::upload::StoreUpload;

use crate::data::Digits;
use crate::model::accuracy;
use crate::place;
use crate::state::{State, math, weights};

/// The nodes of the job.
pub const TRAINERS: [&str; 2] = ["trainer:0", "trainer:1"];
/// Images per update.
const BATCH: usize = 16;
/// How long a process that is to be killed waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the process says when it waits to be killed.
pub const HALFWAY: &str = "halfway through";

#[derive(clap::Args)]
pub struct Args {
    /// Where to save and to go on from, as <db_type>:<prefix>
    store: String,
    /// How many epochs to train, counting those before a restart
    #[arg(long, default_value_t = 10)]
    epochs: u64,
    /// Waits to be killed in the middle of this epoch
    #[arg(long, value_name = "EPOCH")]
    wait_in: Option<u64>,
    /// Copies the last epoch there, as <db_type>:<prefix>
    #[arg(long, value_name = "STORE")]
    upload_to: Option<String>,
}

/// Trains: from the start, or on from the newest checkpoint in the store.
pub fn run(args: &Args) -> Result<()> {
    let manager = MultiNodeCheckpointManager::new(place::open(&args.store)?);
    let mut runner = JobRunner::new(job(args.epochs, args.wait_in)?).with_checkpoints(manager);
    let upload = args.upload_to.as_deref().map(place::open).transpose()?.map(StoreUpload::new);
    if let Some(upload) = upload.clone() {
        runner = runner.with_upload(upload);
    }
    let last = runner.train(&mut LocalSession::new())?;
    let report = runner.report();
    match report.resumed_from {
        Some(epoch) => println!("resumed from the checkpoint of epoch {epoch}"),
        None => println!("began from scratch"),
    }
    println!("trained {}, saved {}; epoch {last} is the last", list(&report.trained), list(&report.saved));
    let mut copies = upload.map(|upload| upload.reports()).unwrap_or_default();
    copies.sort_by(|a, b| a.db.cmp(&b.db));
    for copied in copies {
        println!("uploaded {}: {} blobs, {} bytes", copied.db, copied.blobs, copied.bytes);
    }
    Ok(())
}

/// Epochs that follow each other, in words.
fn list(epochs: &[u64]) -> String {
    match epochs {
        [] => "no epoch".to_owned(),
        [epoch] => format!("epoch {epoch}"),
        [first, .., last] => format!("epochs {first} to {last}"),
    }
}

/// The training job over `epochs` epochs. In the middle of epoch `wait_in`, if given, it waits to be killed.
pub fn job(epochs: u64, wait_in: Option<u64>) -> Result<Job> {
    let (train, held_out) = Digits::load()?;
    let held_out = Arc::new(held_out);
    let mut job = Job::new();
    for (index, node) in TRAINERS.into_iter().enumerate() {
        let share = Arc::new(train.share(index, TRAINERS.len()));
        let images = share.len();
        job.init_group.add(Task::new("init", node, move |task| {
            task.workspace().replace(State::new(index, images)?.to_blobs()?);
            Ok(())
        }));
        let (held_out, is_first) = (Arc::clone(&held_out), index == 0);
        job.epoch_group.add(Task::new("train", node, move |task| {
            let wait = wait_in.is_some_and(|epoch| is_first && epoch == task.epoch());
            let loss = train_epoch(task, &share, wait)?;
            if is_first {
                let accuracy = evaluate(&task.snapshot(), &held_out)?;
                println!(
                    "epoch {:>2}: loss {loss:.4}, accuracy on held-out digits {accuracy:.4}",
                    task.epoch()
                );
            }
            Ok(())
        }));
    }
    epoch_limiter(&mut job, epochs)?;
    Ok(job)
}

/// Learns from about all images of the trainer once, averages with the others, and returns the mean loss.
///
/// The workspace changes at one moment at the end, so whatever is saved is the state between two epochs.
fn train_epoch(task: &TaskContext, share: &Digits, wait: bool) -> Result<f32> {
    let mut state = State::from_blobs(&task.snapshot())?;
    let batches = share.len().div_ceil(BATCH);
    let mut loss = 0.0;
    for number in 0..batches {
        if wait && number == batches / 2 {
            wait_to_be_killed(task.epoch(), number, batches)?;
        }
        let batch = share.batch(state.reader.next(BATCH)).map_err(math)?;
        loss += state.adam.learn(&state.weights, &batch).map_err(math)?;
    }
    let mut blobs = state.to_blobs()?;
    for (name, mine) in state.shared_blobs()? {
        let all = task.gather_all(&name, mine)?;
        blobs.insert(name, mean(&all)?);
    }
    task.workspace().replace(blobs);
    Ok(loss / batches as f32)
}

/// The mean of tensors of one shape, summed in the order of the nodes, so that all trainers get the same bits.
fn mean(all: &[(Node, Blob)]) -> Result<Tensor> {
    let mut sum: Vec<f32> = Vec::new();
    let mut shape = Vec::new();
    for (_, blob) in all {
        let tensor = blob.as_tensor()?;
        shape = tensor.shape().to_vec();
        let values = tensor.as_slice::<f32>()?;
        sum.resize(values.len(), 0.0);
        sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
    sum.iter_mut().for_each(|sum| *sum /= all.len() as f32);
    Tensor::from_vec(shape, sum)
}

/// The accuracy on held-out digits of the weights among these blobs.
pub fn evaluate(blobs: &Workspace, held_out: &Digits) -> Result<f32> {
    let batch = held_out.all().map_err(math)?;
    accuracy(&weights(blobs)?, &batch).map_err(math)
}

fn wait_to_be_killed(epoch: u64, batch: usize, batches: usize) -> Result<()> {
    println!("{HALFWAY} epoch {epoch}: batch {batch} of {batches}");
    thread::sleep(PATIENCE);
    Err(Error::internal("nobody killed this process, as it was told to expect"))
}
