"""One timed part of one contender, in a process of its own: `python worker.py JOB`, JOB being JSON. Answers with JSON on stdout.

A process of its own, so that a peak of memory belongs to one part, and nobody finds memory or caches that another has warmed up.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import mmap
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from contenders import CONTENDERS, Peer, Tensors, sync_path

MIB = 1 << 20
SEED = 20_240_229
PAGE = mmap.PAGESIZE


def names_of(blobs: int) -> list[str]:
    return [f"tensor_{index:06}" for index in range(blobs)]


def make_tensor(index: int, count: int) -> np.ndarray:
    return np.random.default_rng([SEED, index]).random(count, dtype=np.float32)


def make_payload(blobs: int, count: int) -> Tensors:
    return {name: make_tensor(index, count) for index, name in enumerate(names_of(blobs))}


def touch(arrays: Tensors) -> int:
    """Reads eight bytes of every cache line: a mapped load has read nothing until someone does."""
    return sum(int(array.view(np.uint64)[::8].sum()) for array in arrays.values())


def compare(arrays: Tensors, names: list[str], count: int) -> None:
    """With the payload, made anew one tensor at a time: as bytes, since a NaN equals nothing."""
    for name, array in arrays.items():
        expected = make_tensor(names.index(name), count)
        if array.dtype != expected.dtype or array.shape != expected.shape:
            raise ValueError(f"{name}: {array.dtype} of {array.shape} instead of {expected.dtype} of {expected.shape}")
        if not np.array_equal(array.view(np.uint32), expected.view(np.uint32)):
            raise ValueError(f"{name}: other bytes than were saved")


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def drop_cache(folder: Path) -> float:
    """Puts the files out of the page cache, and says which share of them stayed there regardless."""
    for path in files_in(folder):
        sync_path(path)  # dirty pages stay
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
    return resident_share(folder)


def resident_share(folder: Path) -> float:
    pages = [resident_pages(path) for path in files_in(folder)]
    return sum(resident for resident, _ in pages) / max(1, sum(total for _, total in pages))


def resident_pages(path: Path) -> tuple[int, int]:
    """How many pages of the file are in the page cache, and how many it has."""
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        view = np.frombuffer(mapping, dtype=np.uint8)  # only for its address
        total = -(-len(view) // PAGE)
        present = np.zeros(total, dtype=np.uint8)
        failed = mincore(view.ctypes.data, len(view), present.ctypes.data)
        del view  # a mapping with a view on it cannot be closed
        if failed:
            raise OSError(ctypes.get_errno(), "mincore", str(path))
        return int((present & 1).sum()), total


def warm_cache(folder: Path) -> None:
    scratch = bytearray(MIB)
    for path in files_in(folder):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(scratch):
                pass


def memory(key: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def rehearse(peer: Peer, beside: Path) -> None:
    """A few kilobytes there and back, so that what a library does once only (threads, tables, late imports) is not on the clock."""
    count = 1024
    names = names_of(2)
    with tempfile.TemporaryDirectory(prefix="rehearsal-", dir=beside) as folder:
        peer.save(Path(folder), make_payload(2, count))
        touch(peer.load(Path(folder), names, count))
        peer.close()
        touch({names[1]: peer.load_one(Path(folder), names[1], names, count)})
        peer.close()


class Stopwatch:
    """The time of a part, and the peak of memory within it over what was there before."""

    def __enter__(self) -> Stopwatch:
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to what is there now
        self.before = memory("VmRSS")
        self.start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self.start
        self.growth = memory("VmHWM") - self.before


def save(peer: Peer, folder: Path, blobs: int, count: int) -> dict[str, Any]:
    tensors = make_payload(blobs, count)
    folder.mkdir()
    with Stopwatch() as watch:
        peer.save(folder, tensors)
    stored = sum(path.stat().st_blocks * 512 for path in files_in(folder))
    return {"seconds": watch.seconds, "extra": watch.growth, "stored": stored}


def load(peer: Peer, folder: Path, blobs: int, count: int, cold: bool) -> dict[str, Any]:
    names = names_of(blobs)
    resident = prepare_cache(folder, cold)
    with Stopwatch() as watch:
        arrays = peer.load(folder, names, count)
        touch(arrays)
    if sorted(arrays) != names:
        raise ValueError(f"{len(arrays)} tensors instead of {blobs}")
    compare(arrays, names, count)
    return {"seconds": watch.seconds, "extra": watch.growth - blobs * count * 4, "resident": resident}


def load_one(peer: Peer, folder: Path, blobs: int, count: int) -> dict[str, Any]:
    names = names_of(blobs)
    name = names[blobs // 2]
    resident = prepare_cache(folder, cold=True)
    with Stopwatch() as watch:
        arrays = {name: peer.load_one(folder, name, names, count)}
        touch(arrays)
    compare(arrays, names, count)
    return {"seconds": watch.seconds, "resident": resident}


def prepare_cache(folder: Path, cold: bool) -> float:
    if cold:
        return drop_cache(folder)
    warm_cache(folder)
    return resident_share(folder)


def damage(peer: Peer, folder: Path, blobs: int, count: int) -> dict[str, Any]:
    """Flips one bit in the middle of one tensor, and looks whether loading everything says so."""
    names = names_of(blobs)
    middle = make_tensor(blobs // 2, count).view(np.uint8)[count * 2:][:64].tobytes()
    if not any(flip_bit(path, middle) for path in files_in(folder)):
        return {"noticed": "unclear", "how": "the bytes of the tensor are not in the files as they are"}
    try:
        arrays = peer.load(folder, names, count)
        touch(arrays)
    except BaseException as error:  # torch.distributed.checkpoint has one that is no Exception
        return {"noticed": "yes", "how": describe(error)}
    try:
        compare(arrays, names, count)
    except ValueError:
        return {"noticed": "no"}
    return {"noticed": "unclear", "how": "loaded as if nothing had changed"}


def flip_bit(path: Path, wanted: bytes) -> bool:
    """In the file, where those bytes are."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        at = mapping.find(wanted)
        if at >= 0:
            mapping[at] ^= 1
        return at >= 0


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def probe(key: str) -> dict[str, Any]:
    return {"versions": {name: importlib.metadata.version(name) for name in CONTENDERS[key].packages}}


def work(job: dict[str, Any]) -> dict[str, Any]:
    peer = CONTENDERS[job["contender"]].make()
    folder, blobs, count = Path(job["folder"]), job["blobs"], job["count"]
    rehearse(peer, folder.parent)
    if job["part"] == "probe":
        return probe(job["contender"])
    if job["part"] == "damage":
        return damage(peer, folder, blobs, count)
    if job["part"] == "save":
        return save(peer, folder, blobs, count)
    if job["part"] == "one":
        return load_one(peer, folder, blobs, count)
    return load(peer, folder, blobs, count, cold=job["part"] == "cold")


def main() -> None:
    # Libraries print what they like on stdout. The answer keeps it for itself.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        result = work(json.loads(sys.argv[1]))
    except BaseException as error:
        result = {"error": describe(error)}
    json.dump(result, answer)
    answer.close()
    # What is mapped, or still held by a library's threads, has no say in how this ends.
    os._exit(0)


if __name__ == "__main__":
    main()
