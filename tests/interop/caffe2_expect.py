"""Says what real Caffe2 loads from a minidb file, as JSON that caffe2_load.py and others compare with.

    caffe2_expect.py FILE.minidb OUT.json

    {"blobs": {"w":    {"dtype": "f32", "shape": [2, 3], "sha256": "... of the little-endian row-major bytes"},
               "s":    {"dtype": "string", "shape": [2], "values_hex": ["61", ""]},
               "meta": {"kind": "bytes", "type": "std::string", "hex": "00ff"},
               "c":    {"kind": "bytes", "type": "std::unique_ptr<Counter<int64_t>>"}}}

Blobs of other C++ types have a type only: Caffe2's Python cannot look into most of them.
"""
import hashlib
import json
import sys

import numpy as np
from caffe2.proto import caffe2_pb2
from caffe2.python import core, workspace

DTYPES = {
    "bool": "bool", "uint8": "u8", "uint16": "u16", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "float16": "f16", "float32": "f32", "float64": "f64",
}


def load_all(path):
    """Loads all blobs of a minidb file with Caffe2's own operator into a workspace with nothing else in it; gives their names."""
    workspace.ResetWorkspace()
    workspace.RunOperatorOnce(
        core.CreateOperator("Load", [], [], db=path, db_type="minidb", absolute_path=1, load_all=1)
    )
    return sorted(workspace.Blobs())


def fetch(name):
    """The array of a tensor, the bytes of a std::string, or the type's name, a str, of anything else."""
    try:
        value = workspace.FetchBlob(name)
    except TypeError:  # Int8TensorCPU
        value = None
    if isinstance(value, np.ndarray):
        return value
    # FetchBlob gives bytes for a std::string, and bytes as well, a sentence about the class, for what Python has no form of.
    proto = caffe2_pb2.BlobProto()
    proto.ParseFromString(workspace.SerializeBlob(name))
    return value if proto.type == "std::string" else proto.type


def describe(value):
    if isinstance(value, str):
        return {"kind": "bytes", "type": value}
    if isinstance(value, bytes):
        return {"kind": "bytes", "type": "std::string", "hex": value.hex()}
    shape = list(value.shape)
    if value.dtype == object:
        return {"dtype": "string", "shape": shape, "values_hex": [bytes(each).hex() for each in value.ravel()]}
    # Little-endian on every machine that has this Caffe2.
    return {"dtype": DTYPES[value.dtype.name], "shape": shape, "sha256": hashlib.sha256(value.tobytes()).hexdigest()}


def main(path, out):
    blobs = {name: describe(fetch(name)) for name in load_all(path)}
    with open(out, "w") as file:
        json.dump({"blobs": blobs}, file, indent=1)
    print(f"{path}: {len(blobs)} blobs")


if __name__ == "__main__":
    main(*sys.argv[1:])
