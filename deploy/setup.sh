#!/usr/bin/env bash
# Checks what a build and the tests need; as root it installs what is missing, else it prints the one line to type.
#   deploy/setup.sh [--check]     --check: never installs
set -euo pipefail

check_only=false
case ${1:-} in
  "") ;;
  --check) check_only=true ;;
  *) echo "wrong use: deploy/setup.sh [--check]" >&2; exit 2 ;;
esac

missing=()
need() { missing+=("$1"); }

command -v g++ >/dev/null || need g++
command -v ccache >/dev/null || need ccache
# The fault suite's sandbox: namespaces, cuts, file systems that lose power. These lie in sbin, which not every PATH has.
sandbox_tool() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] || need "$2"; }
command -v ss >/dev/null || need iproute2
sandbox_tool nft nftables
sandbox_tool mkfs.ext4 e2fsprogs
sandbox_tool nsenter util-linux
sandbox_tool losetup mount
# bindgen, for RocksDB's wrapper, loads libclang at build time and needs clang's own headers.
if ! compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null && [ -z "${LIBCLANG_PATH:-}" ]; then
  need libclang1-14
fi
compgen -G '/usr/lib/llvm-*/lib/clang/*/include/stddef.h' >/dev/null || need libclang-common-14-dev
python3 -c 'import venv, ensurepip' 2>/dev/null || need python3-venv

if [ ${#missing[@]} -gt 0 ]; then
  line="apt-get install --yes --no-install-recommends ${missing[*]}"
  if $check_only || [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    printf 'missing packages; type:\n\n    sudo %s\n\n' "$line" >&2
    exit 1
  fi
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  echo "setup    installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  if ! { $line || { apt-get update && $line; }; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    printf 'error: the packages could not be installed; type:\n\n    %s\n\n' "$line" >&2
    exit 1
  fi
fi

if ! command -v cargo >/dev/null; then
  echo "error: no cargo; install Rust 1.95 or newer from https://rustup.rs" >&2
  exit 1
fi
# The newest of two versions comes last.
version=$(rustc --version | cut -d' ' -f2)
if [ "$(printf '%s\n' 1.95.0 "$version" | sort -V | tail -n 1)" != "$version" ]; then
  echo "error: rust $version is older than 1.95" >&2
  exit 1
fi
printf 'setup    g++ %s  ccache %s  rust %s%25s\n' "$(g++ -dumpversion)" "$(ccache --version | sed -n '1s/.* //p')" "$version" ok
