#!/bin/sh
# Makes the two Python environments that the scripts here run in:
#   <folder>/caffe2   real Caffe2, as the last wheel that has it (torch 1.10.2, 882 MB, needs CPython 3.9), CPU only
#   <folder>/stores   py-lmdb, plyvel (LevelDB), rocksdict (RocksDB), numpy, safetensors
# Usage: setup.sh [FOLDER]     PYTHON39 names the CPython 3.9, if it is not `python3.9`.
set -eu
folder=${1:-target/interop}
python39=${PYTHON39:-python3.9}
mkdir -p "$folder"
if [ ! -x "$folder/caffe2/bin/python" ]; then
    "$python39" -m venv "$folder/caffe2"
fi
if ! "$folder/caffe2/bin/python" -c 'from caffe2.python import workspace' 2>/dev/null; then
    echo "downloading torch 1.10.2 (882 MB)"
    "$folder/caffe2/bin/pip" install --quiet --no-deps --only-binary=:all: torch==1.10.2
    "$folder/caffe2/bin/pip" install --quiet 'numpy<1.24' 'protobuf<3.21' future six typing_extensions pyyaml
fi
if [ ! -x "$folder/stores/bin/python" ]; then
    python3 -m venv "$folder/stores"
    "$folder/stores/bin/pip" install --quiet lmdb plyvel rocksdict numpy safetensors
fi
echo "ready: $folder/caffe2/bin/python, $folder/stores/bin/python"
