"""Loads a minidb file with real Caffe2 and compares it with what we say is in it.

    caffe2_load.py FILE.minidb EXPECTED.json     every blob, in the form of caffe2_expect.py
    caffe2_load.py FILE.minidb EXPORT.npz        the tensors, with an export of the same db

The export is made by `ckpt export` from a store of ours, so the two ways out of one checkpoint meet here: ours, and Caffe2's Load
operator. With JSON a blob too many is a difference too; a blob that is neither a tensor nor a std::string need only be there.
"""
import json
import sys
from collections import Counter

import numpy as np

sys.dont_write_bytecode = True  # no __pycache__ beside the scripts
from caffe2_expect import describe, fetch, load_all


def same(theirs, ours):
    if theirs.dtype == object:  # strings
        theirs = np.vectorize(bytes, otypes=[object])(theirs) if theirs.size else theirs
        ours = np.vectorize(lambda s: s.encode() if isinstance(s, str) else bytes(s), otypes=[object])(ours) if ours.size else ours
        return theirs.shape == ours.shape and (theirs == ours).all()
    return theirs.dtype == ours.dtype and theirs.shape == ours.shape and theirs.tobytes() == ours.tobytes()


def with_export(path, export):
    loaded = {name: fetch(name) for name in load_all(path)}
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


def verdict(wanted, found):
    """What is to be said of one blob: "equal", "present" or what is wrong, and details."""
    if found is None:
        return "MISSING", ""
    if wanted is None:
        return "NOT EXPECTED", ""
    if wanted.get("kind") == "bytes" and wanted["type"] != "std::string":
        return "present", wanted["type"]
    keys = ("type", "dtype", "shape", "sha256", "values_hex", "hex")
    differs = [f"{key} {found.get(key)} for {wanted.get(key)}" for key in keys if wanted.get(key) != found.get(key)]
    if differs:
        return "DIFFERS", ", ".join(differs)
    return "equal", found.get("dtype") or found["type"]


def with_json(path, expected):
    with open(expected) as file:
        wanted = json.load(file)["blobs"]
    found = {name: describe(fetch(name)) for name in load_all(path)}
    counts = Counter()
    for name in sorted(set(wanted) | set(found)):
        said, details = verdict(wanted.get(name), found.get(name))
        counts[said] += 1
        print(f"{name}: {said} {details}".rstrip())
    equal, present = counts["equal"], counts["present"]
    wrong = sum(counts.values()) - equal - present
    print(f"{equal} blobs equal" + (f", {present} only present" if present else "") + (f", {wrong} WRONG" if wrong else ""))
    return 1 if wrong else 0


def main(path, expected):
    return (with_json if expected.endswith(".json") else with_export)(path, expected)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
