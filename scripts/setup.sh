#!/bin/sh
# Finds or installs what the build needs and writes the environment for it to .setup/env.
#
# Needed: cargo, a C++ compiler (RocksDB), libclang (the bindings of RocksDB are made by bindgen), rustfmt and clippy (make test).
# As root, missing Debian packages are installed. Otherwise libclang comes from PyPI into .setup/, and whatever else is missing is
# named. Safe to run again; does nothing where nothing is missing.
set -eu

cd "$(dirname "$0")/.."
mkdir -p .setup
env_file=.setup/env

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
is_root() { [ "$(id -u)" = 0 ]; }

# apt_install PACKAGE...: installs Debian packages, or says that it cannot.
apt_install() {
    is_root && have apt-get || return 1
    say "installing $* with apt-get"
    if [ -z "${apt_updated:-}" ]; then
        apt-get update -qq || return 1
        apt_updated=1
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# The directory of a libclang that bindgen can load, if there is one.
find_libclang() {
    for dir in "${LIBCLANG_PATH:-}" .setup/libclang /usr/lib/llvm-*/lib /usr/lib/*-linux-gnu /usr/lib64 /usr/lib /usr/local/lib; do
        [ -n "$dir" ] && [ -d "$dir" ] || continue
        for file in "$dir"/libclang.so "$dir"/libclang.so.* "$dir"/libclang-*.so*; do
            if [ -e "$file" ]; then
                (cd "$dir" && pwd)
                return 0
            fi
        done
    done
    return 1
}

# libclang from PyPI, which needs no root.
wheel_libclang() {
    have python3 || return 1
    say "fetching libclang from PyPI into .setup/libclang"
    rm -rf .setup/wheel
    python3 -m pip download --quiet --no-deps --only-binary :all: --dest .setup/wheel libclang || return 1
    python3 - <<'PY' || return 1
import glob, os, zipfile
wheel = zipfile.ZipFile(glob.glob(".setup/wheel/*.whl")[0])
os.makedirs(".setup/libclang", exist_ok=True)
for member in wheel.namelist():
    if os.path.basename(member).startswith("libclang"):
        with open(os.path.join(".setup/libclang", os.path.basename(member)), "wb") as out:
            out.write(wheel.read(member))
PY
    rm -rf .setup/wheel
}

if ! have cargo; then
    if [ -x "$HOME/.cargo/bin/cargo" ]; then
        PATH="$HOME/.cargo/bin:$PATH"
    else
        fail "cargo is missing: install Rust with rustup (https://rustup.rs), then run this again"
    fi
fi
cargo --version >/dev/null 2>&1 || fail "cargo does not run: rustup has no toolchain; run 'rustup default stable', then this again"

have cc || have gcc || apt_install gcc || fail "a C compiler is missing: install gcc"
have c++ || have g++ || apt_install g++ || fail "a C++ compiler is missing: install g++ (Debian: apt-get install g++)"

libclang=$(find_libclang) || {
    apt_install libclang-dev || wheel_libclang \
        || fail "libclang is missing: install it (Debian: apt-get install libclang-dev), or python3 with pip"
    libclang=$(find_libclang) || fail "libclang was installed and is not found: set LIBCLANG_PATH to its directory"
}

{
    printf 'export PATH="%s"\n' "$PATH"
    printf 'export LIBCLANG_PATH="%s"\n' "$libclang"
    # A libclang without its own headers (the one from PyPI, or Debian's library package alone) is given the compiler's.
    if ! ls "$libclang"/clang/*/include/stddef.h "$libclang"/../lib/clang/*/include/stddef.h \
        /usr/lib/llvm-*/lib/clang/*/include/stddef.h >/dev/null 2>&1 || [ "$libclang" = "$PWD/.setup/libclang" ]; then
        printf 'export BINDGEN_EXTRA_CLANG_ARGS="-I%s"\n' "$(gcc -print-file-name=include)"
    fi
} >"$env_file.new"
# Untouched if nothing changed, so that cargo sees the same environment.
if cmp -s "$env_file.new" "$env_file"; then rm "$env_file.new"; else mv "$env_file.new" "$env_file"; fi

if [ "${1:-}" = lint ]; then
    for tool in rustfmt clippy; do
        cargo "$(echo $tool | sed 's/rustfmt/fmt/')" --version >/dev/null 2>&1 && continue
        have rustup || fail "$tool is missing: install it"
        say "adding $tool with rustup"
        rustup component add "$tool" || fail "$tool is missing: run 'rustup component add $tool'"
    done
fi
say "ready (libclang in $libclang)"
