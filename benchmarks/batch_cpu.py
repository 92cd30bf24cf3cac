"""CPU of the gateway for a row that goes alone, and for one in a batch of about eight.

    python -m benchmarks.batch_cpu [--rate 3000] [--seconds 8] [--rounds 3]

One real Triton with an emulated engine under `arlo serve`, clients that send one row each, the same rate. Alone:
`[dispatch] batching = "one"` and an engine that answers at once. In batches: the default, and an engine that takes
8 rows' worth of time for any batch of up to 16. CPU is user and system time of the gateway's process.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from arlo.replay import ReplayOptions, run_replay
from arlo.traces import parse_lengths, poisson
from arlo.workers.emulated.repository import write_emulated_repository
from benchmarks import harness
from benchmarks.batches_served import serving

NAME = "batch_cpu"
ROWS = 8
LONGEST = 64


def measured(contender: str, rate: int, seconds: float) -> dict[str, float]:
    """Microseconds of CPU for a row, and rows in a batch."""
    batches = contender == "batches"
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_emulated_repository(
            work / "repository",
            model="bench",
            max_lengths=[LONGEST],
            latency_ms=[1000 * ROWS / rate if batches else 0.0],
            max_batch=2 * ROWS,
            batch_growth=0.0,
        )
        settings = {"deployment": {"runtimes": "bundle"}, "dispatch": {"batching": "deadline" if batches else "one"}}
        with serving(work, slo_ms=1000, settings=settings) as (program, endpoint, http):
            gateway = next(
                harness.Measured(pid)
                for pid in program.pids()
                if Path(f"/proc/{pid}/comm").read_text().startswith("arlo-gateway")
            )

            def send(seconds: float) -> int:
                trace = poisson(rate, seconds, parse_lengths(f"uniform:10:{LONGEST - 4}"), 1)
                summary = run_replay(trace, ReplayOptions(endpoint=endpoint, slo_ms=1000)).summary
                if summary.answered != summary.requests:
                    raise SystemExit(f"{summary.requests - summary.answered} of {summary.requests} were not answered")
                return summary.answered

            send(1.0)
            rows, groups, used_s = *counts(http), gateway.cpu_s()
            answered = send(seconds)
            used_s = gateway.cpu_s() - used_s
            after = counts(http)
            return {"cpu_us": used_s / answered * 1e6, "rows_a_batch": (after[0] - rows) / (after[1] - groups)}


def counts(http: int) -> tuple[float, float]:
    """Rows and batches that were sent to workers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics", timeout=5) as page:
        text = page.read().decode()
    rows = sum(float(found) for found in re.findall(r"^arlo_level_dispatched_total\{[^}]*\} (\S+)", text, re.MULTILINE))
    groups = re.search(r"^arlo_batches_total(?:\{[^}]*\})? (\S+)", text, re.MULTILINE)
    assert groups is not None
    return rows, float(groups[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"alone": [], "batches": []}
    for round_ in range(args.rounds):
        for contender, rows in found.items():
            rows.append(measured(contender, args.rate, args.seconds))
            print(f"round {round_ + 1} {contender:8} {rows[-1]['cpu_us']:6.1f} us of CPU a row, "
                  f"{rows[-1]['rows_a_batch']:.1f} rows a batch", flush=True)  # fmt: skip
    ratio = statistics.median(b["cpu_us"] / a["cpu_us"] for a, b in zip(found["alone"], found["batches"], strict=True))
    print(f"in batches {ratio:.2f} of a row alone")
    figures: dict[str, Any] = {"rate": args.rate, "rounds": found, "ratio": ratio}
    options = f"--rate {args.rate} --seconds {args.seconds:g} --rounds {args.rounds}"
    print(f"-> {harness.save(NAME, f'python -m benchmarks.{NAME} {options}', figures)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
