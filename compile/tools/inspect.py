"""`arlo compile inspect`: the content of a repository, in words and tables."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.catalog.manifest import Recommendation, Runtime, Verification
from arlo.compile.repository.inspect import (
    FileProblem,
    Inspection,
    RuntimeFound,
    bundle_memory_mb,
    check_files,
    inspect_repository,
)

if TYPE_CHECKING:
    from rich.console import Console

_DESCRIPTION = """Explain a repository: the model, what goes in and comes out, each runtime with its engine, size,
exactness and speed, what Triton will make of it, what is recommended on the device that it was
measured on, and what to do next. Nothing is loaded and nothing is changed."""

_EPILOG = """examples:
  arlo compile inspect minilm                     explain it
  arlo compile inspect minilm --check             and hash every file against the manifest
  arlo compile inspect minilm --json | jq '.runtimes[] | {name, disagreements}'

Exit code 1 when Triton's configuration differs from the manifest, or --check finds a file missing or
damaged (files that the manifest does not list are named, and no failure); 2 when there is no
repository, or it is of an older format."""

_NAME_WIDTH = 12
_BATCHES = 4  # whose time is shown
_SHOWN = 10  # files of one kind that are named


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `inspect`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "inspect",
        help="what a repository holds: runtimes, exactness, speed, what is recommended",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("repository", metavar="REPOSITORY", type=Path, help="a folder that `arlo compile` wrote")
    parser.add_argument("--check", action="store_true", help="hash every file against the manifest")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Explain the repository; the exit code shows whether it is whole."""
    found = inspect_repository(args.repository)
    problems = check_files(found.repository, found.manifest) if args.check else None
    if args.json:
        json.dump(as_dict(found, problems), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        from rich.console import Console

        show(found, problems, Console(highlight=False))
    broken = any(each.problem != "extra" for each in problems or ())
    return 1 if broken or found.disagreements else 0


def as_dict(found: Inspection, problems: Sequence[FileProblem] | None) -> dict[str, Any]:
    """The output of --json: the manifest without its lists of files, and the findings of the inspection."""
    manifest = dataclasses.asdict(found.manifest)
    for runtime, each in zip(manifest["runtimes"], found.runtimes, strict=True):
        runtime.pop("files")
        runtime["bytes"], runtime["shared_bytes"] = each.bytes, each.shared_bytes
        runtime["triton"] = dataclasses.asdict(each.triton) if each.triton is not None else None
        runtime["disagreements"] = list(each.disagreements)
    checked = {} if problems is None else {"problems": [dataclasses.asdict(problem) for problem in problems]}
    return {
        "repository": str(found.repository),
        **manifest,
        "bundle_memory_mb": bundle_memory_mb(found.manifest),
        "bytes": found.bytes,
        "files": found.files,
        **checked,
        "next_steps": list(found.next_steps),
    }


def show(found: Inspection, problems: Sequence[FileProblem] | None, console: Console) -> None:
    """Print it for people."""
    _head(found, console)
    _runtimes(found, console)
    _exactness(found, console)
    _triton(found, console)
    _advice(found, console)
    if problems is not None:
        _files(found, problems, console)
    say = _section(console, "next")
    for step in found.next_steps:
        say(step)


# --- parts ---


def _head(found: Inspection, console: Console) -> None:
    manifest = found.manifest
    console.print(f"[bold]{_safe(manifest.model)}[/]  {_safe(manifest.task)}, {len(manifest.runtimes)} runtime(s)")
    rows = [("repository", f"{found.repository}  ({_size(found.bytes)} in {found.files} files)")]
    rows.append(("source", manifest.source))
    optional = " (optional)"
    takes = ", ".join(f"{t.name}{optional if t.optional else ''}" for t in manifest.inputs)
    types = "/".join(sorted({tensor.datatype for tensor in manifest.inputs}))
    rows.append(("takes", f"{takes}: {types} [rows, tokens]"))
    for index, output in enumerate(manifest.outputs):
        shape = ", ".join(["rows", *(["tokens"] if output.token_level else []), *map(str, output.dims)])
        asked = ", on request" if output.on_request else ""
        rows.append(("answers" if not index else "", f"{output.name}: {output.datatype} [{shape}]{asked}"))
    rows.append(("tokenizer", manifest.tokenizer or "none: clients send token ids"))
    if manifest.tools:
        rows.append(("built with", ", ".join(f"{name} {version}" for name, version in sorted(manifest.tools.items()))))
    for name, text in rows:
        _row(console, name, text)


def _runtimes(found: Inspection, console: Console) -> None:
    from rich.table import Table

    say = _section(console, "runtimes")
    groups: dict[str, list[str]] = {}
    for each in found.runtimes:
        groups.setdefault(_engine(each.runtime), []).append(each.runtime.name)
    for engine, names in groups.items():
        say(engine if len(groups) == 1 else f"{engine}: {', '.join(names)}")
    batches = _some_batches(sorted({p.batch for each in found.runtimes for p in _full(each.runtime)}))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("  name", no_wrap=True)
    rows = (f"{'' if index else 'rows:'}\n{batch}" for index, batch in enumerate(batches))
    loads = ["load"] if any(each.runtime.load_ms is not None for each in found.runtimes) else []
    for title in ("tokens", "size", "memory", *loads, "difference", *rows):
        table.add_column(title, justify="right", no_wrap=True)
    for each in found.runtimes:
        runtime = each.runtime
        times = {point.batch: point.latency_us for point in _full(runtime)}
        table.add_row(
            f"  {_safe(runtime.name)}",
            f"{'1-' if runtime.dynamic else ''}{runtime.max_length}",
            _size(each.bytes),
            "-" if runtime.memory_mb is None else _size(runtime.memory_mb * 10**6),
            *("-" if runtime.load_ms is None else f"{runtime.load_ms / 1000:.2g} s" for _ in loads),
            _exact(runtime.verification),
            *(_short_ms(times[batch]) if batch in times else "-" for batch in batches),
        )
    console.print(table)
    shared = max((each.shared_bytes for each in found.runtimes), default=0)
    if shared:
        say(f"size: without {_size(shared)} that runtimes share (hard links)")
    memory = bundle_memory_mb(found.manifest)
    if memory is not None:
        static = sum(not each.runtime.dynamic for each in found.runtimes)
        say(
            f"memory: once opened, with a full batch; all {static} static ones on one worker: "
            f"{_size(memory * 10**6)}, and Triton's processes"
        )
    if loads:
        say("load: until a worker had loaded it, through Triton; a plan weighs it against what a move gains")
    devices = sorted({each.runtime.device for each in found.runtimes if each.runtime.latency})
    if devices:
        say(f"rows: ms of a batch of full length, measured on {'; '.join(devices)}")
    unmeasured = [each.runtime.name for each in found.runtimes if not each.runtime.latency]
    if unmeasured:
        say(f"no latency was measured of {_some(unmeasured)}: no device at hand ran the engine")


def _exactness(found: Inspection, console: Console) -> None:
    say = _section(console, "exactness")
    verified = [each.runtime.verification for each in found.runtimes if each.runtime.verification is not None]
    wrong = [e.runtime.name for e in found.runtimes if not e.runtime.verification and e.runtime.engine != "emulated"]
    if wrong:
        say(f"[red]not verified, {_some(wrong)}: `arlo compile verify` found them wrong[/]", markup=True)
    if not verified:
        if not wrong:
            say("not verified: these runtimes were not built from a model")
        return
    rows = sorted({each.rows for each in verified})
    ran_on = sorted({each.ran_on for each in verified if each.ran_on})
    where = f", on {'; '.join(ran_on)}" if ran_on else ""
    say(f"against the original model in float32, on {rows[0]}{f' to {rows[-1]}' if rows[1:] else ''} texts{where}")
    say(
        f"largest difference {max(v.max_abs_diff for v in verified):.1e}; another padding or other rows beside "
        f"it change an answer by at most {max(v.padding_diff for v in verified):.1e}"
    )
    cosines = [v.cosine for v in verified if v.cosine is not None]
    labels = [v.agreement for v in verified if v.agreement is not None]
    if cosines:
        say(f"lowest cosine {_down(min(cosines))}")
    if labels:
        say(f"labels that are the same: {_down(min(labels) * 100)} %")
    stood_in = [
        e.runtime.name for e in found.runtimes if e.runtime.verification and not e.runtime.verification.engine_ran
    ]
    if stood_in:
        say(
            f"[yellow]*: the engines of {_some(stood_in)} were not run: no device here does; their graphs were[/]",
            markup=True,
        )


def _triton(found: Inspection, console: Console) -> None:
    say = _section(console, "in Triton")
    groups: dict[str, list[str]] = {}
    for each in found.runtimes:
        groups.setdefault(_summary(each), []).append(each.runtime.name)
    for text, names in groups.items():
        say(text if len(groups) == 1 else f"{text}: {', '.join(names)}")
    if not found.disagreements:
        say("[green]every config.pbtxt agrees with the manifest[/]", markup=True)
    for text in found.disagreements:
        say(f"[red]{_safe(text)}[/]", markup=True)


def _advice(found: Inspection, console: Console) -> None:
    from arlo.planning.lengths.advice import missing

    say = _section(console, "recommended")
    advice = found.manifest.recommendation
    if advice is None:
        why = missing(found.manifest) or "nothing was compared"
        say(f"nothing: {why}")
        return
    kind = "a static runtime per length" if advice.serve == "static" else "the dynamic runtime"
    say(f"[bold]{kind}[/], on {_safe(advice.device)}", markup=True)
    say(advice.why)
    console.print(_compared(advice))


def _compared(advice: Recommendation) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("  one row, ms", no_wrap=True)
    for title in ("static", "dynamic", "padded", "dynamic / static"):
        table.add_column(title, justify="right", no_wrap=True)

    def ratio(static: float | None, dynamic: float | None) -> str:
        return "-" if not static or dynamic is None else f"{dynamic / static:.2f}"

    for row in advice.compared:
        times = (_ms(row.static_us), _ms(row.dynamic_us), _ms(row.padded_us))
        table.add_row(f"  {row.length} tokens", *times, ratio(row.static_us, row.dynamic_us))
    mean = advice.mean_us
    times = (_ms(mean.get("static")), _ms(mean.get("dynamic")), _ms(mean.get("padded")))
    table.add_row("  mean of the traffic", *times, ratio(mean.get("static"), mean.get("dynamic")), style="bold")
    if "profiles" in mean:
        table.add_row("  several profiles", "", _ms(mean["profiles"]), "", ratio(mean.get("static"), mean["profiles"]))
    return table


def _files(found: Inspection, problems: Sequence[FileProblem], console: Console) -> None:
    say = _section(console, "files")
    listed = sum(len(each.runtime.files) for each in found.runtimes)
    bad = [each for each in problems if each.problem != "extra"]
    if not bad:
        say(f"[green]all {listed} files are what the manifest says[/]", markup=True)
    for kind, colour in (("missing", "red"), ("damaged", "red"), ("extra", "yellow")):
        paths = [each.path for each in problems if each.problem == kind]
        for path in paths[:_SHOWN]:
            say(f"[{colour}]{kind}[/]  {_safe(path)}", markup=True)
        if len(paths) > _SHOWN:
            say(f"[{colour}]{kind}[/]  and {len(paths) - _SHOWN} more", markup=True)
    if bad:
        say("build the repository again with `arlo compile`")


# --- words ---


def _engine(runtime: Runtime) -> str:
    text = f"{runtime.engine} {runtime.precision}"
    if runtime.engine == "emulated":
        return "emulated: computes nothing, answers after the time of a table"
    if runtime.compute_capabilities:
        text += f" for {', '.join(runtime.compute_capabilities)}"
    if runtime.kinds:
        text += f", {', '.join(runtime.kinds)}"
    if runtime.profiles:
        text += f", profiles up to {', '.join(map(str, runtime.profiles))}"
    return f"{text}, served by Triton's {runtime.backend} backend"


def _summary(found: RuntimeFound) -> str:
    triton = found.triton
    if triton is None:
        return "no configuration"
    kind = {"AUTO": "where Triton sees fit", "MODEL": "where the model says"}.get(triton.kind, f"on the {triton.kind}")
    parts = [f"backend {triton.backend}", f"{triton.instances} instance(s) {kind}"]
    if triton.batching:
        parts.append(f"dynamic batching up to {triton.max_batch_size} rows")
    else:
        rows = f"up to {triton.max_batch_size} rows" if triton.max_batch_size > 1 else "one row"
        parts.append(f"{rows} a request")
    parts.append(f"{triton.warmups} warm-up request(s)" if triton.warmups else "no warm-up")
    return ", ".join(parts)


def _exact(verification: Verification | None) -> str:
    if verification is None:
        return "-"
    return f"{verification.max_abs_diff:.1e}{'' if verification.engine_ran else '*'}"


def _some_batches(batches: list[int]) -> list[int]:
    """The least and the most, and some of those between: what a line of a terminal holds."""
    steps = min(len(batches), _BATCHES)
    return [batches[index * (len(batches) - 1) // max(1, steps - 1)] for index in range(steps)]


def _full(runtime: Runtime) -> list[Any]:
    return [point for point in runtime.latency if point.length == runtime.max_length]


def _down(value: float) -> str:
    """The value rounded down, so that only an exact 1 reads as 1."""
    return f"{int(value * 1e6) / 1e6:g}" if value < 1 else f"{int(value * 1e3) / 1e3:g}"


def _ms(value_us: float | None) -> str:
    return "-" if value_us is None else f"{value_us / 1000:.2f}"


def _short_ms(value_us: float) -> str:
    value = value_us / 1000
    return f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _size(size: int) -> str:
    if size < 10_000:
        return f"{size / 1e3:.1f} kB"
    if size < 1e6:
        return f"{size / 1e3:.0f} kB"
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.2f} GB"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} more"


def _safe(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _section(console: Console, title: str) -> Callable[..., None]:
    """Print a title and return a function that prints lines below it, indented and wrapped at words."""
    console.print(f"\n[bold]{title}[/]")

    def say(text: str, *, markup: bool = False) -> None:
        _wrapped(console, "  ", text if markup else _safe(text))

    return say


def _row(console: Console, name: str, text: str) -> None:
    _wrapped(console, f"  {name:<{_NAME_WIDTH}}", _safe(text))


def _wrapped(console: Console, first: str, markup: str) -> None:
    from rich.text import Text

    for line in Text.from_markup(markup).wrap(console, max(20, console.width - len(first))):
        line.rstrip()
        console.print(Text.assemble(first, line))
        first = " " * len(first)
