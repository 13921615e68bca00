#!/bin/sh
# Runs every fuzz target for some seconds, from the fixtures on. Ends with an error if one of them found something.
# Usage: fuzz-smoke.sh [SECONDS for each target, 30] [TARGET...]
# Needs cargo-fuzz (cargo install cargo-fuzz --locked) and a nightly toolchain (rustup toolchain install nightly).
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-30}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- minidb blob_proto init_net unpickle manifest leveldb_log
# Both, since one may be there without the other.
if ! cargo +nightly --version >/dev/null 2>&1 || ! cargo fuzz --version >/dev/null 2>&1; then
    echo "fuzz-smoke: needs cargo-fuzz and a nightly toolchain: cargo install cargo-fuzz --locked; rustup toolchain install nightly" >&2
    exit 1
fi

corpus=fuzz/corpus
caffe2=tests/fixtures/caffe2
mkdir -p $corpus/minidb $corpus/blob_proto $corpus/init_net $corpus/unpickle $corpus/manifest $corpus/leveldb_log
for file in "$caffe2"/golden/*.minidb "$caffe2"/golden/job/* "$caffe2"/real/*.minidb "$caffe2"/damaged/*.minidb; do
    cp "$file" "$corpus/minidb/$(echo "$file" | tr / _)"
done
cp runner/src/formats/pickle/fixtures/*.pkl $corpus/unpickle
number() { # file, offset: the 32 bits there
    od -An -tu4 -j"$2" -N4 "$1" | tr -d ' '
}
# Of each file the first record, behind the byte that chooses its key.
for file in "$caffe2"/golden/*.minidb "$caffe2"/real/*.minidb "$caffe2"/damaged/*.minidb; do
    [ "$(wc -c <"$file")" -gt 8 ] || continue
    key=$(number "$file" 0)
    value=$(number "$file" 4)
    if [ "$key" -gt 1000 ] || [ "$value" -gt 60000 ]; then continue; fi
    for choice in 0 1 3; do
        { printf '%b' "\\000$choice"; tail -c +$((9 + key)) "$file" | head -c "$value"; } \
            >"$corpus/blob_proto/$choice-$(echo "$file" | tr / _)"
    done
done
# Behind the byte that chooses, a whole log; and its first record, without the header.
for file in "$caffe2"/leveldb/*/*.log; do
    name=$(echo "$file" | tr / _)
    { printf '\0'; cat "$file"; } >"$corpus/leveldb_log/log-$name"
    { printf '\1'; tail -c +8 "$file"; } >"$corpus/leveldb_log/record-$name"
done
# A pack has its manifest near its end; the body is behind 24 bytes, of which 8 say its length.
for file in tests/golden/*/golden.7; do
    at=$(grep -abo CKPTMANI "$file" | tail -n 1 | cut -d: -f1)
    tail -c +$((at + 25)) "$file" | head -c "$(number "$file" $((at + 12)))" >"$corpus/manifest/$(echo "$file" | tr / _)"
done
# Nets of one operator each.
printf '\0223\022\001w"\017GivenTensorFill*\011\012\005shape0\002*\022\012\006values-\000\000\200?-\000\000\000@' >$corpus/init_net/floats
printf '\0222\022\001w"\022GivenTensorIntFill*\013\012\005shape0\0010\002*\014\012\006values0\0070\010' >$corpus/init_net/ints
printf '\0223\022\001w"\025GivenTensorStringFill*\011\012\005shape0\001*\014\012\006values:\002xy' >$corpus/init_net/strings
printf '\022S\022\001w"\023Int8GivenTensorFill*\011\012\005shape0\002*\014\012\006values"\002ab' >$corpus/init_net/int8
printf '*\016\012\007Y_scale\025\000\000\000?*\020\012\014Y_zero_point\030\011' >>$corpus/init_net/int8
printf '\0222\022\001w"\014ConstantFill*\011\012\005shape0\003*\011\012\005dtype\030\002*\011\012\005value\030\005' >$corpus/init_net/constant

echo "== build"
for target in "$@"; do
    cargo +nightly fuzz build "$target"
done
# What the targets write goes there, in memory where the machine has such.
if [ -d /dev/shm ]; then work=$(mktemp -d /dev/shm/ckpt-fuzz.XXXXXX); else work=$(mktemp -d); fi
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
failed=
for target in "$@"; do
    echo "== $target, $seconds s"
    case $target in
        minidb | leveldb_log) words=blob_proto ;;
        manifest) words= ;;
        *) words=$target ;;
    esac
    # What a worker thread holds while it ends looks like a leak now and then: a leak that is one shows as memory that grows.
    if ! TMPDIR=$work cargo +nightly fuzz run "$target" -- -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=1024 \
        -timeout=10 -detect_leaks=0 ${words:+-dict=fuzz/dictionaries/$words.dict} -print_final_stats=1 >"$work/log" 2>&1; then
        failed="$failed $target"
        grep -E 'ERROR|panicked at|SUMMARY|Test unit written' "$work/log" || true
        tail -n 40 "$work/log"
    fi
    grep -E 'Done|number_of_executed|peak_rss' "$work/log" || true
done
if [ -n "$failed" ]; then
    echo "fuzz-smoke: found something:$failed; inputs are in fuzz/artifacts" >&2
    exit 1
fi
echo "fuzz-smoke: nothing found"
