"""Speculation on real Triton workers whose engines replay records, beside the same cascade without it and beside the
same rows simulated.

    python -m benchmarks.cascade.speculation [--cascade FOLDER] [--times sizes] [--loads 0.1 0.3 0.6]

As `benchmarks.cascade.served`: its rows, engines and arrivals. Shares are of the highest load that the cascade without
speculation carries, simulated.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from arlo.replay.records import latency_us
from benchmarks import harness
from benchmarks.cascade.cached import cache_root
from benchmarks.cascade.served import highest, population, replayed, served, simulated


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slower", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--times", choices=("layers", "sizes"), default="sizes")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.1, 0.3, 0.6])
    parser.add_argument("--cascade", type=Path, default=cache_root() / "cascade" / "demo-sections-1-2-8000-1500")
    args = parser.parse_args()
    people = population(args.cascade, args.times)
    most = highest(people, args.workers)
    runs: list[dict[str, Any]] = []
    for speculate in (False, True):
        with (
            tempfile.TemporaryDirectory() as folder,
            served(Path(folder), people, args.workers, args.slower, speculate=speculate) as (endpoint, _),
        ):
            calm = 0.05 * most / args.slower
            fast = simulated(people, calm, 10.0, args.workers, alone=False, slower=args.slower, speculate=speculate)
            quiet = replayed(endpoint, people, calm, 10.0, args.slower)
            extra_ms = float(np.mean(latency_us(quiet.records)) / 1000 - fast.mean_ms)
            for load in args.loads:
                rate = load * most / args.slower
                real = replayed(endpoint, people, rate, args.seconds, args.slower).summary
                twin = simulated(
                    people,
                    rate,
                    args.seconds,
                    args.workers,
                    alone=False,
                    slower=args.slower,
                    hop_ms=extra_ms / 3,
                    speculate=speculate,
                )
                runs.append(
                    {
                        "speculate": speculate,
                        "load": load,
                        "rows": real.requests,
                        "mean_ms": real.latency.mean_ms,
                        "p98_ms": real.latency.p98_ms,
                        "on_time": real.slo_attainment,
                        "simulated_mean_ms": twin.mean_ms,
                        "simulated_p98_ms": twin.p98_ms,
                        "simulated_share_speculated": twin.speculated / twin.rows,
                        "exits_early": twin.exits[0],
                        "extra_ms": extra_ms,
                    }
                )
                print(
                    f"speculate {speculate!s:5} load {load:4.2f}: mean {real.latency.mean_ms:7.1f} "
                    f"({twin.mean_ms:7.1f}) p98 {real.latency.p98_ms:7.1f} ({twin.p98_ms:7.1f}) ms, begun beside the "
                    f"first stage {twin.speculated / twin.rows:.0%}, ended there {twin.exits[0]:.0%}",
                    flush=True,
                )
    command = f"python -m benchmarks.cascade.speculation --times {args.times} --slower {args.slower:g}"
    print(f"-> {harness.save(f'cascade_speculation_{args.times}', command, {'most_rps': most, 'runs': runs})}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
