#!/usr/bin/env bash
# Runs socket tests of the gateway against a program built with sanitizers.
# usage: tools/sanitized_gateway.sh PYTHON PROGRAM [PYTEST_ARGUMENT...]   without arguments: those marked `sanitized`
#
# A finding ends the program with exit code 66, at once or when it stops, and the tests accept 0 only; they show its
# report. The workers are fakes (tests/fakes/small_workers.py). Marked are tests in which threads meet: streams,
# cancellations, deadlines, disconnecting clients, changing deployments, shutdown. Tests that measure time or memory, or
# that need a real Triton, prove nothing here.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
ARLO_GATEWAY=$(realpath "$2")
shift 2
export ARLO_GATEWAY ARLO_SANITIZED=1
export ASAN_OPTIONS=detect_stack_use_after_return=1:quarantine_size_mb=16:exitcode=66
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:exitcode=66
# Only calls from our code count: libraries built without the sanitizer show half of theirs.
export TSAN_OPTIONS=ignore_noninstrumented_modules=1:exitcode=66:history_size=4

if [ $# -eq 0 ]; then set -- -m sanitized tests/integration/gateway; fi
exec "$python" -m pytest -q -p no:cacheprovider -n 3 --dist worksteal "$@"
