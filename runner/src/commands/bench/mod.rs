//! `ckpt bench`: save, load, partial load and exists, against what the machine can do in the same minutes.
//!
//! Every round measures the limits anew and then each store, each timed part in a fresh process. So whatever the machine, and a server,
//! do beside it meets the limit and the stores alike.

mod limits;
mod machine;
mod payload;
mod place;
mod report;
mod step;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ckpt_backends::Scratch;
use ckpt_engine::{Error, ErrorKind, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{Answer, Context, Failure, Outcome};
use crate::cli::{BenchArgs, BenchStepArgs};
use limits::{Blocks, Direction, Probed, WAYS};
use machine::Machine;
use payload::Payload;
use place::{Places, Target, folder_error};
use report::{Probes, Report, Samples};
use step::{Part, Step, Timed};

/// Bytes of the payload that the limits of memory are taken with, at most.
const MEMORY_PROBE: u64 = 1 << 30;

pub(super) fn run(context: &Context, args: &BenchArgs) -> Outcome {
    let payload =
        Payload::new(args.size, args.blobs, args.dtype.into(), args.seed).map_err(Failure::Usage)?;
    if args.rounds == 0 {
        return Err(Failure::usage("--rounds must be at least 1"));
    }
    let (targets, folder) = place::targets(context, args)?;
    let stop = stop_on_signal()?;
    // Removed when this ends, however it ends, but for a SIGKILL.
    let places = Places::make(context, &targets, folder.as_deref(), &payload)?;
    let machine = Machine::of(folder.as_deref(), &targets)?;
    let bar = bar(context, args, &targets);
    let bench = Bench { args, payload, places, bar, stop };
    let measured = bench.run(context, &targets, machine);
    bench.bar.finish_and_clear();
    let report = measured?;
    bench.places.close()?;
    if let Some(html) = &args.html {
        std::fs::write(html, report.html()?)
            .map_err(|error| Error::io(format!("cannot write the page path=`{}`", html.display()), error))?;
    }
    context.output.print(&report, || report.text())?;
    Ok(Answer::Yes)
}

/// Runs one timed part: what [`Step::spawn`] starts.
pub(super) fn run_step(context: &Context, args: &BenchStepArgs) -> Outcome {
    let step: Step = serde_json::from_str(&args.step).map_err(step::json_error)?;
    let timed = step.run(context)?;
    context.output.raw(&serde_json::to_vec(&timed).map_err(step::json_error)?)?;
    Ok(Answer::Yes)
}

struct Bench<'a> {
    args: &'a BenchArgs,
    payload: Payload,
    places: Places,
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
}

