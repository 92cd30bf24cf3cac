"""`arlo version`."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
from typing import Any

import arlo
from arlo.cli.text import print_json

PACKAGES = (
    "grpcio",
    "protobuf",
    "numpy",
    "tritonclient",
    "tokenizers",
    "nvidia-pytriton",
    "onnxruntime",
    "torch",
    "transformers",
)


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `version`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "version",
        help="versions of Arlo and its parts",
        description="Versions of Arlo and of the packages that it stands on; put them into a bug report.",
        epilog="examples:\n  arlo version\n  arlo version --json",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the versions."""
    versions: dict[str, str | None] = {"arlo": arlo.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    if args.json:
        print_json(versions)
    else:
        for name, version in versions.items():
            print(f"{name:<16} {version or 'not installed'}")
    return 0
