#!/usr/bin/env bash
# Runs every libFuzzer target of a build folder for some seconds; fails on the first finding, whose input is kept.
# usage: tools/fuzz.sh BUILD SECONDS. Seeds and dictionary of a target lie in BUILD/seeds/, inputs found by earlier long
# runs in tests/cpp/corpus/; new inputs go to BUILD/run-*.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 seconds=$2

mapfile -t targets < <(find "$build" -type f -perm -u+x -name '*fuzz*' -not -name '*.*' -not -path '*/CMakeFiles/*' | LC_ALL=C sort)
if [ ${#targets[@]} -eq 0 ]; then
  echo "No fuzz target was built under $build" >&2
  exit 1
fi
for target in "${targets[@]}"; do
  name=$(basename "$target")
  work=$build/run-$name
  mkdir -p "$work/corpus" "$work/findings"
  seeds=() options=()
  for folder in "$build/seeds/$name" "tests/cpp/corpus/$name"; do
    [ -d "$folder" ] && seeds+=("$folder")
  done
  [ -f "$build/seeds/$name.dict" ] && options=("-dict=$build/seeds/$name.dict")
  echo "== $name for $seconds s"
  status=0
  "$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="$work/findings/" "${options[@]}" "$work/corpus" "${seeds[@]}" >"$work/log" 2>&1 || status=$?
  if [ "$status" -ne 0 ]; then
    tail -n 60 "$work/log"
    echo "$name found something: see $work/log and $work/findings/" >&2
    exit 1
  fi
  grep 'stat::' "$work/log"
done
