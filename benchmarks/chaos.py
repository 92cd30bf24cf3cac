"""Each kind of process killed under load: failed requests, the longest latency, the time until all is well again.

`arlo serve` with five real Triton workers (emulated engines), the settings of the gateway's health checks as users have
them, requests without retries at a steady rate. What happens to it, each in a load of its own:

    worker            kill -9 of a worker
    longest           kill -9 of the only worker with the longest runtime
    hang              SIGSTOP of a worker; killed and restarted after workers.hang_timeout_s
    longest hangs     the same of the only worker with the longest runtime
    control plane     kill -9 of `arlo serve`, started again at once
    gateway           kill -9 of the gateway

Recovered: every worker serves what it should and the gateway finds every instance well.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from arlo.clock import monotonic_s
from arlo.replay import ReplayOptions, run_replay
from arlo.traces import Trace
from arlo.workers.emulated.repository import write_emulated_repository
from benchmarks import harness

LENGTHS = (64, 128, 256, 512)
LATENCY_MS = (1.15, 1.7, 2.7, 4.9)
LONGEST = 4  # the worker that has it, by the order of the allocation
HANG_TIMEOUT_S = 10
SLO_MS = 150
CONFIG = f"""\
[model]
repository = "repository"
slo_ms = {SLO_MS}
[workers]
hang_timeout_s = {HANG_TIMEOUT_S}
[deployment]
allocation = {{64 = 2, 128 = 1, 256 = 1, 512 = 1}}
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
log_level = "warning"
[control]
http_address = "127.0.0.1:0"
reallocate = false
"""
LIMIT_S = 45.0


class Serve:
    """`arlo serve` in `folder`, which outlives a kill by being started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ready: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "serve.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "arlo.cli", "serve", str(self.folder / "serve.toml"), "--json"],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit((self.folder / "serve.log").read_text()[-3000:])
        self.ready = json.loads(line)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)

    def pid(self, name: str) -> int:
        """Of a worker's Triton, or of the gateway."""
        return int(json.loads((self.folder / ".arlo" / f"{name}.process.json").read_text())["pid"])

    def well(self) -> bool:
        """Whether control plane and gateway both say that all is as it should be."""
        try:
            with urllib.request.urlopen(f"http://{self.ready['control']}/status", timeout=2) as answer:
                status = json.load(answer)
            with urllib.request.urlopen(f"http://{self.ready['http']}/metrics", timeout=2) as answer:
                page = answer.read().decode()
        except OSError:
            return False
        active = sum(
            float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith("arlo_level_instances")
        )
        return (
            status["state"] == "serving"
            and active == len(status["workers"])
            and all(w["loaded"] == [w["desired"]] == [w["serving"]] for w in status["workers"])
        )

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = monotonic_s() + LIMIT_S
        while not condition():
            if monotonic_s() > deadline_s:
                raise SystemExit(f"not within {LIMIT_S:g} s: {what}\n{(self.folder / 'serve.log').read_text()[-3000:]}")
            time.sleep(0.02)


@contextlib.contextmanager
def load(endpoint: str, rate: float, seed: int, found: dict[str, Any]) -> Iterator[None]:
    """A steady load around the block; what came of it is put into `found`."""
    rng = np.random.default_rng(seed)
    count = round(rate * (LIMIT_S + 10))
    trace = Trace(
        arrived_at_s=np.cumsum(rng.exponential(1 / rate, count)),
        length=np.clip(rng.lognormal(np.log(60), 0.9, count), 1, LENGTHS[-1]).astype(np.int32),
    )
    stop = threading.Event()
    options = ReplayOptions(endpoint=endpoint, slo_ms=SLO_MS, timeout_ms=30_000, seed=seed)

    def job() -> None:
        found["result"] = run_replay(trace, options, stop=stop)

    thread = threading.Thread(target=job)
    thread.start()
    try:
        time.sleep(2)
        yield
        time.sleep(1)
    finally:
        stop.set()
        thread.join()


def happen(serve: Serve, what: str) -> float:
    """Do it; seconds until recovered."""
    began_s = monotonic_s()
    if what == "control plane":
        serve.kill()
        serve.start()
    else:
        name = {"gateway": "gateway", "longest": f"w{LONGEST}", "longest hangs": f"w{LONGEST}"}.get(what, "w0")
        before = serve.pid(name)
        os.kill(before, signal.SIGSTOP if "hang" in what else signal.SIGKILL)

        def replaced() -> bool:
            with contextlib.suppress(OSError, ValueError):  # it is just being replaced
                return serve.pid(name) != before
            return False

        serve.wait(replaced, f"{what}: a new process")
    serve.wait(serve.well, f"{what}: recovered")
    return monotonic_s() - began_s


EVENTS = ("worker", "longest", "hang", "longest hangs", "control plane", "gateway")


def measure(serve: Serve, what: str, rate: float, seed: int) -> dict[str, Any]:
    """One thing that happens, under a load of its own."""
    found: dict[str, Any] = {}
    serve.wait(serve.well, "well before")
    with load(serve.ready["grpc"], rate, seed, found):
        recovered_s = happen(serve, what)
    summary = found["result"].summary
    failed = summary.requests - summary.answered
    return {
        "requests": summary.requests,
        "failed": failed,
        "max_ms": summary.latency.max_ms,
        "p99_ms": summary.latency.p99_ms,
        "recovered_s": recovered_s,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=300.0, help="requests per second (default: 300)")
    parser.add_argument("--events", nargs="+", choices=EVENTS, default=list(EVENTS))
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args()
    rounds: dict[str, list[dict[str, Any]]] = {what: [] for what in args.events}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_emulated_repository(
            folder / "repository", model="bench", max_lengths=LENGTHS, latency_ms=LATENCY_MS, load_delay_ms=300
        )
        (folder / "serve.toml").write_text(CONFIG)
        serve = Serve(folder)
        serve.start()
        try:
            for index in range(args.rounds):
                for what in args.events:
                    one = measure(serve, what, args.rate, index)
                    rounds[what].append(one)
                    if not args.json:
                        print(
                            f"round {index + 1} {what:14} failed {one['failed']:4} of {one['requests']:5}  "
                            f"longest {one['max_ms']:7.0f} ms  recovered after {one['recovered_s']:5.2f} s",
                            flush=True,
                        )
        finally:
            serve.stop()
    median = {
        what: {key: statistics.median(one[key] for one in each) for key in each[0]} for what, each in rounds.items()
    }
    figures = {"rate": args.rate, "hang_timeout_s": HANG_TIMEOUT_S, "median": median, "rounds": rounds}
    path = harness.save("chaos", "python -m benchmarks.chaos " + " ".join(sys.argv[1:]), figures)
    print(json.dumps(figures, indent=2) if args.json else f"-> {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
