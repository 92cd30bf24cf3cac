#!/usr/bin/env bash
# The GPU kit's stages, one process each, within a given time.
# usage: run.sh SECONDS --out DIR [--dry] [STAGE...]     STAGE: facts table mixes serve ort (default: all, in this order)
#
# A stage gets its share of the remaining time and is ended 2 s after it. Its measurements until then are in
# DIR/STAGE.json. A failed stage adds a line to DIR/log.txt, and the next one begins. At the end, and at SIGTERM, logs
# are packed into DIR/logs.tar.gz, so that DIR holds at most eight files of less than 16 MB.
# --dry runs two-layer models on the CPU, with .venv if the checkout has one, to check that every path runs.
# ARLO_KIT_PYTHON: this Python, without the kit. The settings of the card are not touched.
set -uo pipefail
began=$SECONDS
root=$(cd "$(dirname "$0")/../../.." && pwd)
declare -A weights=([facts]=35 [table]=160 [mixes]=95 [serve]=230 [ort]=30)
most_bytes=$((16 << 20))

usage() { sed -n '2,3p' "$0" >&2; exit 2; }
[[ ${1:-} =~ ^[0-9]+$ ]] || usage
seconds=$1; shift
out= dry= stages=()
while (($#)); do
  case $1 in
    --out) out=${2:-}; shift 2 || usage ;;
    --dry) dry=--dry; shift ;;
    *) [[ -v weights[$1] ]] || usage; stages+=("$1"); shift ;;
  esac
done
[[ -n $out ]] || usage
((${#stages[@]})) || stages=(facts table mixes serve ort)
mkdir -p "$out" && out=$(cd "$out" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/arlo-kit.XXXXXX")
mkdir "$work/logs"
child=

say() { printf '%4d s  %s\n' $((SECONDS - began)) "$*" | tee -a "$out/log.txt"; }

finish() {
  trap - EXIT TERM INT
  if [[ -n $child ]] && kill -0 "$child" 2>/dev/null; then
    kill -TERM "$child"
    for _ in {1..20}; do kill -0 "$child" 2>/dev/null || break; sleep 0.1; done
    kill -KILL "$child" 2>/dev/null
  fi
  rm -f "$out"/*.new
  for log in "$work"/logs/*; do  # the ends of long logs
    [[ -f $log ]] && tail -c 1500000 "$log" >"$log.end" && mv "$log.end" "$log"
  done
  tar -C "$work" -czf "$out/logs.tar.gz" logs 2>/dev/null
  for file in "$out"/*; do
    if (($(stat -c %s "$file") >= most_bytes)); then
      gzip -f "$file" && file=$file.gz
      (($(stat -c %s "$file") >= most_bytes)) && rm "$file" && echo "$(basename "$file") was too large" >>"$out/log.txt"
    fi
  done
  rm -rf "$work"
  exit "$1"
}
trap 'finish $?' EXIT
trap 'say "ended by a signal"; finish 143' TERM INT

python=${ARLO_KIT_PYTHON:-}
if [[ -z $python && -n $dry && -x $root/.venv/bin/python ]]; then
  python=$root/.venv/bin/python
elif [[ -z $python && -d $root/.gpu-kit ]]; then
  if bash "$root/benchmarks/gpu/offline/unpack.sh" "$work/kit" >"$work/logs/unpack.txt" 2>&1; then
    source "$work/kit/env.sh"
    say "unpacked: $ARLO_KIT_PARTS"
  else
    say "unpack failed: $(tail -n 1 "$work/logs/unpack.txt")"
  fi
fi
python=${python:-python3}
[[ -v ARLO_KIT ]] || export PYTHONPATH=$root  # the kit's environment knows the checkout
export PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
cd "$work"

failed=0
for index in "${!stages[@]}"; do
  stage=${stages[index]}
  sum=0
  for later in "${stages[@]:index}"; do sum=$((sum + weights[$later])); done
  left=$((seconds - 3 - (SECONDS - began)))  # the end takes some too
  share=$((left * weights[$stage] / sum))
  least=$((left < 20 ? left / 2 : 10))  # a start takes some seconds
  ((share >= least)) || share=$least
  if ((share < 2)); then
    say "$stage: not run, no time is left"
    continue
  fi
  say "$stage: $share s"
  timeout -k 2 $((share + 2)) "$python" -m benchmarks.gpu "$stage" --out "$out" --seconds "$share" --logs "$work/logs" \
    $dry >"$work/logs/$stage.txt" 2>&1 &
  child=$!
  wait "$child"
  code=$?
  child=
  case $code in
    0) say "$stage: done" ;;
    124 | 137) say "$stage: ended by its time limit"; failed=1 ;;
    *) say "$stage: failed with $code: $(tail -n 1 "$work/logs/$stage.txt" | cut -c1-300)"; failed=1 ;;
  esac
done
exit $failed
