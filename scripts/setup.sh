#!/bin/sh
# Gets this machine ready to build ckpt, saying what it does. Quick where nothing is missing.
#
#   scripts/setup.sh         what the build needs: Rust, a C++20 compiler (for RocksDB), libclang (bindgen reads RocksDB's header)
#   scripts/setup.sh lint    also rustfmt and clippy
#
# What it finds goes into .setup/env, which the Makefile reads before every cargo. Outside of this folder it does two things only:
# as root it installs missing packages with apt-get, and through rustup it adds a toolchain or components. Your default toolchain
# stays what it is. Without root, libclang comes from PyPI into .setup/. Whatever it cannot get, it names, and ends with an error.
set -eu
cd "$(dirname "$0")/.."
root=$PWD

# The wheel is pinned: its code runs while building.
wheel='libclang==18.1.1
    --hash=sha256:c533091d8a3bbf7460a00cb6c1a71da93bffe148f172c7d03b1c31fbf8aa2a0b
    --hash=sha256:54dda940a4a0491a9d1532bf071ea3ef26e6dbaf03b5000ed94dd7174e8f9592'

say() { printf 'set-up: %s\n' "$@"; }
fail() {
    printf 'set-up: %s\n' "$@" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# remember NAME VALUE: for the rest of this script, and for every cargo that the Makefile starts.
remember() {
    export "$1=$2"
    printf "export %s='%s'\n" "$1" "$(printf %s "$2" | sed "s/'/'\\\\''/g")" >>"$new"
}

# Whether the cargo that would run is new enough for Cargo.toml's rust-version.
rust_is_there() {
    minor=$(rustc --version 2>/dev/null | sed -n 's/^rustc 1\.\([0-9]*\)\..*/\1/p')
    [ "${minor:-0}" -ge "$wanted_minor" ] && cargo --version >/dev/null 2>&1
}

get_rust() {
    wanted_minor=$(sed -n 's/^rust-version = "1\.\([0-9]*\).*/\1/p' Cargo.toml)
    cargo_bin=${CARGO_HOME:-$HOME/.cargo}/bin
    rust_is_there && return
    if [ -x "$cargo_bin/cargo" ]; then
        remember PATH "$cargo_bin:$PATH"
        rust_is_there && return
    fi
    have rustup || fail "Rust 1.$wanted_minor or newer is needed. Install it from https://rustup.rs, for example with" \
        "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh" "then run this again."
    remember RUSTUP_TOOLCHAIN stable
    rust_is_there && return
    say "installs Rust's stable toolchain with rustup, since 1.$wanted_minor or newer is needed"
    rustup toolchain install stable --profile minimal --component rustfmt --component clippy \
        || fail "rustup could not install the stable toolchain; its message is above"
    rust_is_there || fail "the stable toolchain is older than Rust 1.$wanted_minor: $(rustc --version 2>&1)"
}

get_component() { # get_component NAME, the word after `cargo` that runs it
    cargo "$2" --version >/dev/null 2>&1 && return
    have rustup || fail "$1 is needed and missing; without rustup, install it as you installed Rust"
    say "adds $1 with rustup"
    rustup component add "$1" || fail "rustup could not add $1; its message is above"
}

compiler_is_there() {
    # shellcheck disable=SC2086 # CXX may hold arguments
    have cc && printf '#include <span>\nint main() {}\n' | ${CXX:-c++} -std=c++20 -x c++ -fsyntax-only - 2>/dev/null
}

# Whether the folder holds a libclang by one of the names that bindgen looks for.
holds_libclang() {
    for lib in "$1"/libclang.so "$1"/libclang.so.* "$1"/libclang-*.so "$1"/libclang-*.so.*; do
        case $lib in *-cpp.*) continue ;; esac
        [ -e "$lib" ] && return
    done
    return 1
}

