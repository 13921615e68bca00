//! Goes on with a training job from the checkpoints that a real Caffe2 job wrote, and writes ones that real Caffe2 goes on from.
//!
//! ```text
//! cargo run --release --example caffe2_job -- FOLDER EPOCH
//! ```
//!
//! FOLDER holds `trainer_0.E`, `trainer_1.E`, `trainer_2.E`, minidb files of a job like that of Caffe2's `checkpoint_test`: every epoch
//! reads three numbers of 0..9 and adds them to a total. The reader's position is a blob of type `TreeCursor`; the total is a tensor
//! under the name that Caffe2 gave it. The job is resumed at EPOCH and runs to its end.

#![allow(clippy::print_stdout, reason = "it is there to be read")]

use ckpt_engine::blob::Tensor;
use ckpt_engine::checkpoint::caffe2::TreeCursor;
use ckpt_engine::db::{DriverOptions, Registry};
use ckpt_engine::manager::{CheckpointManager, Resume};
use ckpt_engine::{Checkpoints, Error, Result};
use ckpt_runner::job::{Job, JobRunner, Task, TaskOutput};
use ckpt_runner::session::{LocalSession, Session};

/// How many numbers an epoch reads.
const BATCH: usize = 3;

/// The name of the total's blob.
pub fn total_name(number: usize) -> String {
    format!("trainer_{number}/task/GivenTensorInt64Fill:0")
}

/// The job of one trainer. Its init group does nothing: it only goes on from a checkpoint.
pub fn pipeline(number: usize) -> Job {
    let node = format!("trainer_{number}");
    let cursor = format!("dataset:{number}_cursor");
    let total = total_name(number);
    let mut job = Job::new();
    job.init_group.add(Task::new("init", node.as_str(), |_| Ok(())));
    job.epoch_group.add(Task::new("read", node.as_str(), move |task| {
        let data = task.tensor("val")?;
        let data = data.as_slice::<i64>()?;
        let at = TreeCursor::from_blob(&task.get(&cursor)?)?;
        let start = at.offsets.as_deref().and_then(<[i64]>::first).copied().unwrap_or(0);
        let start = usize::try_from(start).map_err(|_| Error::corrupt("reader is at a negative position"))?;
        let items = data.get(start..data.len().min(start + BATCH)).unwrap_or_default();
        let before = task.tensor(&total)?.as_slice::<i64>()?.iter().sum::<i64>();
        task.set(total.as_str(), Tensor::from_slice([1], &[before + items.iter().sum::<i64>()])?);
        let next = start + items.len();
        let moved = TreeCursor { offsets: Some(vec![next as i64]), ..at };
        task.set(cursor.as_str(), moved.to_blob(&cursor));
        task.set("exhausted", Tensor::scalar(next >= data.len()));
        Ok(())
    }));
    job.add_stop_condition(TaskOutput::new(node.as_str(), "exhausted"));
    job
}

/// Resumes the job of one trainer, and gives its last epoch and its total.
pub fn train(place: &Checkpoints, number: usize, resume: Resume) -> Result<(u64, i64)> {
    let node = format!("trainer_{number}");
    let manager = CheckpointManager::new(place.clone(), node.as_str())?;
    let mut session = LocalSession::new();
    let last =
        JobRunner::new(pipeline(number)).with_checkpoints(manager).with_resume(resume).train(&mut session)?;
    let total = session.fetch(&TaskOutput::new(node.as_str(), total_name(number)))?;
    Ok((last, total.as_tensor()?.as_slice::<i64>()?.iter().sum()))
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let epoch =
        |text: String| text.parse().map_err(|_| Error::invalid(format!("not an epoch epoch=`{text}`")));
    let (Some(folder), Some(epoch)) = (args.next(), args.next().map(epoch)) else {
        return Err(Error::invalid("usage: caffe2_job FOLDER EPOCH"));
    };
    let epoch = epoch?;
    let mut registry = Registry::new();
    ckpt_backends::register_all(&mut registry);
    // A minidb is laid out as Caffe2 lays it out unless told otherwise; elsewhere `with_layout(Layout::Caffe2)` says so.
    let place = Checkpoints::new(registry.driver("minidb", DriverOptions::new())?, &folder);
    for number in 0..3 {
        let (last, total) = train(&place, number, Resume::Epoch(epoch))?;
        println!("trainer_{number} from epoch {epoch}: last epoch {last}, total {total}");
    }
    Ok(())
}
