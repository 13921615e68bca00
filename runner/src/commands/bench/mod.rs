//! `ckpt bench`: save, load, partial load and exists, against what the machine can do in the same minutes.
//!
//! Every round measures the limits anew and then each store, each timed part in a fresh process. So whatever the machine does beside it
//! meets the limit and the stores alike.

mod limits;
mod machine;
mod payload;
mod report;
mod step;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ckpt_engine::{Error, ErrorKind, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{Answer, Context, Failure, Outcome};
use crate::cli::{BenchArgs, BenchStepArgs};
use crate::output::size;
use limits::{Blocks, WAYS};
use payload::Payload;
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
    let db_types = db_types(context, &args.db_types)?;
    let stop = stop_on_signal()?;
    std::fs::create_dir_all(&args.dir).map_err(|error| folder_error("cannot create", &args.dir, error))?;
    check_room(&args.dir, &payload)?;
    // Removed when this ends, however it ends, but for a SIGKILL.
    let folder = tempfile::Builder::new().prefix("ckpt-bench-").tempdir_in(&args.dir);
    let folder = folder.map_err(|error| folder_error("cannot create a folder in", &args.dir, error))?;
    let bench = Bench { args, payload, folder: folder.path(), bar: bar(context, args, db_types.len()), stop };
    let measured = bench.run(context, &db_types);
    bench.bar.finish_and_clear();
    let report = measured?;
    folder.close().map_err(|error| folder_error("cannot remove what was measured in", &args.dir, error))?;
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
    folder: &'a Path,
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
}

impl Bench<'_> {
    fn run(&self, context: &Context, db_types: &[String]) -> Result<Report> {
        let mut probes = Probes::default();
        let mut samples: Vec<Samples> = db_types.iter().map(|db_type| Samples::new(db_type)).collect();
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
        Report::new(self.args, &self.payload, &probes, &samples)
    }

    /// The limits, as they are now.
    fn probe(&self, round: usize, probes: &mut Probes) -> Result<()> {
        let path = self.folder.join("probe");
        let mut blocks = Blocks::new()?;
        for way in WAYS {
            self.step(round, &format!("limit: {} write", way.name()))?;
            probes.write(way, limits::write(&path, self.payload.bytes, way, &mut blocks)?);
            self.step(round, &format!("limit: {} read", way.name()))?;
            probes.read(way, limits::read(&path, self.payload.bytes, way, &mut blocks)?);
        }
        std::fs::remove_file(&path).map_err(|error| folder_error("cannot remove", &path, error))?;
        self.step(round, "limit: memory")?;
        let len = usize::try_from(self.payload.bytes.min(MEMORY_PROBE)).unwrap_or(usize::MAX);
        let from = self.payload.block(len)?;
        let mut to = ckpt_engine::blob::Buffer::zeroed(len)?;
        limits::memcpy(&from, to.as_mut()?);
        probes.memcpy.push(limits::memcpy(&from, to.as_mut()?));
        probes.crc32.push(limits::crc32(&from));
        Ok(())
    }

    fn measure(&self, context: &Context, round: usize, samples: &mut Samples) -> Result<()> {
        let place = self.folder.join(&samples.db_type);
        for part in [Part::Save, Part::LoadCold, Part::PartialCold, Part::LoadWarm, Part::Exists] {
            self.step(round, &format!("{}: {}", samples.db_type, name(part)))?;
            let timed = self.spawn(context, part, &place, &samples.db_type)?;
            samples.add(part, timed);
        }
        std::fs::remove_dir_all(&place).map_err(|error| folder_error("cannot remove", &place, error))
    }

    fn spawn(&self, context: &Context, part: Part, place: &Path, db_type: &str) -> Result<Timed> {
        let path = place.to_str().ok_or_else(|| Error::invalid("--dir must be UTF-8"))?;
        let options = context.driver_options.clone();
        let step = Step {
            part,
            store: format!("{db_type}:{path}"),
            payload: self.payload.clone(),
            compress: self.args.compress.to_string(),
            budget: usize::try_from(self.args.budget).unwrap_or(usize::MAX),
            threads: self.args.threads(),
            db_options: options.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        };
        let timed = step.spawn();
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

fn name(part: Part) -> &'static str {
    match part {
        Part::Save => "save",
        Part::LoadCold => "cold load",
        Part::LoadWarm => "warm load",
        Part::PartialCold => "one blob",
        Part::Exists => "exists",
    }
}

/// The db_types to measure, each once and known.
fn db_types(context: &Context, names: &[String]) -> Result<Vec<String>, Failure> {
    let mut db_types: Vec<String> = Vec::new();
    for name in names {
        let driver = context.registry.driver(name, context.driver_options.clone()).map_err(Failure::Usage)?;
        let db_type = driver.db_type().to_owned();
        let locality = driver.capabilities().locality;
        if locality != ckpt_engine::db::Locality::Local {
            return Err(Failure::usage(format!(
                "bench measures db_types that keep their data in a folder, on a disk db_type=`{db_type}`"
            )));
        }
        if !db_types.contains(&db_type) {
            db_types.push(db_type);
        }
    }
    Ok(db_types)
}

/// Room for a probe and a checkpoint, with something to spare.
fn check_room(dir: &Path, payload: &Payload) -> Result<()> {
    let free = machine::free_bytes(dir)?;
    let needed = payload.bytes.saturating_mul(2) + payload.bytes / 8 + (64 << 20);
    if free < needed {
        return Err(Error::new(
            ErrorKind::Full,
            format!(
                "not enough room: {} are needed and {} are free; choose another --dir or a smaller --size path=`{}`",
                size(needed),
                size(free),
                dir.display()
            ),
        ));
    }
    Ok(())
}

/// Set by Ctrl-C and by SIGTERM, so that what was made is removed before this ends.
fn stop_on_signal() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    ctrlc::set_handler(move || seen.store(true, Ordering::Relaxed))
        .map_err(|error| Error::internal("cannot wait for signals").with_source(error))?;
    Ok(stop)
}

fn bar(context: &Context, args: &BenchArgs, stores: usize) -> ProgressBar {
    if context.quiet {
        return ProgressBar::hidden();
    }
    let steps = args.rounds * (2 * WAYS.len() + 1 + 5 * stores);
    let target = ProgressDrawTarget::stderr();
    let bar = ProgressBar::with_draw_target(Some(steps as u64), target);
    // The template is ours and sound; without it the bar has its usual look.
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {wide_msg}") {
        bar.set_style(style);
    }
    bar
}

fn folder_error(what: &str, path: &Path, error: std::io::Error) -> Error {
    Error::io(format!("{what} path=`{}`", path.display()), error)
}
