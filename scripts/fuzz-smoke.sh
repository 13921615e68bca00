#!/bin/sh
# Runs every fuzz target for some seconds, from the fixtures on. Ends with an error if one of them found something.
# Usage: fuzz-smoke.sh [SECONDS for each target, 30]
# Needs cargo-fuzz (cargo install cargo-fuzz) and a nightly toolchain (rustup toolchain install nightly).
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-30}
cargo +nightly fuzz --version >/dev/null 2>&1 || {
    echo "fuzz-smoke: needs cargo-fuzz and a nightly toolchain: cargo install cargo-fuzz; rustup toolchain install nightly" >&2
    exit 1
}
seed() { # target, files
    mkdir -p "fuzz/corpus/$1"
    target=$1
    shift
    for file in "$@"; do
        if [ -f "$file" ]; then cp "$file" "fuzz/corpus/$target/$(echo "$file" | tr / _)"; fi
    done
}
caffe2=tests/fixtures/caffe2
# shellcheck disable=SC2086
seed minidb $caffe2/golden/*.minidb $caffe2/golden/job/* $caffe2/damaged/*.minidb $caffe2/real/0*.minidb $caffe2/real/1*.minidb
seed unpickle runner/src/formats/pickle/fixtures/*.pkl
seed leveldb_log $caffe2/leveldb/*/*.log
# A record is the first one of a file, behind the byte that chooses its key.
mkdir -p fuzz/corpus/blob_proto
for file in $caffe2/golden/*.minidb $caffe2/real/*.minidb; do
    key=$(od -An -tu4 -N4 "$file" | tr -d ' ')
    value=$(od -An -tu4 -j4 -N4 "$file" | tr -d ' ')
    name=$(basename "$file")
    { printf '\0'; tail -c +$((9 + key)) "$file" | head -c "$value"; } > "fuzz/corpus/blob_proto/$name"
done
for target in minidb blob_proto init_net unpickle manifest leveldb_log; do
    echo "== $target, $seconds s"
    # What a worker thread holds while it ends looks like a leak now and then.
    cargo +nightly fuzz run --release --jobs 1 "$target" -- \
        -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=1024 -timeout=10 -detect_leaks=0 -print_final_stats=1 2>&1 |
        grep -E 'ERROR|panicked|stat::number_of_executed|SUMMARY|Test unit written|error(\[|:)' || true
    if find "fuzz/artifacts/$target" -type f 2>/dev/null | grep -q .; then
        echo "found: $(find "fuzz/artifacts/$target" -type f)" >&2
        exit 1
    fi
done
rm -rf /dev/shm/ckpt-fuzz-*
