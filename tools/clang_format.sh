#!/usr/bin/env bash
# Checks (--check) or rewrites (--write) the format of our C++. usage: tools/clang_format.sh VENV --check|--write [FILE...]
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1 mode=$2
shift 2
if [ $# -eq 0 ]; then
  mapfile -t files < <(find src tests benchmarks -type f \( -name '*.cc' -o -name '*.h' \) | LC_ALL=C sort)
  set -- "${files[@]}"
fi
[ $# -eq 0 ] && exit 0
case $mode in
  --check) exec "$venv/bin/clang-format" --dry-run -Werror "$@" ;;
  --write) exec "$venv/bin/clang-format" -i "$@" ;;
  *) echo "usage: $0 VENV --check|--write [FILE...]" >&2; exit 2 ;;
esac
