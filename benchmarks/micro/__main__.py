"""The micro benchmarks of the pure cores, dispatch and flow (Google Benchmark), kept with their command."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import harness


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filter", default=".", help="regular expression of the benchmarks to run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found: list[Any] = []
        for program in ("dispatch_bench", "flow_bench"):
            out = Path(folder) / f"{program}.json"
            command = [str(harness.binary(program)), f"--benchmark_filter={args.filter}"]
            subprocess.run([*command, f"--benchmark_out={out}", "--benchmark_out_format=json"], check=True)
            text = out.read_text()
            found += json.loads(text)["benchmarks"] if text else []  # nothing of it passed the filter
    keep = ("ns_decision", "ns_pair", "demoted")
    rows = {
        b["name"]: {k: round(b[k], 3) for k in keep if k in b} or {"ns": round(b["cpu_time"], 1)}
        for b in found
        if b.get("run_type") != "aggregate" or b.get("aggregate_name") == "median"
    }
    path = harness.save("dispatch", "python -m benchmarks.micro " + " ".join(sys.argv[1:]), {"rows": rows})
    print(f"-> {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
