#!/bin/sh
# Everything here, one after the other. setup.sh and `make build` first.
# Usage: run.sh [FOLDER of setup.sh] ; CKPT and CAFFE2_JOB name the programs, if they are not in target/release.
set -eu
cd "$(dirname "$0")/../.."
folder=${1:-target/interop}
ckpt=${CKPT:-target/release/ckpt}
job=${CAFFE2_JOB:-target/release/examples/caffe2_job}
here=tests/interop
fixtures=tests/fixtures/caffe2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
caffe2() { "$folder/caffe2/bin/python" "$@" 2>"$work/log" || { cat "$work/log"; exit 1; }; }
stores() { "$folder/stores/bin/python" "$@"; }

echo "== Caffe2 writes, ckpt reads"
caffe2 $here/caffe2_save.py "$work"
"$ckpt" verify "minidb:$work/theirs.minidb"
"$ckpt" export -q "minidb:$work/theirs.minidb" "$work/ours.npz"
stores - "$work/theirs.npz" "$work/ours.npz" <<'PY'
import sys, numpy
theirs, ours = (numpy.load(path) for path in sys.argv[1:])
assert sorted(theirs.files) == sorted(ours.files)
for name in theirs.files:
    a, b = theirs[name], ours[name]
    assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), name
print(f"{len(theirs.files)} arrays equal")
PY

echo "== ckpt writes, Caffe2 reads"
"$ckpt" import -q "$work/theirs.npz" "minidb:$work/new" --node n --epoch 1
caffe2 $here/caffe2_load.py "$work/new/n.1" "$work/theirs.npz"
for file in golden/all_dtypes golden/chunk32 real/01_dtypes real/07_chunked real/11_bytes_as_holder; do
    # Through a native checkpoint and back.
    rm -rf "$work/native" "$work/back"
    "$ckpt" copy -q "minidb:$fixtures/$file.minidb" "files:$work/native" --layout native
    "$ckpt" copy -q "files:$work/native" "minidb:$work/back"
    back=$(ls "$work"/back/*.0)
    "$ckpt" export -q "minidb:$back" "$work/back.npz"
    caffe2 $here/caffe2_load.py "$back" "$work/back.npz"
    # And with the original, both as Caffe2 sees them.
    caffe2 $here/caffe2_expect.py "$fixtures/$file.minidb" "$work/expected.json"
    caffe2 $here/caffe2_load.py "$back" "$work/expected.json" | tail -1
done

echo "== other libraries read our LMDB, LevelDB and RocksDB"
for source in "$work/new/n.1" $fixtures/golden/chunk32.minidb $fixtures/real/07_chunked.minidb; do
    rm -rf "$work/copies"
    for db_type in lmdb leveldb rocksdb; do
        "$ckpt" copy -q "minidb:$source" "$db_type:$work/copies/$db_type" --layout caffe2
        eval "$db_type=$(ls -d "$work/copies/$db_type"/*)"
    done
    stores $here/stores_read.py "$source" --lmdb "$lmdb" --leveldb "$leveldb" --rocksdb "$rocksdb"
done

echo "== a job goes from Caffe2 to ckpt and back"
for epoch in 1 2 3; do
    rm -rf "$work/job" && mkdir "$work/job"
    for number in 0 1 2; do
        for each in $(seq 0 $epoch); do cp "$fixtures/golden/job/trainer_$number.$each" "$work/job"; done
    done
    "$job" "$work/job" $epoch
    # The last of Caffe2's own, the first of ours, and the one before the end.
    for from in $epoch $((epoch + 1)) 3; do
        if [ "$from" -lt 4 ]; then caffe2 $here/caffe2_resume.py "$work/job" "$from"; fi
    done
done
