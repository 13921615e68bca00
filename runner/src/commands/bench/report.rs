//! From samples to medians, and how they are told.

use std::collections::BTreeMap;

use ckpt_engine::Result;
use serde::Serialize;
use serde_json::json;

use super::limits::{Direction, Probed};
use super::machine::Machine;
use super::payload::Payload;
use super::place::Target;
use super::step::{Part, Timed, json_error};
use crate::cli::BenchArgs;
use crate::output::{size, table};

const MIB: f64 = 1_048_576.0;

/// What a process has besides the payload and the budget: its code, its stacks, what its allocator keeps.
const SLACK_MIB: f64 = 64.0;

/// The rates of all rounds.
#[derive(Default)]
pub(super) struct Probes(Vec<(Probed, Vec<f64>)>);

impl Probes {
    pub(super) fn add(&mut self, probed: Probed, rate: f64) {
        match self.0.iter_mut().find(|(known, _)| *known == probed) {
            Some((_, rates)) => rates.push(rate),
            None => self.0.push((probed, vec![rate])),
        }
    }

    /// The fastest of those that are asked for, by its median. `None` if there are none.
    fn best(&self, is_asked: impl Fn(&Probed) -> bool) -> Option<Probe> {
        let asked = self.0.iter().filter(|(probed, _)| is_asked(probed)).map(Probe::of);
        asked.max_by(|a, b| a.mib_s.total_cmp(&b.mib_s))
    }
}

/// What was measured of one store.
pub(super) struct Samples {
    pub(super) db_type: String,
    pub(super) is_remote: bool,
    parts: BTreeMap<Part, Vec<Timed>>,
}

impl Samples {
    pub(super) fn new(target: &Target) -> Self {
        Self { db_type: target.db_type.clone(), is_remote: target.remote.is_some(), parts: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, part: Part, timed: Timed) {
        self.parts.entry(part).or_default().push(timed);
    }

    /// What is timed of it, in order.
    pub(super) fn parts(&self) -> &'static [Part] {
        Part::of(self.is_remote)
    }

    fn of(&self, part: Part) -> &[Timed] {
        self.parts.get(&part).map(Vec::as_slice).unwrap_or_default()
    }

    fn spread(&self, part: Part, value: impl Fn(&Timed) -> f64) -> Spread {
        Spread::of(self.of(part).iter().map(value))
    }
}

/// A median, and between what it lies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or_default();
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(at(middle.wrapping_sub(1)), at(middle))
        } else {
            at(middle)
        };
        Self { median, min: at(0), max: at(values.len().wrapping_sub(1)) }
    }

    fn range(self) -> [f64; 2] {
        [round(self.min), round(self.max)]
    }
}

/// The rates of one way.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Probe {
    name: String,
    mib_s: f64,
    min: f64,
    max: f64,
}

impl Probe {
    fn of((probed, rates): &(Probed, Vec<f64>)) -> Self {
        let spread = Spread::of(rates.iter().copied());
        let [min, max] = spread.range();
        Self { name: probed.name(), mib_s: round(spread.median), min, max }
    }
}

/// What a direction of a store is compared with.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Limit {
    /// In a word.
    name: &'static str,
    /// The probe.
    way: String,
    mib_s: f64,
}

impl Limit {
    /// The limit of a direction. `None` if it was not measured.
    ///
    /// It is the fastest way of the same place. A save to `lmdb` is compared with buffered writes, since that is how LMDB itself writes.
    fn of(samples: &Samples, direction: Direction, probes: &Probes) -> Option<Self> {
        let is_buffered = samples.db_type == "lmdb" && direction == Direction::Write;
        let name = match direction {
            Direction::Write if samples.is_remote => "PUT",
            Direction::Read if samples.is_remote => "GET",
            Direction::Write if is_buffered => "buffered",
            Direction::Write => "write",
            Direction::Read => "read",
        };
        let probe = probes.best(|probed| match probed {
            Probed::Disk(of, way) => {
                !samples.is_remote && *of == direction && (!is_buffered || way.is_buffered())
            }
            Probed::Remote { direction: of, db_type, .. } => *of == direction && *db_type == samples.db_type,
            Probed::Memcpy | Probed::Crc32 => false,
        })?;
        Some(Self { name, way: probe.name, mib_s: probe.mib_s })
    }
}

