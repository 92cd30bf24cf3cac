"""A worker that fails what it is sent, and long requests among bursts of short ones: who is answered, and when.

internal   four real Triton workers with emulated engines of 20 ms at half load; from the fifth second on, one of
           them answers INTERNAL at once, while its checks pass. Share of the requests that fail
long       the five workers of benchmarks.overload at a mean load of 0.8, in bursts of 2.5 s at 1.3 and 2.5 s at
           0.3 of their capacity; 8 % of the requests have 400 tokens, the others tweets' lengths. Shares on time
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from arlo.replay import ReplayOptions, run_replay
from arlo.traces import Trace
from benchmarks import harness, overload

FAILS_AFTER_S = 5.0
INTERNAL_MS, INTERNAL_RPS = 20.0, 100.0  # four workers at half load
LONG_TOKENS, LONG_SHARE, TIMEOUT_S = 400, 0.08, 1.5
BURST_S, BURST, LULL = 2.5, 1.3, 0.3


def replay(trace: Trace, port: int, timeout_s: float) -> Any:
    options = ReplayOptions(
        endpoint=f"127.0.0.1:{port}",
        model="bench",
        slo_ms=overload.SLO_MS,
        timeout_ms=timeout_s * 1000,
        vocabulary=1000,
    )
    return run_replay(trace, options).records


def internal(work: Path, args: Any) -> dict[str, float]:
    slow = work / "slow"
    slow.mkdir()
    env = {"ARLO_EMULATED_SLOW_DIR": str(slow)}
    with overload.cluster(work, {512: INTERNAL_MS}, (512,) * 4, env) as (backends, workers):
        with overload.gateway(work, backends, args.policy) as port:
            well = overload.arrivals([(FAILS_AFTER_S, INTERNAL_RPS)], seed=1)
            before = replay(well, port, TIMEOUT_S)
            (slow / f"slow.{workers[0].pid}").write_text("-1")
            records = replay(overload.arrivals([(args.seconds, INTERNAL_RPS)], seed=2), port, TIMEOUT_S)
    return {
        "failed_before": float((before["code"] != 0).mean()),
        "failed": float((records["code"] != 0).mean()),
        "on_time": float((overload.on_time(records)).mean()),
    }


def with_long(lengths: Any, seed: int) -> Any:
    """A share of the requests made long, the others cut to 256 tokens."""
    is_long = np.random.default_rng(seed).random(len(lengths)) < LONG_SHARE
    return np.where(is_long, LONG_TOKENS, np.minimum(lengths, 256)).astype(np.int32)


def long_among_bursts(work: Path, args: Any) -> dict[str, float]:
    with overload.cluster(work, overload.LATENCY_MS, overload.PLACED) as (backends, _):
        rate = overload.capacity(
            work, backends, args.policy, min(args.seconds, 10), with_long(overload.lengths(512, 1), seed=5)
        )
        bursts = int(max(args.seconds / (2 * BURST_S), 1))
        trace = overload.arrivals([(BURST_S, BURST * rate), (BURST_S, LULL * rate)] * bursts, seed=3)
        trace = Trace(arrived_at_s=trace.arrived_at_s, length=with_long(trace.length, seed=4))
        with overload.gateway(work, backends, args.policy) as port:
            records = replay(trace, port, TIMEOUT_S)
    on_time, long = overload.on_time(records), records["length"] == LONG_TOKENS
    return {
        "capacity_rps": rate,
        "on_time_long": float(on_time[long].mean()),
        "on_time_short": float(on_time[~long].mean()),
        "unanswered_long": float((records["code"][long] != 0).mean()),
        "unanswered_short": float((records["code"][~long] != 0).mean()),
    }


CASES: dict[str, Callable[[Path, Any], dict[str, float]]] = {"internal": internal, "long": long_among_bursts}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each case (default 60)")
    parser.add_argument("--policy", default="late")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    args = parser.parse_args()
    figures: dict[str, Any] = {"policy": args.policy}
    for case in args.cases:
        with tempfile.TemporaryDirectory() as folder:
            figures[case] = CASES[case](Path(folder), args)
        print(f"{case:9} " + "  ".join(f"{name} {value:.4g}" for name, value in figures[case].items()), flush=True)
    path = harness.save("faults", "python -m benchmarks.faults " + " ".join(sys.argv[1:]), figures)
    print(f"-> {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
