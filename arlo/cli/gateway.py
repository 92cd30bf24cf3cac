"""`arlo serve gateway`: run the gateway alone, in the foreground."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

DESCRIPTION = """Run the gateway alone, in the foreground, as the configuration's [gateway], [dispatch] and
[health] say. It serves nothing until `arlo serve` (with gateway.managed = false) or another control
plane applies a deployment at its admin port, and goes on serving when that is gone. SIGTERM drains."""

EPILOG = """examples:
  arlo serve gateway serve.toml              run it

ARLO_GATEWAY in the environment names another arlo-gateway binary."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `gateway`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "gateway", help="run the gateway alone, in the foreground", description=DESCRIPTION, epilog=EPILOG
    )
    parser.add_argument("config", type=Path, metavar="CONFIG.toml", help="the configuration")
    parser.add_argument(
        "--ready-file", type=Path, metavar="FILE", help="written with the real addresses once the ports are bound"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Replace this process with the gateway."""
    from arlo import config as configuration
    from arlo.control.gateway.process import gateway_program, write_gateway_config

    config = configuration.load(args.config)
    ready_file = args.ready_file.absolute() if args.ready_file is not None else None
    program = gateway_program()
    path = write_gateway_config(config, ready_file=ready_file)
    os.execv(program, [str(program), "--config", str(path)])
