"""The dispatch core's micro benchmark (Google Benchmark), kept with its command."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import harness


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filter", default=".", help="regular expression of the benchmarks to run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [str(harness.binary("dispatch_bench")), f"--benchmark_filter={args.filter}"]
        subprocess.run([*command, f"--benchmark_out={out}", "--benchmark_out_format=json"], check=True)
        report = json.loads(out.read_text())
    keep = ("ns_decision", "ns_pair", "demoted", "rows_per_batch")
    rows = {
        b["name"]: {k: round(b[k], 3) for k in keep if k in b}
        for b in report["benchmarks"]
        if b.get("run_type") != "aggregate" or b.get("aggregate_name") == "median"
    }
    path = harness.save("dispatch", "python -m benchmarks.dispatch " + " ".join(sys.argv[1:]), {"rows": rows})
    print(f"-> {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
