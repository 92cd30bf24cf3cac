"""`make bench`: the benchmarks one after the other; results in benchmarks/results/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BENCHES = (
    ["benchmarks.dispatch"],
    ["benchmarks.allocation"],
    ["benchmarks.simulation"],
    ["benchmarks.drift"],
    ["benchmarks.batch_cpu"],
    ["benchmarks.gateway_cpu"],
    ["benchmarks.gateway_latency"],
    ["benchmarks.gateway_memory"],
    ["benchmarks.overload"],
    ["benchmarks.faults"],
)


def main() -> int:
    failed = []
    for bench in BENCHES:
        print(f"\n== python -m {' '.join(bench)}", flush=True)
        if subprocess.run([sys.executable, "-m", *bench], cwd=ROOT, check=False).returncode != 0:
            failed.append(bench[0])
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