/// Those of the disk are `None` where none was measured.
#[derive(Clone, Debug, Serialize)]
struct Limits {
    write_mib_s: Option<f64>,
    read_mib_s: Option<f64>,
    memcpy_mib_s: Option<f64>,
    crc32_mib_s: Option<f64>,
    buffered_write_mib_s: Option<f64>,
    buffered_read_mib_s: Option<f64>,
    /// The way that is the limit.
    write_way: Option<String>,
    read_way: Option<String>,
    write_spread: Option<[f64; 2]>,
    read_spread: Option<[f64; 2]>,
    probes: Vec<Probe>,
}

impl Limits {
    fn new(probes: &Probes) -> Self {
        let disk =
            |direction| probes.best(|probed| matches!(probed, Probed::Disk(of, _) if *of == direction));
        let buffered = |direction| {
            let found = probes.best(
                |probed| matches!(probed, Probed::Disk(of, way) if *of == direction && way.is_buffered()),
            );
            found.map(|probe| probe.mib_s)
        };
        let of = |wanted: &Probed| probes.best(|probed| probed == wanted).map(|probe| probe.mib_s);
        let rate = |probe: &Option<Probe>| probe.as_ref().map(|probe| probe.mib_s);
        let spread = |probe: &Option<Probe>| probe.as_ref().map(|probe| [probe.min, probe.max]);
        let (write, read) = (disk(Direction::Write), disk(Direction::Read));
        let mut all: Vec<_> = probes.0.iter().collect();
        // Those of the disk by their directions, then the others as they came.
        all.sort_by_key(|(probed, _)| match probed {
            Probed::Disk(Direction::Write, _) => 0,
            Probed::Disk(Direction::Read, _) => 1,
            Probed::Remote { .. } | Probed::Memcpy | Probed::Crc32 => 2,
        });
        Self {
            write_mib_s: rate(&write),
            read_mib_s: rate(&read),
            memcpy_mib_s: of(&Probed::Memcpy),
            crc32_mib_s: of(&Probed::Crc32),
            buffered_write_mib_s: buffered(Direction::Write),
            buffered_read_mib_s: buffered(Direction::Read),
            write_spread: spread(&write),
            read_spread: spread(&read),
            write_way: write.map(|probe| probe.name),
            read_way: read.map(|probe| probe.name),
            probes: all.into_iter().map(Probe::of).collect(),
        }
    }
}

/// What was measured of one store. A figure that it does not have is `None`.
#[derive(Clone, Debug, Serialize)]
struct StoreResult {
    db_type: String,
    remote: bool,
    save_mib_s: f64,
    save_of_limit: Option<f64>,
    save_limit: Option<Limit>,
    /// Of the buffered way of the disk.
    save_of_buffered: Option<f64>,
    /// Of a remote store it is simply a load.
    load_cold_mib_s: f64,
    load_of_limit: Option<f64>,
    load_limit: Option<Limit>,
    load_warm_mib_s: Option<f64>,
    warm_of_crc32: Option<f64>,
    partial_cold_ms: f64,
    partial_bytes_read: u64,
    exists_ms: f64,
    stored_bytes: u64,
    /// The larger of the two that follow.
    peak_rss_over_payload_mib: f64,
    save_peak_mib: f64,
    load_peak_mib: f64,
    /// The most that it may be: the budget and [`SLACK_MIB`].
    peak_allowed_mib: f64,
    peak_within_allowed: bool,
    /// The least and the most of each figure.
    spread: BTreeMap<&'static str, [f64; 2]>,
}

