"""`arlo compile emulate`: write a repository of emulated runtimes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from arlo.catalog.manifest import FILE_NAME, Manifest
from arlo.cli.text import LENGTHS, between, listed, print_json
from arlo.errors import ConfigError

DESCRIPTION = """Write a Triton repository whose runtimes compute nothing: each answers after the time that a table
gives. Real workers, gateway and network with the latency of a GPU that is not there; for tests,
benchmarks and trying out a cluster. Input: input_ids, attention_mask; output: last_hidden_state,
embedding (made up from the ids, so that answers can be checked)."""

EPILOG = """examples:
  arlo compile emulate --out emu --max-lengths 64,128,256,512 --latency-ms 1.15,1.7,2.9,5.2
  arlo compile emulate --out emu --max-lengths 512 --latency-ms 5.2 --max-batch 8 --batch-growth 0.3
  arlo compile emulate --out emu --max-lengths 64,512 --latency-ms 1,5 --dynamic     dynamic-shape runtimes
  arlo compile emulate --out emu --max-lengths 32,64,128,512 --profile bert-base-a100 --max-batch 32

Then name the folder in a configuration (model.repository) and `arlo serve` it."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `emulate`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "emulate",
        help="write a repository whose runtimes answer after the time of a table",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the repository to write")
    parser.add_argument("--model", default="emulated", metavar="NAME", help="logical model name (default: emulated)")
    parser.add_argument(
        "--max-lengths", required=True, type=LENGTHS, metavar="L,L,...", help="maximum lengths in tokens, ascending"
    )
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument(
        "--latency-ms", type=listed(0, 1e9), metavar="MS,MS,...", help="latency of one row at each maximum length"
    )
    given.add_argument(
        "--profile", metavar="NAME", help="batches and lengths of a latency profile: a name, or a repository's folder"
    )
    parser.add_argument(
        "--slower",
        type=between(0, 1e6, whole=False, above=True),
        default=1.0,
        metavar="F",
        help="times of the profile, multiplied (default: 1)",
    )
    parser.add_argument("--max-batch", type=int, default=1, metavar="ROWS", help="rows in one execution (default: 1)")
    parser.add_argument(
        "--batch-growth",
        type=float,
        default=1.0,
        metavar="F",
        help="each further row of a batch costs F of the first; with --latency-ms (default: 1)",
    )
    parser.add_argument("--dynamic", action="store_true", help="runtimes of dynamic shape: time follows the length")
    parser.add_argument(
        "--batcher", action="store_true", help="Triton joins requests itself ([dispatch] batching worker)"
    )
    parser.add_argument(
        "--memory-mb",
        type=between(0, 1e9),
        default=0,
        metavar="MB",
        help="memory that each runtime takes of a worker that has ARLO_EMULATED_MEMORY_MB in all (default: 0, unknown)",
    )
    parser.add_argument(
        "--plugin",
        action="store_true",
        help="also write the logical model and Triton's backend for it (docs/plugin.md)",
    )
    parser.add_argument("--json", action="store_true", help="print the manifest as JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Write the repository."""
    import dataclasses

    from arlo.workers.emulated.repository import write_emulated_repository

    if args.out.is_dir() and any(args.out.iterdir()) and not (args.out / FILE_NAME).is_file():
        raise ConfigError(f"{args.out} is not empty and no repository ({FILE_NAME} is missing): name another folder")
    common = {"batcher": args.batcher, "memory_mb": args.memory_mb}
    if args.profile is not None:
        manifest = _profiled(args, common)
    else:
        manifest = write_emulated_repository(
            args.out,
            model=args.model,
            max_lengths=args.max_lengths,
            latency_ms=args.latency_ms,
            max_batch=args.max_batch,
            batch_growth=args.batch_growth,
            dynamic=args.dynamic,
            **common,
        )
    if args.plugin:
        from arlo.catalog.logical import write_logical_model
        from arlo.workers.paths import plugin_library

        write_logical_model(args.out, manifest, library=plugin_library())
    if args.json:
        print_json(dataclasses.asdict(manifest))
    else:
        print(f"{args.out}: {len(manifest.runtimes)} emulated runtime(s) of model {manifest.model}")
        for runtime in manifest.runtimes:
            print(f"  {runtime.name:<24} up to {runtime.max_length} tokens, {runtime.max_batch} row(s)")
    return 0


def _profiled(args: argparse.Namespace, common: dict[str, Any]) -> Manifest:
    """The runtimes of a profile: a static one per length, or one of dynamic shape up to the longest."""
    from arlo.simulator.profiles import load_profile
    from arlo.workers.emulated.repository import emulated, write_runtimes

    profile = load_profile(args.profile)
    dynamic = [profile.dynamic_runtime(args.max_lengths[-1], max_batch=args.max_batch)] if args.dynamic else []
    models = dynamic or profile.static_runtimes(args.max_lengths, max_batch=args.max_batch)
    runtimes = [emulated(each, model=args.model, slower=args.slower, **common) for each in models]
    return write_runtimes(args.out, model=args.model, runtimes=runtimes)
