#!/bin/sh
# Makes the two Python environments that the scripts here run in:
#   <folder>/caffe2   real Caffe2, as the last wheel that has it (torch 1.10.2, 882 MB, needs CPython 3.9), CPU only
#   <folder>/stores   py-lmdb, plyvel (LevelDB), rocksdict (RocksDB), numpy, safetensors
# What is already there is not downloaded again.
# Usage: setup.sh [FOLDER]     PYTHON39 names the CPython 3.9, if it is not `python3.9`; PYTHON3 the other, if it is not `python3`.
set -eu
folder=${1:-target/interop}
python39=${PYTHON39:-python3.9}
python3=${PYTHON3:-python3}
mkdir -p "$folder"
if ! "$folder/caffe2/bin/python" -c 'from caffe2.python import core, workspace' 2>/dev/null; then
    "$python39" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 9))' || { echo "set PYTHON39 to a CPython 3.9" >&2; exit 1; }
    echo "downloading torch 1.10.2 (882 MB; 1.8 GB installed), numpy, protobuf, future, six, typing_extensions, pyyaml"
    "$python39" -m venv "$folder/caffe2"
    "$folder/caffe2/bin/pip" install --quiet --no-deps --only-binary=:all: torch==1.10.2
    "$folder/caffe2/bin/pip" install --quiet 'numpy<1.24' 'protobuf<3.21' future six typing_extensions pyyaml
    "$folder/caffe2/bin/python" -c 'from caffe2.python import core, workspace'
fi
if ! "$folder/stores/bin/python" -c 'import lmdb, numpy, plyvel, rocksdict, safetensors' 2>/dev/null; then
    echo "downloading lmdb, plyvel, rocksdict, numpy, safetensors"
    "$python3" -m venv "$folder/stores"
    "$folder/stores/bin/pip" install --quiet lmdb plyvel rocksdict numpy safetensors
    "$folder/stores/bin/python" -c 'import lmdb, numpy, plyvel, rocksdict, safetensors'
fi
echo "ready: $folder/caffe2/bin/python, $folder/stores/bin/python"