# Sets `libclang` to a folder that holds one: the newest LLVM's, then whatever the loader knows, then the one from PyPI.
find_libclang() {
    if [ -n "${LIBCLANG_PATH:-}" ]; then
        libclang=$LIBCLANG_PATH
        [ -f "$libclang" ] && libclang=$(dirname "$libclang")
        holds_libclang "$libclang" || fail "LIBCLANG_PATH is set, but holds no libclang: $LIBCLANG_PATH" "Correct it or unset it."
        return
    fi
    llvm=$(printf '%s\n' /usr/lib/llvm-*/lib | sort -rV)
    loader=$(PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null | sed -n 's|.*(libc6,.*=> \(/.*\)/libclang[-.0-9]*\.so.*|\1|p')
    # No folder of these has a space in its name but perhaps our own, which comes last.
    for libclang in $(llvm-config --libdir 2>/dev/null) $llvm $loader "$root/.setup/libclang"; do
        holds_libclang "$libclang" && return
    done
    return 1
}

apt_install() {
    if [ "$(id -u)" != 0 ] || ! have apt-get; then return; fi
    say "installs with apt-get: $*"
    apt-get update -q || say "apt-get update failed; going on with the lists that are there"
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@" \
        || say "apt-get could not install $*; its message is above"
}

wheel_install() {
    if ! python3 -m pip --version >/dev/null 2>&1; then return; fi
    say "fetches libclang from PyPI into .setup/libclang (25 MB)"
    rm -rf .setup/wheel
    mkdir .setup/wheel
    printf '%s\n' "$wheel" | sed '$!s/$/ \\/' >.setup/wheel/requirements.txt
    if python3 -m pip download --no-deps --only-binary :all: --require-hashes -r .setup/wheel/requirements.txt -d .setup/wheel \
        && python3 -m zipfile -e .setup/wheel/*.whl .setup/wheel; then
        mkdir -p .setup/libclang
        mv .setup/wheel/*/platlib/clang/native/libclang.so .setup/libclang/
    fi
    rm -rf .setup/wheel
}

get_native() {
    missing=''
    compiler_is_there || missing='g++'
    find_libclang || missing="$missing libclang-dev"
    # shellcheck disable=SC2086 # a list
    [ -z "$missing" ] || apt_install $missing
    compiler_is_there || fail "a compiler for C++20 is needed and missing. Install these packages (these are Debian's names)" \
        "and run this again: $missing"
    find_libclang || wheel_install
    find_libclang || fail "libclang is needed and missing. Install libclang-dev (this is Debian's name), or Python's pip," \
        "with which it is fetched from PyPI, and run this again."
    # Only where bindgen does not look by itself: it is built again when this variable changes, and RocksDB with it, so that a cargo
    # by hand and one of the Makefile's would each undo what the other built.
    case $libclang in
        /usr/lib* | /lib* | /usr/local/lib* | "$(llvm-config --libdir 2>/dev/null)") ;;
        *) remember LIBCLANG_PATH "${LIBCLANG_PATH:-$libclang}" ;;
    esac
    # The wheel, and a distribution's bare library, come without the headers that belong to a compiler (stddef.h). Gcc's do.
    if ! ls "$libclang"/clang/*/include/stddef.h >/dev/null 2>&1; then
        remember BINDGEN_EXTRA_CLANG_ARGS "${BINDGEN_EXTRA_CLANG_ARGS:+$BINDGEN_EXTRA_CLANG_ARGS }-isystem $(cc -print-file-name=include)"
    fi
}

mkdir -p .setup
new=.setup/env.$$
trap 'rm -f "$new"' EXIT
printf '# Made by scripts/setup.sh.\n' >"$new"
get_rust
get_native
if [ "${1:-}" = lint ]; then
    get_component rustfmt fmt
    get_component clippy clippy
fi
mv "$new" .setup/env
say "ready: $(rustc --version), C++ $(${CXX:-c++} -dumpversion), libclang in $libclang"
