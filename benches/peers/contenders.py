"""The formats that ckpt is compared with, each behind the same three calls: save, load, load_one.

A library is imported when its contender is made, so that one that is missing costs only its own rows.
Every `save` but the one labelled otherwise returns when the bytes are on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Tensors = dict[str, np.ndarray]


class Peer:
    """What was loaded may be a view into a mapping: it lives as long as its peer does."""

    def save(self, folder: Path, tensors: Tensors) -> None:
        raise NotImplementedError

    def load(self, folder: Path, names: list[str], count: int) -> Tensors:
        """All of them. `count` is the number of elements of each: some peers load into memory that they are given."""
        raise NotImplementedError

    def load_one(self, folder: Path, name: str, names: list[str], count: int) -> np.ndarray:
        """Only the one, by the cheapest way that the library offers."""
        return self.load(folder, [name], count)[name]

    def close(self) -> None:
        """Ends what loading had to leave open."""


def sync_path(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(folder: Path) -> None:
    """Every file, then the folder that names it, from the bottom up: a synced file without its name is lost all the same."""
    for parent, _, files in os.walk(folder, topdown=False):
        for file in files:
            sync_path(Path(parent, file))
        sync_path(Path(parent))


def from_bytes(value: Any) -> np.ndarray:
    return np.frombuffer(value, dtype=np.float32)


class Plain(Peer):
    """No format: the bytes in a row. What any buffered format could reach at best."""

    def save(self, folder: Path, tensors: Tensors) -> None:
        with open(folder / "data", "wb", buffering=0) as file:
            for tensor in tensors.values():
                write_all(file.fileno(), memoryview(tensor).cast("B"))
            os.fdatasync(file.fileno())
        sync_path(folder)

    def load(self, folder: Path, names: list[str], count: int) -> Tensors:
        with open(folder / "data", "rb", buffering=0) as file:
            return {name: read_array(file.fileno(), count) for name in names}

    def load_one(self, folder: Path, name: str, names: list[str], count: int) -> np.ndarray:
        with open(folder / "data", "rb", buffering=0) as file:
            file.seek(names.index(name) * count * 4)
            return read_array(file.fileno(), count)


def write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data):]


def read_array(fd: int, count: int) -> np.ndarray:
    array = np.empty(count, dtype=np.float32)
    rest = memoryview(array).cast("B")
    while rest:
        got = os.readv(fd, [rest])
        if got == 0:
            raise EOFError("the file ends early")
        rest = rest[got:]
    return array


class SafetensorsNumpy(Peer):
    def __init__(self, sync: bool = True) -> None:
        import safetensors
        import safetensors.numpy

        self.open, self.numpy, self.sync = safetensors.safe_open, safetensors.numpy, sync

    def save(self, folder: Path, tensors: Tensors) -> None:
        self.numpy.save_file(tensors, folder / "data.safetensors")
        if self.sync:
            sync_tree(folder)

    def load(self, folder: Path, names: list[str], count: int) -> Tensors:
        return self.numpy.load_file(folder / "data.safetensors")

    def load_one(self, folder: Path, name: str, names: list[str], count: int) -> np.ndarray:
        with self.open(folder / "data.safetensors", framework="np") as file:
            return file.get_tensor(name)


class SafetensorsTorch(Peer):
    def __init__(self) -> None:
        import safetensors
        import safetensors.torch
        import torch

        self.open, self.safetensors, self.torch = safetensors.safe_open, safetensors.torch, torch

    def save(self, folder: Path, tensors: Tensors) -> None:
        self.safetensors.save_file(to_torch(self.torch, tensors), folder / "data.safetensors")
        sync_tree(folder)

    def load(self, folder: Path, names: list[str], count: int) -> Tensors:
        return from_torch(self.safetensors.load_file(folder / "data.safetensors"))

    def load_one(self, folder: Path, name: str, names: list[str], count: int) -> np.ndarray:
        with self.open(folder / "data.safetensors", framework="pt") as file:
            return file.get_tensor(name).numpy()


def to_torch(torch: Any, tensors: Tensors) -> dict[str, Any]:
    return {name: torch.from_numpy(tensor) for name, tensor in tensors.items()}


def from_torch(tensors: dict[str, Any]) -> Tensors:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


class NumpySavez(Peer):
    def save(self, folder: Path, tensors: Tensors) -> None:
        np.savez(folder / "data.npz", **tensors)
        sync_tree(folder)

    def load(self, folder: Path, names: list[str], count: int) -> Tensors:
        with np.load(folder / "data.npz") as file:
            return {name: file[name] for name in names}


class TorchSave(Peer):
    def __init__(self, mapped: bool = False) -> None:
        import torch

        self.torch, self.mapped = torch, mapped

    def save(self, folder: Path, tensors: Tensors) -> None:
        self.torch.save(to_torch(self.torch, tensors), folder / "data.pt")
        sync_tree(folder)

    def load(self, folder: Path, names: list[str], count: int) -> Tensors:
        # torch.load has no way to ask for one of them: it gives all, and unless mapped it has then read all.
        loaded = self.torch.load(folder / "data.pt", mmap=self.mapped)
        return {name: loaded[name].numpy() for name in names}


class TorchDistributed(Peer):
    def __init__(self) -> None:
        import torch
        import torch.distributed.checkpoint as checkpoint

        self.torch, self.checkpoint = torch, checkpoint

    def save(self, folder: Path, tensors: Tensors) -> None:
        writer = self.checkpoint.FileSystemWriter(folder / "data", sync_files=True)
        self.checkpoint.save(to_torch(self.torch, tensors), storage_writer=writer, no_dist=True)
        sync_tree(folder)

    def load(self, folder: Path, names: list[str], count: int) -> Tensors:
        # It loads into tensors that it is given. They are made inside the clock, as everyone else makes theirs.
        tensors = {name: self.torch.empty(count, dtype=self.torch.float32) for name in names}
        self.checkpoint.load(tensors, checkpoint_id=folder / "data", no_dist=True)
        return from_torch(tensors)


class Tensorstore(Peer):
    """One zarr3 array a tensor, each one chunk, no compression; all requests are made before the first is waited for.

    The `file` store syncs each file, and the folder it is in, before it reports a write as done; that is its default.
    """

    def __init__(self, ocdbt: bool) -> None:
        import tensorstore

        self.tensorstore, self.ocdbt = tensorstore, ocdbt

    def spec(self, folder: Path, name: str) -> dict[str, Any]:
        if self.ocdbt:
            base = {"driver": "file", "path": f"{folder}/data/"}
            return {"driver": "zarr3", "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"}}
        return {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/{name}/"}}

    def save(self, folder: Path, tensors: Tensors) -> None:
        context = self.tensorstore.Context({"file_io_sync": True})
        # One commit for all tensors instead of several: a little faster for OCDBT, and whole or absent after a crash.
        transaction = self.tensorstore.Transaction() if self.ocdbt else None
        stores = [
            self.tensorstore.open(
                {**self.spec(folder, name), "metadata": zarr_metadata(tensor.size)},
                create=True, context=context, transaction=transaction,
            )
            for name, tensor in tensors.items()
        ]
        writes = [
            store.result().write(tensor, can_reference_source_data_indefinitely=True)
            for store, tensor in zip(stores, tensors.values(), strict=True)
        ]
        if transaction is not None:
            for write in writes:
                write.copy.result()
            transaction.commit_sync()
        else:
            for write in writes:
                write.result()
        # The one folder that it did not have to make itself, and so does not sync.
        sync_path(folder)

    def load(self, folder: Path, names: list[str], count: int) -> Tensors:
        context = self.tensorstore.Context()
        stores = [self.tensorstore.open(self.spec(folder, name), open=True, context=context) for name in names]
        reads = [store.result().read() for store in stores]
        return {name: read.result() for name, read in zip(names, reads, strict=True)}


def zarr_metadata(count: int) -> dict[str, Any]:
    return {
        "shape": [count],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [count]}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }


class PyLmdb(Peer):
    """One value a tensor, in one transaction; its commit syncs."""

    def __init__(self, mapped: bool = False) -> None:
        import lmdb

        self.lmdb, self.mapped = lmdb, mapped
        self.kept: list[Any] = []

    def save(self, folder: Path, tensors: Tensors) -> None:
        # The map is only an address range: it takes no memory and no disk beyond what is written.
        map_size = 2 * sum(tensor.nbytes for tensor in tensors.values()) + (64 << 20)
        with self.lmdb.open(str(folder / "data"), map_size=map_size) as env, env.begin(write=True) as txn:
            for name, tensor in tensors.items():
                txn.put(name.encode(), tensor, append=True)
        # LMDB syncs its file, but not the folders that were just made for it.
        sync_path(folder / "data")
        sync_path(folder)

    def load(self, folder: Path, names: list[str], count: int) -> Tensors:
        env = self.lmdb.open(str(folder / "data"), readonly=True, lock=False)
        txn = env.begin(buffers=self.mapped)
        if self.mapped:
            # The views are good only while the transaction is open.
            self.kept += [env, txn]
            return {name: from_bytes(txn.get(name.encode())) for name in names}
        with env, txn:
            return {name: from_bytes(txn.get(name.encode())) for name in names}

    def close(self) -> None:
        while self.kept:
            self.kept.pop().__exit__(None, None, None)


class Rocksdict(Peer):
    """One value a tensor, no write-ahead log, then a flush, which syncs the tables; the rest is synced after it.

    No compression and no compaction: both would only slow it down.
    """

    def __init__(self) -> None:
        import rocksdict

        self.rocksdict = rocksdict

    def options(self) -> Any:
        options = self.rocksdict.Options(raw_mode=True)
        options.set_compression_type(self.rocksdict.DBCompressionType.none())
        options.set_disable_auto_compactions(True)
        return options

    def save(self, folder: Path, tensors: Tensors) -> None:
        db = self.rocksdict.Rdict(str(folder / "data"), self.options())
        write = self.rocksdict.WriteOptions()
        write.disable_wal = True
        db.set_write_options(write)
        for name, tensor in tensors.items():
            # It takes `bytes` and nothing else, so a copy of each value is part of what saving with it costs.
            db[name.encode()] = tensor.tobytes()
        db.flush()
        db.close()
        sync_tree(folder)

    def load(self, folder: Path, names: list[str], count: int) -> Tensors:
        access = self.rocksdict.AccessType.read_only()
        db = self.rocksdict.Rdict(str(folder / "data"), self.options(), access_type=access)
        loaded = {name: from_bytes(db[name.encode()]) for name in names}
        db.close()
        return loaded


@dataclass(frozen=True)
class Contender:
    label: str
    make: Callable[[], Peer]
    packages: tuple[str, ...] = ()
    durable: bool = True
    # A row that differs from another only in how it loads (or saves) leaves out what would be measured twice.
    shows_save: bool = True
    shows_load: bool = True


CONTENDERS: dict[str, Contender] = {
    "plain": Contender("plain write + fdatasync, read", Plain, ("numpy",)),
    "safetensors-as-shipped": Contender(
        "safetensors save_file as shipped (not durable)", lambda: SafetensorsNumpy(sync=False), ("safetensors",),
        durable=False, shows_load=False,
    ),
    "safetensors": Contender("safetensors (numpy) + fsync", SafetensorsNumpy, ("safetensors",)),
    "safetensors-torch": Contender("safetensors (torch) + fsync", SafetensorsTorch, ("safetensors", "torch")),
    "numpy": Contender("numpy savez + fsync", NumpySavez, ("numpy",)),
    "torch": Contender("torch.save + fsync, torch.load", TorchSave, ("torch",)),
    "torch-mmap": Contender("torch.load mmap=True", lambda: TorchSave(mapped=True), ("torch",), shows_save=False),
    "torch-dcp": Contender("torch.distributed.checkpoint + fsync", TorchDistributed, ("torch",)),
    "zarr3": Contender("tensorstore zarr3", lambda: Tensorstore(ocdbt=False), ("tensorstore",)),
    "ocdbt": Contender("tensorstore zarr3 over OCDBT", lambda: Tensorstore(ocdbt=True), ("tensorstore",)),
    "lmdb": Contender("py-lmdb", PyLmdb, ("lmdb",)),
    "lmdb-mapped": Contender("py-lmdb buffers=True", lambda: PyLmdb(mapped=True), ("lmdb",), shows_save=False),
    "rocksdict": Contender("rocksdict, flush + fsync", Rocksdict, ("rocksdict",)),
}


def choose(keys: Iterable[str]) -> dict[str, Contender]:
    """Those of the keys, in the order of the list above."""
    wanted = set(keys)
    unknown = wanted - CONTENDERS.keys()
    if unknown:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(CONTENDERS)}")
    return {key: contender for key, contender in CONTENDERS.items() if key in wanted}
