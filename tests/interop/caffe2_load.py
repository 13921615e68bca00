"""Loads a minidb file with real Caffe2 and compares it with what an .npz export of the same db says.

    caffe2_load.py FILE.minidb EXPORT.npz

The export is made by `ckpt export` from a store of ours, so the two ways out of one checkpoint meet here: ours, and Caffe2's Load
operator. Blobs that are not tensors are only counted: Caffe2's Python cannot look into most of them.
"""
import sys

import numpy as np
from caffe2.python import core, workspace


def load_all(path):
    """All blobs of a minidb file, by Caffe2's own operator."""
    workspace.ResetWorkspace()
    workspace.RunOperatorOnce(
        core.CreateOperator("Load", [], [], db=path, db_type="minidb", absolute_path=1, load_all=1)
    )
    return {name: workspace.FetchBlob(name) for name in workspace.Blobs()}


def same(theirs, ours):
    if theirs.dtype == object:  # strings
        theirs = np.vectorize(bytes, otypes=[object])(theirs) if theirs.size else theirs
        ours = np.vectorize(lambda s: s.encode() if isinstance(s, str) else bytes(s), otypes=[object])(ours) if ours.size else ours
        return theirs.shape == ours.shape and (theirs == ours).all()
    return theirs.dtype == ours.dtype and theirs.shape == ours.shape and theirs.tobytes() == ours.tobytes()


def main(path, export):
    loaded = load_all(path)
    exported = np.load(export)
    equal = wrong = 0
    for name in exported.files:
        if name.endswith((".scale", ".zero_point")) or not isinstance(loaded.get(name), np.ndarray):
            continue
        if same(loaded[name], exported[name]):
            equal += 1
        else:
            wrong += 1
            print("differs:", name, loaded[name].dtype, loaded[name].shape, exported[name].dtype, exported[name].shape)
    arrays = [name for name, blob in loaded.items() if isinstance(blob, np.ndarray)]
    missing = sorted(set(arrays) - set(exported.files))
    print(f"{path}: Caffe2 loads {len(loaded)} blobs; {equal} tensors equal, {wrong} differ, not in the export: {missing}")
    return 1 if wrong or missing or not equal else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
