"""Measures ckpt and what others use for checkpoints on the same machine, in one run. README.md says how, and what is fair about it."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import report

try:
    import contenders
except ImportError as missing:
    sys.exit(f"{missing}: run this with the Python of the environment that setup.sh makes")

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
CKPT_DB_TYPES = ("files", "rocksdb", "lmdb")
# Of ckpt's figures, those that its rows show, under the names that the rows of the peers have them.
CKPT_FIGURES = {
    "save": "save_mib_s",
    "cold": "load_cold_mib_s",
    "warm": "load_warm_mib_s",
    "one": "partial_cold_ms",
    "extra": "peak_rss_over_payload_mib",
}
# More than this share of the pages still in the cache, and "cold" is not the word.
COLD_ENOUGH = 0.01

Samples = dict[str, list[float]]


class PartFailed(Exception):
    pass


def parse_size(text: str) -> int:
    digits = text.rstrip("BbGgIiKkMm")
    unit = text[len(digits):].upper()
    try:
        return int(digits) * UNITS[unit]
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 1GiB, 256MiB, 64KiB or bytes") from None


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above zero")
    return int(text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=parse_size, default=parse_size("1GiB"), help="of all tensors together (default: 1GiB)")
    parser.add_argument("--blobs", type=positive, default=64, help="how many tensors (default: 64)")
    parser.add_argument("--rounds", type=positive, default=5, help="default: 5")
    parser.add_argument("--dir", type=Path, default=Path("."), help="a folder on the disk to measure (default: here)")
    parser.add_argument("--ckpt", type=Path, help="the ckpt binary; without it there are no rows of ckpt and no limits")
    parser.add_argument("--only", help=f"a list with commas, of: {', '.join(contenders.CONTENDERS)} (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes every sample there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="writes the table there too")
    arguments = parser.parse_args()
    # A whole number of cache lines in each tensor.
    arguments.count = arguments.size // arguments.blobs // 64 * 16
    if arguments.count == 0:
        parser.error("--size is too small for so many --blobs")
    try:
        arguments.chosen = contenders.choose(arguments.only.split(",") if arguments.only else contenders.CONTENDERS)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def check_room(folder: Path, payload: int, with_ckpt: bool) -> None:
    # One db at a time; ckpt keeps what its limit probes write beside it, and RocksDB may write twice.
    needed = payload * (4 if with_ckpt else 2) + 256 * MIB
    free = shutil.disk_usage(folder).free
    if free < needed:
        sys.exit(f"{folder} has {free // MIB:,} MiB free, and {needed // MIB:,} MiB are needed: choose another --dir or a smaller --size")
    # The payload, a copy of it that some libraries make, and the page cache of one db.
    wanted = 3 * payload + 512 * MIB
    available = report.memory_available()
    if available < wanted:
        say(f"warning: {available // MIB:,} MiB of memory available, {wanted // MIB:,} MiB wanted: warm may not be warm")


def run_child(command: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Ends the child however this process is ended: `subprocess.run` kills it on any exception."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise PartFailed(f"no end after {timeout:.0f} s") from None
    except OSError as error:
        raise PartFailed(str(error)) from None


def settle() -> None:
    # What the part before left to be written, or discarded after a deletion, is not to be paid by the next one.
    os.sync()
    time.sleep(0.2)


class Run:
    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.arguments = arguments
        self.folder = folder
        self.samples: dict[str, Samples] = {}
        self.skipped: dict[str, str] = {}
        self.noticed: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self.not_cold: dict[str, float] = {}
        self.limits: Samples = {}

    def part(self, key: str, part: str) -> dict[str, Any]:
        job = {
            "contender": key, "part": part, "folder": str(self.folder / key),
            "blobs": self.arguments.blobs, "count": self.arguments.count,
        }
        done = run_child([sys.executable, str(HERE / "worker.py"), json.dumps(job)], timeout=900)
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            last = done.stderr.strip().splitlines()[-1:] or ["nothing said"]
            raise PartFailed(f"{part} ended with {done.returncode}: {last[0]}") from None
        if "error" in answer:
            raise PartFailed(f"{part}: {answer['error']}")
        return answer

    def probe(self) -> list[str]:
        ready = []
        for key, contender in self.arguments.chosen.items():
            try:
                self.versions |= self.part(key, "probe")["versions"]
                ready.append(key)
            except PartFailed as failure:
                self.skip(contender.label, str(failure))
        return ready

    def skip(self, label: str, reason: str) -> None:
        say(f"skipped: {label}: {reason}")
        self.skipped[label] = reason

    def add(self, label: str, figure: str, value: float) -> None:
        self.samples.setdefault(label, {}).setdefault(figure, []).append(value)

    def round_of(self, key: str, last: bool) -> None:
        contender = self.arguments.chosen[key]
        label = contender.label
        payload = self.arguments.blobs * self.arguments.count * 4
        try:
            settle()
            saved = self.part(key, "save")
            if contender.shows_save:
                self.add(label, "save", payload / MIB / saved["seconds"])
                self.add(label, "extra_save", saved["extra"] / MIB)
            self.add(label, "stored_bytes", saved["stored"])
            if contender.shows_load:
                self.measure_loads(key, label, payload)
                if last:
                    self.noticed[label] = self.part(key, "damage")["noticed"]
        finally:
            shutil.rmtree(self.folder / key, ignore_errors=True)

    def measure_loads(self, key: str, label: str, payload: int) -> None:
        settle()
        cold = self.part(key, "cold")
        one = self.part(key, "one")
        warm = self.part(key, "warm")
        self.add(label, "cold", payload / MIB / cold["seconds"])
        self.add(label, "warm", payload / MIB / warm["seconds"])
        self.add(label, "one", one["seconds"] * 1000)
        self.add(label, "extra_load", max(cold["extra"], warm["extra"]) / MIB)
        stayed = max(cold["resident"], one["resident"])
        if stayed > COLD_ENOUGH:
            self.not_cold[label] = max(stayed, self.not_cold.get(label, 0))

    def round_of_ckpt(self) -> None:
        settle()
        place = self.folder / "ckpt"
        place.mkdir()
        command = [
            str(self.arguments.ckpt), "bench", "--db-type", ",".join(CKPT_DB_TYPES), "--rounds", "1", "--json",
            "--size", self.size_for_ckpt(), "--blobs", str(self.arguments.blobs), "--dir", str(place),
        ]
        try:
            self.add_ckpt(run_child(command, timeout=1800))
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def size_for_ckpt(self) -> str:
        payload = self.arguments.blobs * self.arguments.count * 4
        return str(payload) if payload % MIB else f"{payload // MIB}MiB"

    def add_ckpt(self, done: subprocess.CompletedProcess[str]) -> None:
        if done.returncode:
            last = done.stderr.strip().splitlines() or ["nothing said"]
            raise PartFailed(f"`ckpt bench` ended with {done.returncode}: {last[0]}")
        try:
            document = json.loads(done.stdout)
            for name in ("write_mib_s", "read_mib_s"):
                self.limits.setdefault(name, []).append(float(document["limits"][name]))
            for result in document["results"]:
                for figure, name in CKPT_FIGURES.items():
                    if result.get(name) is not None:
                        self.add(f"ckpt {result['db_type']}", figure, float(result[name]))
        except (ValueError, KeyError, TypeError) as error:
            raise PartFailed(f"`ckpt bench --json` said something else than it should: {type(error).__name__}: {error}") from None

    def all_rounds(self) -> None:
        ready = self.probe()
        if self.arguments.ckpt is None:
            self.skip("ckpt", "--ckpt was not given, so there are no limits to compare with either")
        else:
            ready.insert(0, "ckpt")
        for number in range(1, self.arguments.rounds + 1):
            for key in rotated(ready, number - 1):
                try:
                    self.turn(key, number)
                except PartFailed as failure:
                    ready.remove(key)
                    self.withdraw(key, f"round {number}: {failure}")
        missing = [db_type for db_type in CKPT_DB_TYPES if f"ckpt {db_type}" not in self.samples]
        if "ckpt" in ready and missing:
            self.skip(f"ckpt {', '.join(missing)}", "not among what `ckpt bench` reported")

    def turn(self, key: str, number: int) -> None:
        if key == "ckpt":
            self.round_of_ckpt()
        else:
            self.round_of(key, last=number == self.arguments.rounds)
        for label in self.labels(key):
            say(f"round {number}/{self.arguments.rounds}  {label}: {report.latest(self.samples[label])}")

    def labels(self, key: str) -> list[str]:
        """The rows that belong to one taker of turns: ckpt has several."""
        if key == "ckpt":
            return [label for label in self.samples if label.startswith("ckpt ")]
        return [self.arguments.chosen[key].label]

    def withdraw(self, key: str, reason: str) -> None:
        # Some of its rounds would be compared with all of the others'.
        for label in self.labels(key):
            self.samples.pop(label, None)
        self.skip("ckpt" if key == "ckpt" else self.arguments.chosen[key].label, reason)

    def document(self, machine: dict[str, str]) -> dict[str, Any]:
        contender_of = {contender.label: contender for contender in self.arguments.chosen.values()}
        ckpt = self.labels("ckpt")
        peers = [label for label in contender_of if label in self.samples]
        limits = {name: report.summary(values) for name, values in self.limits.items()}
        return {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
            "machine": machine,
            "versions": dict(sorted(self.versions.items())),
            "payload": {
                "bytes": self.arguments.blobs * self.arguments.count * 4, "blobs": self.arguments.blobs, "dtype": "f32",
            },
            "rounds": self.arguments.rounds,
            "limits": limits,
            "rows": [self.row(label, contender_of.get(label)) for label in ckpt + peers],
            "skipped": self.skipped,
            "not_cold": self.not_cold,
        }

    def row(self, label: str, contender: contenders.Contender | None) -> dict[str, Any]:
        figures = {name: report.summary(values) for name, values in self.samples[label].items()}
        return {
            "contender": label,
            # Both are what ckpt does always; its own tests hold it to that.
            "durable": "yes" if contender is None or contender.durable else "NO",
            "checksums": "yes" if contender is None else self.noticed.get(label, ""),
            **figures,
            "save_of_limit": self.of_limit(label, "save", "write_mib_s"),
            "cold_of_limit": self.of_limit(label, "cold", "read_mib_s"),
        }

    def of_limit(self, label: str, figure: str, limit: str) -> float | None:
        values = self.samples[label].get(figure)
        if not values or not self.limits.get(limit):
            return None
        return statistics.median(values) / statistics.median(self.limits[limit])


def rotated(keys: list[str], by: int) -> list[str]:
    """Each round begins with another, so that nobody always follows the same one."""
    if not keys:
        return []
    by %= len(keys)
    return keys[by:] + keys[:by]


def stop(*_: object) -> None:
    # Only the first time: a second one would interrupt the cleaning up.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    arguments = parse_arguments()
    if arguments.ckpt is not None and not os.access(arguments.ckpt, os.X_OK):
        sys.exit(f"{arguments.ckpt} is not there, or is no program")
    if arguments.ckpt is not None:
        arguments.ckpt = arguments.ckpt.resolve()
    try:
        arguments.dir.mkdir(parents=True, exist_ok=True)
        check_room(arguments.dir, arguments.size, arguments.ckpt is not None)
    except OSError as error:
        sys.exit(f"--dir: {error}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        with tempfile.TemporaryDirectory(prefix="ckpt-peers-", dir=arguments.dir, ignore_cleanup_errors=True) as folder:
            run = Run(arguments, Path(folder).resolve())
            machine = report.machine(run.folder)
            run.all_rounds()
    except KeyboardInterrupt:
        say("stopped; what was written is removed")
        return 130
    document = run.document(machine)
    print(report.terminal(document))
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(report.markdown(document))
    return 0 if document["rows"] else 3


if __name__ == "__main__":
    sys.exit(main())