impl Bench<'_> {
    fn run(&self, context: &Context, targets: &[Target], machine: Machine) -> Result<Report> {
        let mut probes = Probes::default();
        let mut samples: Vec<Samples> = targets.iter().map(Samples::new).collect();
        for round in 0..self.args.rounds {
            self.probe(round, &mut probes)?;
            // Nobody is always the first after the probes.
            for offset in 0..samples.len() {
                let which = (round + offset) % samples.len();
                if let Some(samples) = samples.get_mut(which) {
                    self.measure(context, round, samples)?;
                }
            }
        }
        Ok(Report::new(self.args, machine, &self.payload, &probes, &samples))
    }

    /// The limits, as they are now.
    fn probe(&self, round: usize, probes: &mut Probes) -> Result<()> {
        if let Some(folder) = self.places.disk() {
            self.probe_disk(round, folder, probes)?;
        }
        for (db_type, scratch) in self.places.remotes() {
            self.probe_remote(round, db_type, scratch, probes)?;
        }
        self.step(round, "limit: memory")?;
        let len = usize::try_from(self.payload.bytes.min(MEMORY_PROBE)).unwrap_or(usize::MAX);
        let from = self.payload.block(len)?;
        let mut to = ckpt_engine::blob::Buffer::zeroed(len)?;
        limits::memcpy(&from, to.as_mut()?);
        probes.add(Probed::Memcpy, limits::memcpy(&from, to.as_mut()?));
        probes.add(Probed::Crc32, limits::crc32(&from));
        Ok(())
    }

    fn probe_disk(&self, round: usize, folder: &Path, probes: &mut Probes) -> Result<()> {
        let path = folder.join("probe");
        let mut blocks = Blocks::new()?;
        for way in WAYS {
            for direction in [Direction::Write, Direction::Read] {
                let probed = Probed::Disk(direction, way);
                self.step(round, &format!("limit: {}", probed.name()))?;
                let rate = match direction {
                    Direction::Write => limits::write(&path, self.payload.bytes, way, &mut blocks)?,
                    Direction::Read => limits::read(&path, self.payload.bytes, way, &mut blocks)?,
                };
                if let Some(rate) = rate {
                    probes.add(probed, rate);
                }
            }
        }
        std::fs::remove_file(&path).map_err(|error| folder_error("cannot remove", &path, error))
    }

    fn probe_remote(
        &self,
        round: usize,
        db_type: &str,
        scratch: &dyn Scratch,
        probes: &mut Probes,
    ) -> Result<()> {
        let (object, in_flight) = scratch.way();
        let bytes = self.payload.bytes;
        let block = self.payload.block(usize::try_from(object.min(bytes)).unwrap_or(usize::MAX))?;
        for direction in [Direction::Write, Direction::Read] {
            let probed = Probed::Remote { direction, db_type: db_type.to_owned(), object, in_flight };
            self.step(round, &format!("limit: {}", probed.name()))?;
            let took = match direction {
                Direction::Write => scratch.put(bytes, &block)?,
                Direction::Read => scratch.get(bytes)?,
            };
            probes.add(probed, rate(bytes, took));
        }
        scratch.clear()
    }

    fn measure(&self, context: &Context, round: usize, samples: &mut Samples) -> Result<()> {
        let db_type = samples.db_type.clone();
        for &part in samples.parts() {
            self.step(round, &format!("{db_type}: {}", part.name(samples.is_remote)))?;
            let timed = self.spawn(context, part, samples)?;
            samples.add(part, timed);
        }
        self.places.clear(&db_type)
    }

    fn spawn(&self, context: &Context, part: Part, samples: &Samples) -> Result<Timed> {
        let options = context.driver_options.clone();
        let step = Step {
            part,
            store: self.places.store(&samples.db_type)?,
            payload: self.payload.clone(),
            compress: self.args.compress.to_string(),
            budget: usize::try_from(self.args.budget).unwrap_or(usize::MAX),
            threads: self.args.threads(),
            db_options: options.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        };
        let timed = step.spawn(samples.is_remote);
        self.check_stop()?;
        timed
    }

    /// Says what comes next, unless it is to stop.
    fn step(&self, round: usize, what: &str) -> Result<()> {
        self.check_stop()?;
        self.bar.set_message(format!("round {} of {}: {what}", round + 1, self.args.rounds));
        self.bar.inc(1);
        Ok(())
    }

    fn check_stop(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Closed, "interrupted; what was measured so far is removed"));
        }
        Ok(())
    }
}

/// Mebibytes a second.
fn rate(bytes: u64, elapsed: Duration) -> f64 {
    bytes as f64 / f64::from(1 << 20) / elapsed.as_secs_f64().max(1e-9)
}

/// Set by Ctrl-C and by SIGTERM, so that what was made is removed before this ends.
fn stop_on_signal() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    ctrlc::set_handler(move || seen.store(true, Ordering::Relaxed))
        .map_err(|error| Error::internal("cannot wait for signals").with_source(error))?;
    Ok(stop)
}

fn bar(context: &Context, args: &BenchArgs, targets: &[Target]) -> ProgressBar {
    if context.quiet {
        return ProgressBar::hidden();
    }
    let remotes = targets.iter().filter(|target| target.remote.is_some()).count();
    let disk = if remotes < targets.len() { 2 * WAYS.len() } else { 0 };
    let parts: usize = targets.iter().map(|target| Part::of(target.remote.is_some()).len()).sum();
    let steps = args.rounds * (disk + 2 * remotes + 1 + parts);
    let target = ProgressDrawTarget::stderr();
    let bar = ProgressBar::with_draw_target(Some(steps as u64), target);
    // The template is ours and sound; without it the bar has its usual look.
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {wide_msg}") {
        bar.set_style(style);
    }
    bar
}
