#!/usr/bin/env python3
"""Stored bytes and speed of each way to compress, on a model that somebody trained.

Imports a .safetensors file into each store with each --compress, verifies it with an empty page cache (which reads, checks and
decompresses all of it) and prints a Markdown table of medians. The rounds are interleaved. Needs Python 3.11 and nothing else.

    compress.py --ckpt target/release/ckpt --dir /data/scratch model.safetensors
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

STORES = ["files", "rocksdb", "lmdb"]
WAYS = ["none", "auto", "zstd:1", "zstd:3", "zstd:9"]
NODE = "model"


def ckpt(program: str, *arguments: str) -> dict:
    ran = subprocess.run([program, *arguments, "--json", "-q"], capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit(f"{' '.join(arguments)} failed: {ran.stderr.strip()}")
    return json.loads(ran.stdout)


def warm(path: str) -> None:
    with open(path, "rb") as file:
        while file.read(1 << 20):
            pass


def cool(folder: pathlib.Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a .safetensors file")
    parser.add_argument("--ckpt", required=True, help="the ckpt binary")
    parser.add_argument("--dir", default=".", help="a folder on the disk to measure (default: here)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    samples: dict[tuple[str, str], list[tuple[float, float, int]]] = {}
    raw = 0
    folder = pathlib.Path(tempfile.mkdtemp(prefix="compress.", dir=options.dir))
    try:
        for _ in range(options.rounds):
            for db_type in STORES:
                for way in WAYS:
                    place = folder / f"{db_type}.{way}"
                    store = f"{db_type}:{place}"
                    warm(options.model)
                    imported = ckpt(options.ckpt, "import", options.model, store, "--node", NODE, "--epoch", "0", "--compress", way)
                    raw = imported["bytes"]
                    listed = ckpt(options.ckpt, "ls", store)
                    stored = listed["epochs"][0]["nodes"][0]["stored_bytes"]
                    cool(place)
                    begun = time.perf_counter()
                    if not ckpt(options.ckpt, "verify", store)["ok"]:
                        sys.exit(f"{store} is damaged")
                    verified = time.perf_counter() - begun
                    samples.setdefault((db_type, way), []).append((imported["seconds"], verified, stored))
                    shutil.rmtree(place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    print(f"{pathlib.Path(options.model).name}, {raw:,} bytes of tensors; medians of {options.rounds} rounds\n")
    print("| `--compress` | stored bytes | of raw |" + "".join(f" {db_type} import / verify, MiB/s |" for db_type in STORES))
    print("|---|--:|--:|" + "--:|" * len(STORES))
    for way in WAYS:
        stored = [sample[2] for sample in samples[STORES[0], way]]
        row = f"| {way} | {statistics.median_low(stored):,} | {statistics.median(stored) / raw:.3f} |"
        for db_type in STORES:
            speeds = [raw / (1 << 20) / statistics.median(sample[at] for sample in samples[db_type, way]) for at in (0, 1)]
            row += f" {speeds[0]:,.0f} / {speeds[1]:,.0f} |"
        print(row)


if __name__ == "__main__":
    main()
