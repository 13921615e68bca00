//! From samples to medians, and how they are told.

use std::collections::BTreeMap;

use ckpt_engine::Result;
use serde::Serialize;
use serde_json::json;

use super::limits::{WAYS, Way};
use super::machine::Machine;
use super::payload::Payload;
use super::step::{Part, Timed, json_error};
use crate::cli::BenchArgs;
use crate::output::{size, table};

const MIB: f64 = 1_048_576.0;

/// The limits of all rounds: a list for each way of [`WAYS`].
#[derive(Default)]
pub(super) struct Probes {
    writes: BTreeMap<String, (bool, Vec<f64>)>,
    reads: BTreeMap<String, (bool, Vec<f64>)>,
    pub(super) memcpy: Vec<f64>,
    pub(super) crc32: Vec<f64>,
}

impl Probes {
    pub(super) fn write(&mut self, way: Way, rate: Option<f64>) {
        self.writes.entry(way.name()).or_insert((way.is_direct(), Vec::new())).1.extend(rate);
    }

    pub(super) fn read(&mut self, way: Way, rate: Option<f64>) {
        self.reads.entry(way.name()).or_insert((way.is_direct(), Vec::new())).1.extend(rate);
    }
}

/// What was measured of one store.
pub(super) struct Samples {
    pub(super) db_type: String,
    parts: BTreeMap<&'static str, Vec<Timed>>,
}