impl StoreResult {
    fn new(samples: &Samples, payload: &Payload, probes: &Probes, budget_mib: f64) -> Self {
        let rate = |timed: &Timed| payload.bytes as f64 / MIB / timed.seconds.max(1e-9);
        let ms = |timed: &Timed| timed.seconds * 1e3;
        let over = |timed: &Timed| (timed.peak_rss as f64 - payload.bytes as f64) / MIB;
        let save = samples.spread(Part::Save, rate);
        let cold = samples.spread(Part::LoadCold, rate);
        let warm = Some(samples.spread(Part::LoadWarm, rate)).filter(|_| !samples.is_remote);
        let partial = samples.spread(Part::PartialCold, ms);
        let exists = samples.spread(Part::Exists, ms);
        let peak = |part: Part| samples.of(part).iter().map(over).max_by(f64::total_cmp);
        let save_peak = peak(Part::Save).unwrap_or_default();
        let loads = [peak(Part::LoadCold), peak(Part::LoadWarm)];
        let load_peak = loads.into_iter().flatten().max_by(f64::total_cmp).unwrap_or_default();
        let last = |part| samples.of(part).last().cloned().unwrap_or_default();
        let limits = Limits::new(probes);
        let save_limit = Limit::of(samples, Direction::Write, probes);
        let load_limit = Limit::of(samples, Direction::Read, probes);
        let buffered = limits.buffered_write_mib_s.filter(|_| !samples.is_remote);
        let peak = round(save_peak.max(load_peak));
        let allowed = round(budget_mib + SLACK_MIB);
        let mut spread = BTreeMap::from([
            ("save_mib_s", save.range()),
            ("load_cold_mib_s", cold.range()),
            ("partial_cold_ms", [fine(partial.min), fine(partial.max)]),
            ("exists_ms", [fine(exists.min), fine(exists.max)]),
        ]);
        spread.extend(warm.map(|warm| ("load_warm_mib_s", warm.range())));
        Self {
            db_type: samples.db_type.clone(),
            remote: samples.is_remote,
            save_mib_s: round(save.median),
            save_of_limit: save_limit.as_ref().map(|limit| ratio(save.median, limit.mib_s)),
            save_limit,
            save_of_buffered: buffered.map(|limit| ratio(save.median, limit)),
            load_cold_mib_s: round(cold.median),
            load_of_limit: load_limit.as_ref().map(|limit| ratio(cold.median, limit.mib_s)),
            load_limit,
            load_warm_mib_s: warm.map(|warm| round(warm.median)),
            warm_of_crc32: warm.zip(limits.crc32_mib_s).map(|(warm, limit)| ratio(warm.median, limit)),
            partial_cold_ms: fine(partial.median),
            partial_bytes_read: last(Part::PartialCold).bytes_read,
            exists_ms: fine(exists.median),
            stored_bytes: last(Part::Save).stored_bytes,
            peak_rss_over_payload_mib: peak,
            save_peak_mib: round(save_peak),
            load_peak_mib: round(load_peak),
            peak_allowed_mib: allowed,
            peak_within_allowed: peak <= allowed,
            spread,
        }
    }

    fn row(&self) -> [String; 9] {
        let of = |rate: f64, ratio: Option<f64>, limit: &str| {
            let ratio = ratio.map(|ratio| format!(" ({ratio:.2} of {limit})")).unwrap_or_default();
            format!("{}{ratio}", whole(rate))
        };
        let of_limit = |rate, ratio, limit: &Option<Limit>| {
            of(rate, ratio, limit.as_ref().map_or("nothing", |limit| limit.name))
        };
        let warm = self.load_warm_mib_s.map(|warm| of(warm, self.warm_of_crc32, "crc32"));
        [
            self.db_type.clone(),
            of_limit(self.save_mib_s, self.save_of_limit, &self.save_limit),
            of_limit(self.load_cold_mib_s, self.load_of_limit, &self.load_limit),
            warm.unwrap_or_else(|| "-".to_owned()),
            format!("{:.1} ms, {}", self.partial_cold_ms, size(self.partial_bytes_read)),
            format!("{:.3} ms", self.exists_ms),
            size(self.stored_bytes),
            format!("{:.0} / {:.0}", self.save_peak_mib, self.load_peak_mib),
            if self.peak_within_allowed { "yes" } else { "NO" }.to_owned(),
        ]
    }
}

