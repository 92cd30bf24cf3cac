"""`arlo compile wrap`: any model that Triton serves, as a stage of a pipeline."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

DESCRIPTION = """Write the repository of a model that takes and gives tensors of any kind: an engine of
another origin, or your code for Triton's Python backend. A TOML file says what it takes, what it
gives and how long it takes; a flow names the repository as any (`arlo plan flow`)."""

EPILOG = """examples:
  arlo compile wrap detect.toml --out detect    then, in a flow: variants = [{repository = "detect", accuracy = 0.95}]

The file: [model] name, files, and backend (python), max_batch (1), max_length (1), latency ([[length, rows, ms]]),
counts, labels, memory_mb; [[input]] name, datatype, dims, pad_value; [[output]] name, datatype, dims, of_children,
on_request, token_level; [parameters] for the model's own code. See docs/flow-file.md."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `wrap`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "wrap", help="any model that Triton serves, as a stage of a pipeline", description=DESCRIPTION, epilog=EPILOG
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="what the model takes and gives: TOML")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the repository to write")
    return parser


def run(args: argparse.Namespace) -> int:
    """Write the repository, and print a summary."""
    from arlo.catalog.wrapped import wrap

    manifest = wrap(args.file, args.out)
    takes = ", ".join(tensor.name for tensor in manifest.inputs)
    gives = ", ".join(tensor.name for tensor in manifest.outputs)
    print(f"{args.out}: {manifest.model}, {takes} -> {gives}")
    return 0
