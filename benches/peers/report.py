"""The machine in a few words, and the figures as a table: on a terminal and as Markdown."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

Document = dict[str, Any]
Row = dict[str, Any]
Column = tuple[str, Callable[[Row], str]]


def summary(values: list[float]) -> dict[str, Any]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "samples": values}


def field(path: str, key: str) -> str:
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return "unknown"


def kibibytes(key: str) -> int:
    return int(field("/proc/meminfo", key).split()[0]) * 1024


def memory_available() -> int:
    return kibibytes("MemAvailable")


def mount_of(folder: Path) -> tuple[str, str, str]:
    """File system, its source, its device number: of the mount that holds the folder."""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            kind, source = after.split()[:2]
            return kind, source, wanted
    return "unknown", "unknown", wanted


def disk_of(number: str) -> str:
    block = Path("/sys/dev/block", number).resolve()
    # A partition has no queue of its own: its disk is the folder above.
    for place in (block, block.parent):
        rotational = place / "queue" / "rotational"
        if rotational.exists():
            model = place / "device" / "model"
            name = model.read_text().strip() if model.exists() else "no model named"
            # Virtual disks often say that they rotate: it is only what they say.
            return f"{name}, says it is {'rotating' if rotational.read_text().strip() == '1' else 'not rotating'}"
    return "no block device"


def machine(folder: Path) -> dict[str, str]:
    kind, source, number = mount_of(folder)
    cpus = len(os.sched_getaffinity(0))
    return {
        "cpu": f"{field('/proc/cpuinfo', 'model name')}, {cpus} {'core' if cpus == 1 else 'cores'}",
        "memory": f"{kibibytes('MemTotal') / (1 << 30):.1f} GiB",
        "disk": f"{source} ({disk_of(number)})",
        "file_system": kind,
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_average": f"{os.getloadavg()[0]:.1f} at the start",
    }


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.1f}"


def spread(row: Row, key: str) -> str:
    figure = row.get(key)
    if figure is None:
        return "-"
    if len(figure["samples"]) == 1:
        return number(figure["median"])
    return f"{number(figure['median'])} ({number(figure['min'])}..{number(figure['max'])})"


def ratio(row: Row, key: str) -> str:
    return "-" if row[key] is None else f"{row[key]:.2f}"


def extra(row: Row) -> str:
    """ckpt names the greater of the two; nothing below zero is shown, as it is only noise of what the process gave back meanwhile."""
    if "extra" in row:
        return f"{max(0, row['extra']['median']):,.0f} (the greater)"
    sides = [row.get(key) for key in ("extra_save", "extra_load")]
    return " / ".join("-" if side is None else f"{max(0, side['median']):,.0f}" for side in sides)


def columns(document: Document) -> list[Column]:
    of_limit = bool(document["limits"])
    save_of_limit: list[Column] = [("save / limit", lambda row: ratio(row, "save_of_limit"))] if of_limit else []
    cold_of_limit: list[Column] = [("cold / limit", lambda row: ratio(row, "cold_of_limit"))] if of_limit else []
    return [
        ("contender", lambda row: row["contender"]),
        ("durable?", lambda row: row["durable"]),
        ("checksums on?", lambda row: row["checksums"] or "-"),
        ("save MiB/s", lambda row: spread(row, "save")),
        *save_of_limit,
        ("cold MiB/s", lambda row: spread(row, "cold")),
        *cold_of_limit,
        ("warm MiB/s", lambda row: spread(row, "warm")),
        ("one blob cold ms", lambda row: spread(row, "one")),
        ("extra memory save / load MiB", extra),
    ]


def headline(document: Document) -> list[str]:
    machine, payload = document["machine"], document["payload"]
    rounds = "1 round" if document["rounds"] == 1 else f"{document['rounds']} rounds"
    lines = [
        f"{payload['bytes'] / (1 << 20):,.0f} MiB in {payload['blobs']} tensors of {payload['dtype']}; {rounds}, "
        "interleaved; medians (min..max).",
        f"{machine['cpu']}; {machine['memory']}; {machine['disk']}, {machine['file_system']}; {machine['kernel']}; "
        f"load average {machine['load_average']}; {document['date']}.",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in document["versions"].items())
        + f", Python {machine['python']}.",
    ]
    limits = document["limits"]
    if limits:
        write, read = (limits[name] for name in ("write_mib_s", "read_mib_s"))
        lines.append(
            f"Limits of this disk in this run, by `ckpt bench`: write {spread({'limit': write}, 'limit')} MiB/s, "
            f"read {spread({'limit': read}, 'limit')} MiB/s."
        )
    return lines


def footnotes(document: Document) -> list[str]:
    notes = [
        "Durable: synced, files and folders, before the clock stops. Checksums: whether loading noticed one bit that was flipped on the "
        "disk (for ckpt: as documented). Cold: the page cache was dropped for those files (fadvise), and mincore found none of their "
        "pages (ckpt does its own). Every cache line is touched before the clock stops. Memory was hot: parts follow one another, "
        "so the pages that one is given were in use shortly before.",
    ]
    notes += [
        f"Not cold: {label}: {share:.0%} of the pages stayed in the page cache." for label, share in document["not_cold"].items()
    ]
    notes += [f"Skipped: {label}: {reason}." for label, reason in document["skipped"].items()]
    return notes + where_ckpt_loses(document["rows"])


def where_ckpt_loses(rows: list[Row]) -> list[str]:
    """Against ckpt's best row, by medians. Whoever is not durable competes in nothing."""
    ours = [row for row in rows if row["contender"].startswith("ckpt ")]
    peers = [row for row in rows if row not in ours and row["durable"] == "yes"]
    notes = []
    for key, name, better in (("save", "save", max), ("cold", "cold load", max), ("warm", "warm load", max), ("one", "one blob cold", min)):
        our_medians = [row[key]["median"] for row in ours if key in row]
        theirs = [(row[key]["median"], row["contender"]) for row in peers if key in row]
        if not our_medians or not theirs:
            continue
        best = better(our_medians)
        ahead = [f"{label} ({number(median)})" for median, label in theirs if better(median, best) == median != best]
        if ahead:
            notes.append(f"Ahead of ckpt's best ({number(best)}) in {name}: {', '.join(ahead)}.")
    return notes


def latest(samples: dict[str, list[float]]) -> str:
    units = (("save", "MiB/s"), ("cold", "MiB/s"), ("warm", "MiB/s"), ("one", "ms"))
    figures = [f"{key} {number(samples[key][-1])} {unit}" for key, unit in units if key in samples]
    return ", ".join(figures)


def cells(document: Document) -> list[list[str]]:
    chosen = columns(document)
    return [[title for title, _ in chosen]] + [[cell(row) for _, cell in chosen] for row in document["rows"]]


def terminal(document: Document) -> str:
    table = cells(document)
    widths = [max(len(line[index]) for line in table) for index in range(len(table[0]))]
    table.insert(1, ["-" * width for width in widths])
    drawn = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    return "\n".join([*headline(document), "", *drawn, "", *footnotes(document)])


def markdown(document: Document) -> str:
    table = cells(document)
    table.insert(1, ["---"] + ["---:" if title[-3:] in ("B/s", " ms", "MiB", "mit") else "---" for title in table[0][1:]])
    drawn = ["| " + " | ".join(line) + " |" for line in table]
    lead = [f"- {line}" for line in headline(document)]
    notes = [f"- {line}" for line in footnotes(document)]
    return "\n".join(["# ckpt and its peers", "", *lead, "", *drawn, "", *notes]) + "\n"