/// All of it, as `--json` prints it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    machine: Machine,
    payload: Payload,
    rounds: usize,
    options: serde_json::Value,
    limits: Limits,
    results: Vec<StoreResult>,
    #[serde(skip)]
    budget_mib: f64,
}

impl Report {
    pub(super) fn new(
        args: &BenchArgs,
        machine: Machine,
        payload: &Payload,
        probes: &Probes,
        samples: &[Samples],
    ) -> Self {
        let budget_mib = round(args.budget as f64 / MIB);
        let result = |samples| StoreResult::new(samples, payload, probes, budget_mib);
        Self {
            machine,
            payload: payload.clone(),
            rounds: args.rounds,
            options: json!({
                "compress": args.compress.to_string(),
                "budget_mib": budget_mib,
                "threads": args.threads(),
            }),
            limits: Limits::new(probes),
            results: samples.iter().map(result).collect(),
            budget_mib,
        }
    }

    /// A page that needs nothing else.
    pub(super) fn html(&self) -> Result<String> {
        let data = serde_json::to_string(self).map_err(json_error)?;
        // Within a script only this could end it.
        let data = data.replace('<', "\\u003c");
        Ok(include_str!("report.html").replacen("/*DATA*/null", &data, 1))
    }

    pub(super) fn text(&self) -> String {
        let mut text = self.machine.text();
        text.push_str(&format!(
            "{} in {} blobs of {}; memory budget {} MiB; medians of {} rounds\n\n",
            size(self.payload.bytes),
            self.payload.blobs,
            self.payload.dtype,
            self.budget_mib,
            self.rounds
        ));
        let probes = self.limits.probes.iter().map(|probe| {
            [
                probe.name.clone(),
                whole(probe.mib_s),
                format!("{}..{}", whole(probe.min), whole(probe.max)),
                self.limit_of(probe),
            ]
        });
        text.push_str(&table(["limits, MiB/s", ">median", ">least..most", ""], probes.collect()));
        text.push('\n');
        let allowed = format!(">within {}", self.budget_mib + SLACK_MIB);
        let heading = [
            "db_type",
            ">save, MiB/s",
            if self.results.iter().all(|result| result.remote) { ">load" } else { ">load, cold on a disk" },
            ">warm load",
            ">one blob",
            ">exists",
            ">stored",
            ">peak, save / load",
            &allowed,
        ];
        text.push_str(&table(heading, self.results.iter().map(StoreResult::row).collect()));
        text.push_str(
            "peak: the most memory over the payload, in MiB; it is to be within the budget + 64 MiB\n",
        );
        text
    }

    /// Which limits a probe is.
    fn limit_of(&self, probe: &Probe) -> String {
        let mut names: Vec<&str> = self
            .results
            .iter()
            .flat_map(|result| [&result.save_limit, &result.load_limit])
            .flatten()
            .filter(|limit| limit.way == probe.name)
            .map(|limit| limit.name)
            .collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() { String::new() } else { format!("<- {}", names.join(", ")) }
    }
}

fn ratio(value: f64, limit: f64) -> f64 {
    if limit > 0.0 { (value / limit * 1000.0).round() / 1000.0 } else { 0.0 }
}

