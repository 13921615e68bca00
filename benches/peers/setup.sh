#!/bin/sh
# Makes the virtual environment that run.py runs in, from requirements.txt. Run again, it installs only what has changed.
# With torch that is a download of about 2.3 GB (4.5 GB installed), most of it CUDA libraries that torch cannot be imported without.
# Usage: setup.sh [--without-torch]
#   CKPT_PEERS_VENV   the folder, if it is not target/peers-venv
#   PYTHON3           a Python of 3.11 or newer, if it is not `python3`
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${CKPT_PEERS_VENV:-$here/../../target/peers-venv}
python3=${PYTHON3:-python3}
case "$#:${1:-}" in
    0:) torch=yes ;;
    1:--without-torch) torch=no ;;
    *) echo "usage: setup.sh [--without-torch]" >&2; exit 2 ;;
esac

"$python3" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "set PYTHON3 to a Python of 3.11 or newer" >&2; exit 1; }
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
if ! "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "making the environment $folder"
    "$python3" -m venv "$folder"
fi

# What was installed last, so that a second run costs nothing. Written only after everything went well.
wanted=$folder/wanted.txt
installed=$folder/installed.txt
if [ "$torch" = yes ]; then
    cp "$here/requirements.txt" "$wanted"
else
    sed '/^# torch:/,$d' "$here/requirements.txt" > "$wanted"
fi
if cmp -s "$wanted" "$installed"; then
    echo "nothing to install: $folder has what requirements.txt lists"
else
    if [ "$torch" = yes ]; then
        echo "installing safetensors, lmdb, rocksdict, tensorstore, numpy and torch: a download of about 2.3 GB"
    else
        echo "installing safetensors, lmdb, rocksdict, tensorstore, numpy: a download of about 70 MB"
    fi
    rm -f "$installed"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: -r "$wanted"
    cp "$wanted" "$installed"
fi
"$folder/bin/python" -c 'import lmdb, numpy, rocksdict, safetensors.numpy, tensorstore'
[ "$torch" = no ] || "$folder/bin/python" -c 'import torch.distributed.checkpoint, safetensors.torch'
echo "ready: $folder/bin/python $here/run.py --help"
