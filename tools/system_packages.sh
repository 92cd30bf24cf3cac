#!/usr/bin/env bash
# Ensures that the system packages of one purpose (build, lint, bench) are installed. As root it installs missing ones;
# otherwise it prints the one command to run. When nothing is missing it is quick and silent, and does not touch apt.
set -euo pipefail

build=(cmake ninja-build g++ pkg-config libgrpc++-dev libprotobuf-dev protobuf-compiler
  libssl-dev libnghttp2-dev zlib1g-dev nlohmann-json3-dev libbenchmark-dev libgtest-dev python3-venv python3-dev)
lint=(clang-14 libclang-rt-14-dev)
bench=(nginx-light nghttp2-client)

case "${1:-}" in
  build) wanted=("${build[@]}") ;;
  lint) wanted=("${lint[@]}") ;;
  bench) wanted=("${bench[@]}") ;;
  --list) printf '%s\n' "${build[@]}"; exit ;;  # for the Dockerfiles
  *) echo "usage: $0 build|lint|bench|--list" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null; then
  echo "This is not a Debian or Ubuntu system. Install the equivalents of: ${wanted[*]}" >&2
  exit 0  # the build itself will name the packages still missing
fi

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ]; then
  echo "== System packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q
  apt-get install -q -y --no-install-recommends "${missing[@]}"
else
  {
    echo "System packages are missing. Run this, then the same make target again:"
    echo
    echo "    sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
    echo
  } >&2
  exit 1
fi
