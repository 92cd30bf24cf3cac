"""`arlo compile inspect`: the content of a repository, in words and tables."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.catalog.manifest import Runtime, Verification
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
    from rich.table import Table

    Say = Callable[..., None]

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
    _runtimes(found, _section(console, "runtimes"))
    _exactness(found, _section(console, "exactness"))
    _triton(found, _section(console, "in Triton"))
    _advice(found, _section(console, "recommended"))
    if problems is not None:
        _files(found, problems, _section(console, "files"))
    say = _section(console, "next")
    for step in found.next_steps:
        say(step)


# --- parts ---


def _head(found: Inspection, console: Console) -> None:
    manifest = found.manifest
    console.print(f"[bold]{_safe(manifest.model)}[/]  {_safe(manifest.task)}, {len(manifest.runtimes)} runtime(s)")
    takes = ", ".join(f"{tensor.name}{' (optional)' * tensor.optional}" for tensor in manifest.inputs)
    types = "/".join(sorted({tensor.datatype for tensor in manifest.inputs}))
    answers = []
    for output in manifest.outputs:
        shape = ", ".join(["rows", *(["tokens"] if output.token_level else []), *map(str, output.dims)])
        answers.append(f"{output.name}: {output.datatype} [{shape}]{', on request' * output.on_request}")
    tools = ", ".join(f"{name} {version}" for name, version in sorted(manifest.tools.items()))
    grid = _table("  name", "text")
    grid.show_header = False
    grid.columns[1].justify, grid.columns[1].no_wrap, grid.columns[1].overflow = "left", False, "fold"
    for name, text in (
        ("repository", f"{found.repository}  ({_size(found.bytes)} in {found.files} files)"),
        ("source", manifest.source),
        ("takes", f"{takes}: {types} [rows, tokens]"),
        *(("" if index else "answers", text) for index, text in enumerate(answers)),
        ("tokenizer", manifest.tokenizer or "none: clients send token ids"),
        *([("built with", tools)] if tools else []),
    ):
        grid.add_row(f"  {name}", _safe(text))
    console.print(grid)


def _runtimes(found: Inspection, say: Say) -> None:
    every = [each.runtime for each in found.runtimes]
    _grouped(say, ((_engine(runtime), runtime.name) for runtime in every))
    batches = _some_batches(sorted({point.batch for runtime in every for point in _full(runtime)}))
    rows = (f"{'' if index else 'rows:'}\n{batch}" for index, batch in enumerate(batches))
    loads = ["load"] if any(runtime.load_ms is not None for runtime in every) else []
    table = _table("  name", "tokens", "size", "memory", *loads, "difference", *rows)
    for each, runtime in zip(found.runtimes, every, strict=True):
        times = {point.batch: point.latency_us for point in _full(runtime)}
        table.add_row(
            f"  {_safe(runtime.name)}",
            f"{'1-' if runtime.dynamic else ''}{runtime.max_length}",
            _size(each.bytes),
            "-" if runtime.memory_mb is None else _size(runtime.memory_mb * 10**6),
            *("-" if runtime.load_ms is None else f"{runtime.load_ms / 1000:.2g} s" for _ in loads),
            _exact(runtime.verification),
            *(_ms(times.get(batch)) for batch in batches),
        )
    say(table)
    if shared := max((each.shared_bytes for each in found.runtimes), default=0):
        say(f"size: without {_size(shared)} that runtimes share (hard links)")
    options = found.manifest.options
    for choice in options.get("batches", ()):
        say(f"batches of {choice['length']} tokens: up to {choice['rows']} row(s); {choice['why']}")
    if (memory := bundle_memory_mb(found.manifest)) is not None:
        limit = options.get("memory_mb")
        say(
            f"memory: once opened, with a full batch; all {sum(not runtime.dynamic for runtime in every)} static ones "
            f"on one worker: {_size(memory * 10**6)}, and Triton's processes"
            + (f". That is more than the {limit} MB of --memory-mb" if limit and memory > limit else "")
        )
    if loads:
        say("load: until a worker had loaded it, through Triton; a plan weighs it against what a move gains")
    if devices := sorted({runtime.device for runtime in every if runtime.latency}):
        say(f"rows: ms of a batch of full length, measured on {'; '.join(devices)}")
    if unmeasured := [runtime.name for runtime in every if not runtime.latency]:
        say(f"no latency was measured of {_some(unmeasured)}: no device at hand ran the engine")


def _exactness(found: Inspection, say: Say) -> None:
    every = [each.runtime for each in found.runtimes]
    verified = [runtime.verification for runtime in every if runtime.verification is not None]
    wrong = [runtime.name for runtime in every if not runtime.verification and runtime.engine != "emulated"]
    if wrong:
        say(f"not verified, {_some(wrong)}: `arlo compile verify` found them wrong", "red")
    elif not verified:
        say("not verified: these runtimes were not built from a model")
    if not verified:
        return
    rows = sorted({each.rows for each in verified})
    ran_on = sorted({each.ran_on for each in verified if each.ran_on})
    where = f", on {'; '.join(ran_on)}" if ran_on else ""
    say(f"against the original model in float32, on {rows[0]}{f' to {rows[-1]}' if rows[1:] else ''} texts{where}")
    say(
        f"largest difference {max(v.max_abs_diff for v in verified):.1e}; another padding or other rows beside "
        f"it change an answer by at most {max(v.padding_diff for v in verified):.1e}"
    )
    if cosines := [v.cosine for v in verified if v.cosine is not None]:
        say(f"lowest cosine {_down(min(cosines))}")
    if labels := [v.agreement for v in verified if v.agreement is not None]:
        say(f"labels that are the same: {_down(min(labels) * 100)} %")
    if stood_in := [runtime.name for runtime in every if runtime.verification and not runtime.verification.engine_ran]:
        say(f"*: the engines of {_some(stood_in)} were not run: no device here does; their graphs were", "yellow")


def _triton(found: Inspection, say: Say) -> None:
    _grouped(say, ((_summary(each), each.runtime.name) for each in found.runtimes))
    if not found.disagreements:
        say("every config.pbtxt agrees with the manifest", "green")
    for text in found.disagreements:
        say(text, "red")


def _advice(found: Inspection, say: Say) -> None:
    from arlo.planning.lengths.advice import missing

    advice = found.manifest.recommendation
    if advice is None:
        say(f"nothing: {missing(found.manifest) or 'nothing was compared'}")
        return
    kind = "a static runtime per length" if advice.serve == "static" else "the dynamic runtime"
    say(f"{kind}, on {advice.device}", "bold")
    say(advice.why)
    table = _table("  one row, ms", "static", "dynamic", "padded", "dynamic / static")
    mean = advice.mean_us
    for name, static, dynamic, padded in (
        *((f"{row.length} tokens", row.static_us, row.dynamic_us, row.padded_us) for row in advice.compared),
        ("mean of the traffic", mean.get("static"), mean.get("dynamic"), mean.get("padded")),
        *([("several profiles", None, mean["profiles"], None)] if "profiles" in mean else []),
    ):
        base = mean.get("static") if name == "several profiles" else static
        ratio = "-" if not base or dynamic is None else f"{dynamic / base:.2f}"
        table.add_row(f"  {name}", _ms(static), _ms(dynamic), _ms(padded), ratio)
    say(table)


def _files(found: Inspection, problems: Sequence[FileProblem], say: Say) -> None:
    bad = [each for each in problems if each.problem != "extra"]
    if not bad:
        say(f"all {sum(len(each.runtime.files) for each in found.runtimes)} files are what the manifest says", "green")
    for kind, colour in (("missing", "red"), ("damaged", "red"), ("extra", "yellow")):
        paths = [each.path for each in problems if each.problem == kind]
        more = [f"and {len(paths) - _SHOWN} more"] if len(paths) > _SHOWN else []
        for path in paths[:_SHOWN] + more:
            say(f"{kind}  {path}", colour)
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
    rows = f"up to {triton.max_batch_size} rows"
    batching = f"{rows} a request" if triton.max_batch_size > 1 else "one row a request"
    warm_up = f"{triton.warmups} warm-up request(s)" if triton.warmups else "no warm-up"
    if triton.batching:
        batching = f"dynamic batching {rows}"
    return f"backend {triton.backend}, {triton.instances} instance(s) {kind}, {batching}, {warm_up}"


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
    if value_us is None:
        return "-"
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


def _table(first: str, *titles: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _grouped(say: Say, named: Iterable[tuple[str, str]]) -> None:
    """Say each text once, with the names of its runtimes where there are several texts."""
    groups: dict[str, list[str]] = {}
    for text, name in named:
        groups.setdefault(text, []).append(name)
    for text, names in groups.items():
        say(text if len(groups) == 1 else f"{text}: {', '.join(names)}")


def _section(console: Console, title: str) -> Say:
    """Print a title and return a function that prints tables and texts below it; a text has a style, is indented and is
    wrapped at words."""
    from rich.padding import Padding
    from rich.text import Text

    console.print(f"\n[bold]{title}[/]")

    def say(what: str | Table, style: str = "") -> None:
        console.print(Padding(Text(what, style), (0, 0, 0, 2), expand=False) if isinstance(what, str) else what)

    return say