impl Samples {
    pub(super) fn new(db_type: &str) -> Self {
        Self { db_type: db_type.to_owned(), parts: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, part: Part, timed: Timed) {
        self.parts.entry(super::name(part)).or_default().push(timed);
    }

    fn of(&self, part: Part) -> &[Timed] {
        self.parts.get(super::name(part)).map(Vec::as_slice).unwrap_or_default()
    }

    fn median(&self, part: Part, value: impl Fn(&Timed) -> f64) -> Spread {
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

/// One way of a direction.
#[derive(Clone, Debug, Serialize)]
struct Probe {
    name: String,
    mib_s: f64,
    min: f64,
    max: f64,
}

#[derive(Clone, Debug, Serialize)]
struct Limits {
    write_mib_s: f64,
    read_mib_s: f64,
    memcpy_mib_s: f64,
    crc32_mib_s: f64,
    buffered_write_mib_s: f64,
    buffered_read_mib_s: f64,
    /// The way that is the limit.
    write_way: String,
    read_way: String,
    write_spread: [f64; 2],
    read_spread: [f64; 2],
    probes: Vec<Probe>,
}

#[derive(Clone, Debug, Serialize)]
struct StoreResult {
    db_type: String,
    save_mib_s: f64,
    save_of_limit: f64,
    /// Of the buffered way, which is what LMDB has.
    save_of_buffered: f64,
    load_cold_mib_s: f64,
    load_of_limit: f64,
    load_warm_mib_s: f64,
    warm_of_crc32: f64,
    partial_cold_ms: f64,
    partial_bytes_read: u64,
    exists_ms: f64,
    stored_bytes: u64,
    /// The larger of the two that follow.
    peak_rss_over_payload_mib: f64,
    save_peak_mib: f64,
    load_peak_mib: f64,
    /// The least and the most of each figure.
    spread: BTreeMap<&'static str, [f64; 2]>,
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
}

impl Report {
    pub(super) fn new(
        args: &BenchArgs,
        payload: &Payload,
        probes: &Probes,
        samples: &[Samples],
    ) -> Result<Self> {
        let limits = Limits::new(probes);
        let results = samples.iter().map(|samples| StoreResult::new(samples, payload, &limits)).collect();
        Ok(Self {
            machine: Machine::of(&args.dir)?,
            payload: payload.clone(),
            rounds: args.rounds,
            options: json!({
                "compress": args.compress.to_string(),
                "budget_mib": args.budget >> 20,
                "threads": args.threads(),
            }),
            limits,
            results,
        })
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
            "{} in {} blobs of {}, {} rounds; medians\n\nlimits, MiB/s\n",
            size(self.payload.bytes),
            self.payload.blobs,
            self.payload.dtype,
            self.rounds
        ));
        let probes = self.limits.probes.iter().map(|probe| {
            let is_limit = [&self.limits.write_way, &self.limits.read_way].contains(&&probe.name);
            let mark = if is_limit { "<- the limit" } else { "" };
            [
                probe.name.clone(),
                whole(probe.mib_s),
                format!("{}..{}", whole(probe.min), whole(probe.max)),
                mark.to_owned(),
            ]
        });
        text.push_str(&table(["", ">median", ">least..most", ""], probes.collect()));
        text.push('\n');
        let rows = self.results.iter().map(|result| {
            [
                result.db_type.clone(),
                format!("{} ({:.2})", whole(result.save_mib_s), result.save_of_limit),
                format!("{} ({:.2})", whole(result.load_cold_mib_s), result.load_of_limit),
                format!("{} ({:.2})", whole(result.load_warm_mib_s), result.warm_of_crc32),
                format!("{:.1}", result.partial_cold_ms),
                size(result.partial_bytes_read),
                format!("{:.3}", result.exists_ms),
                size(result.stored_bytes),
                format!("{:.0} / {:.0}", result.save_peak_mib, result.load_peak_mib),
            ]
        });
        let heading = [
            "db_type",
            ">save MiB/s (of limit)",
            ">cold load (of limit)",
            ">warm load (of crc32)",
            ">one blob ms",
            ">read for it",
            ">exists ms",
            ">stored",
            ">memory over payload MiB, save / load",
        ];
        text.push_str(&table(heading, rows.collect()));
        text
    }
}

impl Limits {
    fn new(probes: &Probes) -> Self {
        let mut all = Vec::new();
        let mut limit = |direction: &str, rates: &BTreeMap<String, (bool, Vec<f64>)>| {
            let mut best = (String::new(), Spread::default());
            let mut buffered = 0.0;
            for way in WAYS {
                let Some((is_direct, rates)) = rates.get(&way.name()).filter(|(_, rates)| !rates.is_empty())
                else {
                    continue;
                };
                let spread = Spread::of(rates.iter().copied());
                let name = format!("{direction}, {}", way.name());
                all.push(Probe::new(&name, spread));
                if !is_direct {
                    buffered = spread.median;
                }
                if spread.median > best.1.median {
                    best = (name, spread);
                }
            }
            (best.0, best.1, buffered)
        };
        let (write_way, write, buffered_write) = limit("write", &probes.writes);
        let (read_way, read, buffered_read) = limit("read", &probes.reads);
        let memcpy = Spread::of(probes.memcpy.iter().copied());
        let crc32 = Spread::of(probes.crc32.iter().copied());
        all.push(Probe::new("memcpy, all cpus", memcpy));
        all.push(Probe::new("crc32, all cpus", crc32));
        Self {
            write_mib_s: round(write.median),
            read_mib_s: round(read.median),
            memcpy_mib_s: round(memcpy.median),
            crc32_mib_s: round(crc32.median),
            buffered_write_mib_s: round(buffered_write),
            buffered_read_mib_s: round(buffered_read),
            write_way,
            read_way,
            write_spread: write.range(),
            read_spread: read.range(),
            probes: all,
        }
    }
}

impl Probe {
    fn new(name: &str, spread: Spread) -> Self {
        let [min, max] = spread.range();
        Self { name: name.to_owned(), mib_s: round(spread.median), min, max }
    }
}

impl StoreResult {
    fn new(samples: &Samples, payload: &Payload, limits: &Limits) -> Self {
        let rate = |timed: &Timed| payload.bytes as f64 / MIB / timed.seconds.max(1e-9);
        let ms = |timed: &Timed| timed.seconds * 1e3;
        let over = |timed: &Timed| (timed.peak_rss as f64 - payload.bytes as f64) / MIB;
        let save = samples.median(Part::Save, rate);
        let cold = samples.median(Part::LoadCold, rate);
        let warm = samples.median(Part::LoadWarm, rate);
        let partial = samples.median(Part::PartialCold, ms);
        let exists = samples.median(Part::Exists, ms);
        let save_peak = samples.median(Part::Save, over).max;
        let load_peak =
            samples.median(Part::LoadCold, over).max.max(samples.median(Part::LoadWarm, over).max);
        let last = |part| samples.of(part).last().cloned().unwrap_or_default();
        Self {
            db_type: samples.db_type.clone(),
            save_mib_s: round(save.median),
            save_of_limit: ratio(save.median, limits.write_mib_s),
            save_of_buffered: ratio(save.median, limits.buffered_write_mib_s),
            load_cold_mib_s: round(cold.median),
            load_of_limit: ratio(cold.median, limits.read_mib_s),
            load_warm_mib_s: round(warm.median),
            warm_of_crc32: ratio(warm.median, limits.crc32_mib_s),
            partial_cold_ms: fine(partial.median),
            partial_bytes_read: last(Part::PartialCold).bytes_read,
            exists_ms: fine(exists.median),
            stored_bytes: last(Part::Save).stored_bytes,
            peak_rss_over_payload_mib: round(save_peak.max(load_peak)),
            save_peak_mib: round(save_peak),
            load_peak_mib: round(load_peak),
            spread: BTreeMap::from([
                ("save_mib_s", save.range()),
                ("load_cold_mib_s", cold.range()),
                ("load_warm_mib_s", warm.range()),
                ("partial_cold_ms", [fine(partial.min), fine(partial.max)]),
                ("exists_ms", [fine(exists.min), fine(exists.max)]),
            ]),
        }
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
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of([4.0, 1.0]).median, 2.5);
        assert_eq!(Spread::of([]), Spread::default());
    }

    #[test]
    fn the_page_has_one_place_for_the_data() {
        assert_eq!(include_str!("report.html").matches("/*DATA*/null").count(), 1);
    }
}