/// To a tenth: more digits would only look exact.
fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// To a thousandth.
fn fine(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

#[cfg(test)]
mod tests {
    use super::super::limits::WAYS;
    use super::*;

    const GIB: u64 = 1 << 30;

    fn payload() -> Payload {
        Payload { bytes: GIB, blobs: 4, dtype: "f32".to_owned(), seed: 1 }
    }

    /// Direct writes of 1000 MiB/s, buffered ones of 500; reads of 2000; PUT and GET of 100 and 200.
    fn probes() -> Probes {
        let mut probes = Probes::default();
        for way in WAYS {
            for around in [0.9, 1.1] {
                let write = if way.is_buffered() { 500.0 } else { 1000.0 };
                probes.add(Probed::Disk(Direction::Write, way), write * around);
                probes.add(Probed::Disk(Direction::Read, way), 2000.0 * around);
            }
        }
        for (direction, rate) in [(Direction::Write, 100.0), (Direction::Read, 200.0)] {
            let db_type = "s3".to_owned();
            probes.add(Probed::Remote { direction, db_type, object: 8 << 20, in_flight: 16 }, rate);
        }
        probes.add(Probed::Crc32, 10_000.0);
        probes
    }

    /// Every part took a second and `over_mib` over the payload.
    fn result(db_type: &str, remote: Option<&str>, over_mib: u64) -> StoreResult {
        let target = Target { db_type: db_type.to_owned(), remote: remote.map(str::to_owned) };
        let mut samples = Samples::new(&target);
        for &part in samples.parts() {
            samples.add(part, Timed { seconds: 1.0, peak_rss: GIB + (over_mib << 20), ..Timed::default() });
        }
        StoreResult::new(&samples, &payload(), &probes(), 256.0)
    }

    #[test]
    fn medians() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of([4.0, 1.0]).median, 2.5);
        assert_eq!(Spread::of([]), Spread::default());
    }

    #[test]
    fn every_store_has_the_limits_of_its_place() {
        let limit = |limit: &Option<Limit>| limit.as_ref().map(|limit| (limit.name, limit.mib_s)).unwrap();
        let files = result("files", None, 0);
        assert_eq!(
            (limit(&files.save_limit), limit(&files.load_limit)),
            (("write", 1000.0), ("read", 2000.0))
        );
        assert_eq!((files.save_of_limit, files.save_of_buffered), (Some(1.024), Some(2.048)));
        let lmdb = result("lmdb", None, 0);
        assert_eq!(
            (limit(&lmdb.save_limit), limit(&lmdb.load_limit)),
            (("buffered", 500.0), ("read", 2000.0))
        );
        assert_eq!((lmdb.save_of_limit, lmdb.warm_of_crc32), (Some(2.048), Some(0.102)));
        let s3 = result("s3", Some("bucket"), 0);
        assert_eq!((limit(&s3.save_limit), limit(&s3.load_limit)), (("PUT", 100.0), ("GET", 200.0)));
        assert_eq!((s3.save_of_buffered, s3.load_warm_mib_s, s3.warm_of_crc32), (None, None, None));
        assert!(s3.row().iter().any(|cell| cell == "1024 (5.12 of GET)"), "{:?}", s3.row());
    }

    #[test]
    fn what_was_not_measured_is_no_limit() {
        let mut probes = probes();
        probes.0.retain(|(probed, _)| !matches!(probed, Probed::Disk(..)));
        let limits = Limits::new(&probes);
        assert_eq!((limits.write_mib_s, limits.write_way, limits.buffered_write_mib_s), (None, None, None));
        assert_eq!(limits.probes.len(), 3);
    }

    #[test]
    fn the_peak_is_held_against_the_budget() {
        for (over, within) in [(320, true), (321, false)] {
            let result = result("files", None, over);
            assert_eq!((result.peak_allowed_mib, result.peak_within_allowed), (320.0, within), "{over}");
        }
    }

    #[test]
    fn the_page_has_one_place_for_the_data() {
        assert_eq!(include_str!("report.html").matches("/*DATA*/null").count(), 1);
    }
}
