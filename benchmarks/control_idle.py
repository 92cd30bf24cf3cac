"""What the control plane costs: CPU of `arlo serve`'s own process with ten emulated workers.

    idle       no requests, no questions
    polled     the same, with /status read every second, as `arlo top` does
    traffic    300 requests a second go through the gateway (no part of the control plane)

each over 30 s, as a share of one core; workers, gateway and load are processes of their own and not counted.

The bar: idle, at most 2 % of one core.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arlo.clock import monotonic_s
from arlo.replay import ReplayOptions, run_replay
from arlo.traces import parse_lengths, poisson, rescale
from arlo.workers.emulated.repository import write_emulated_repository
from benchmarks import harness

BAR = 0.02
WORKERS = 10
LENGTHS = (64, 128, 256, 384, 512)
LATENCY_MS = tuple(1.15 + (length - 64) * (4.86 - 1.15) / 448 for length in LENGTHS)
WAYS = ("idle", "polled", "traffic")


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[dict[str, Any]]:
    """`arlo serve` with its defaults; what it says when it is ready."""
    write_emulated_repository(folder / "repository", model="bench", max_lengths=LENGTHS, latency_ms=LATENCY_MS)
    config = folder / "serve.toml"
    config.write_text(
        f"""[model]
repository = "repository"
slo_ms = 150
[workers]
run_dir = "run"
count = {WORKERS}
threads = 1
linger_s = 0
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
[control]
http_address = "127.0.0.1:0"
"""
    )
    command = [sys.executable, "-m", "arlo.cli", "serve", str(config), "--json"]
    with (folder / "serve.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"arlo serve did not start:\n{(folder / 'serve.log').read_text()}")
        yield json.loads(line)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def share(pid: int, seconds: float) -> float:
    begin_s, used_s = monotonic_s(), harness.process_cpu_s(pid)
    time.sleep(seconds)
    return (harness.process_cpu_s(pid) - used_s) / (monotonic_s() - begin_s)


@contextlib.contextmanager
def polling(address: str) -> Iterator[None]:
    """/status, every second."""
    stop = threading.Event()

    def poll() -> None:
        while not stop.wait(1.0):
            with urllib.request.urlopen(f"http://{address}/status", timeout=5) as answer:
                json.load(answer)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def loaded(address: str, rate: float, seconds: float) -> Iterator[None]:
    """Requests in the lengths of tweets, with two seconds before the block begins."""
    stop = threading.Event()
    draw = parse_lengths("tweets")
    trace = poisson(rate, seconds + 60, lambda n, rng: rescale(draw(n, rng), LENGTHS[-1]), 1)
    options = ReplayOptions(endpoint=address, model="bench")
    failed: list[int] = []

    def send() -> None:
        failed.append(run_replay(trace, options, stop=stop).summary.outcomes["failed"])

    thread = threading.Thread(target=send)
    thread.start()
    time.sleep(2.0)
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failed != [0]:
        raise SystemExit(f"requests failed: {failed}")


def run(args: argparse.Namespace) -> dict[str, Any]:
    out = sys.stderr if args.json else sys.stdout
    shares: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as name, serving(Path(name)) as up:
        pid = up["pid"]
        time.sleep(args.settle)
        for _ in range(args.rounds):
            shares["idle"].append(share(pid, args.seconds))
            with polling(up["control"]):
                shares["polled"].append(share(pid, args.seconds))
            with loaded(up["grpc"], args.rate, args.seconds):
                shares["traffic"].append(share(pid, args.seconds))
            print("  ".join(f"{way} {found[-1]:.2%}" for way, found in shares.items()), file=out, flush=True)
            time.sleep(2.0)
    return {
        "workers": WORKERS,
        "seconds": args.seconds,
        "settle_s": args.settle,
        "requests_per_s": args.rate,
        "bar": BAR,
        "share_of_a_core": {way: round(statistics.median(found), 4) for way, found in shares.items()},
        "rounds": {way: [round(each, 4) for each in found] for way, found in shares.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement (default: 30)")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds before the first (default: 10)")
    parser.add_argument("--rate", type=float, default=300.0, help="requests per second (default: 300)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON; the rest goes to stderr")
    args = parser.parse_args()
    figures = run(args)
    path = harness.save("control_idle", "python -m benchmarks.control_idle " + " ".join(sys.argv[1:]), figures)
    if args.json:
        print(json.dumps(figures, indent=2))
    print(f"-> {path}", file=sys.stderr if args.json else sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
