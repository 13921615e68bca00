"""Writes minidb files with real Caffe2's Save operator, for `ckpt` to read, and an .npz with the same arrays.

    caffe2_save.py FOLDER

Makes FOLDER/theirs.minidb (every dtype, several chunk sizes) and FOLDER/theirs.npz.
"""
import os
import sys

import numpy as np
from caffe2.python import core, workspace


def main(folder):
    rng = np.random.RandomState(7)
    arrays = {
        "f16": rng.randn(30, 7).astype(np.float16),
        "f32": rng.randn(1000, 3).astype(np.float32),
        "f64": rng.randn(5, 5, 5),
        "bool": rng.rand(99) > 0.5,
        "i8": rng.randint(-128, 128, 300).astype(np.int8),
        "i16": rng.randint(-(2**15), 2**15, (20, 20)).astype(np.int16),
        "i32": rng.randint(-(2**31), 2**31 - 1, 77).astype(np.int32),
        "i64": rng.randint(-(2**62), 2**62, 77),
        "u8": rng.randint(0, 256, 300).astype(np.uint8),
        "u16": rng.randint(0, 2**16, 300).astype(np.uint16),
        "gpu_0/scalar": np.array(1.5, np.float32),
        "empty": np.zeros((0, 4), np.float32),
    }
    workspace.ResetWorkspace()
    for name, array in arrays.items():
        workspace.FeedBlob(name, array)
    path = os.path.join(folder, "theirs.minidb")
    workspace.RunOperatorOnce(
        core.CreateOperator("Save", list(arrays), [], db=path, db_type="minidb", absolute_path=1, chunk_size=64)
    )
    np.savez(os.path.join(folder, "theirs.npz"), **arrays)
    print(f"wrote {len(arrays)} arrays to {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
