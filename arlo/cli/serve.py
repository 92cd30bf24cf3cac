"""`arlo serve`: start workers and gateway and keep them serving."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.cli.build import build, is_built
from arlo.cli.text import print_json_line

if TYPE_CHECKING:
    from arlo.config import Config
    from arlo.control.plane import Cluster

DESCRIPTION = """Start workers and gateway, load the runtimes, and keep all of it serving until Ctrl-C.

A worker or a gateway that dies is started again. The first Ctrl-C (or SIGTERM) stops in order: the
gateway answers what it has, then the workers end. A second one stops at once."""

EPILOG = """examples:
  arlo serve serve.toml                what clients need is printed once requests are answered
  arlo serve serve.toml --log-json     log as JSON lines (standard error)
  arlo serve serve.toml --json         one JSON line on standard output when ready, for scripts
  arlo config check serve.toml         only check

docs/configuration.md describes the file. `arlo top --once serve.toml` shows what it does."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `serve`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "serve", help="start workers and gateway and keep them serving", description=DESCRIPTION, epilog=EPILOG
    )
    parser.add_argument("config", type=Path, metavar="CONFIG.toml", help="the configuration")
    parser.add_argument("--json", action="store_true", help="when ready, print one JSON line with the addresses")
    parser.add_argument("--log-json", action="store_true", help="log as JSON lines")
    return parser


def run(args: argparse.Namespace) -> int:
    """Serve until stopped."""
    from arlo import config as configuration
    from arlo.cli.recommend import load_manifest
    from arlo.control import events
    from arlo.control.serve import serve

    config = configuration.load(args.config)
    events.configure(as_json=args.log_json, level=logging.INFO)
    for model in config.models:
        if model.source is not None and not is_built(config.of(model)):
            print(f"arlo: {model.repository} is not there yet: compiling {model.source.name}", file=sys.stderr)
            build(config.of(model), sys.stderr)
    manifest = load_manifest(config)

    def ready(cluster: Cluster) -> None:
        if args.json:
            print_json_line(as_dict(cluster, config))
        else:
            print(how_to_try(cluster, config), flush=True)

    return asyncio.run(serve(config, ready=ready, manifest=manifest))


def as_dict(cluster: Cluster, config: Config) -> dict[str, Any]:
    """The facts that a script needs."""
    assert cluster.addresses is not None
    mode = cluster.mode
    return {
        "ready": True,
        "model": mode.name,
        "models": mode.models,
        "cascade": mode.whole if mode.kind == "cascade" else None,
        "pipeline": mode.whole if mode.kind == "pipeline" else None,
        "runtimes": {"serve": mode.choice.serve, "why": mode.choice.why},
        **dataclasses.asdict(cluster.addresses),
        "control": cluster.http_address,
        "pid": os.getpid(),
        "gateway_pid": cluster.gateway_pid,
    }


def _api_line(config: Config) -> str:
    address = config.gateway.api_address
    return "" if address is None else f"  API    {address}   text over HTTP/1.1: POST /v1/embeddings\n"


def how_to_try(cluster: Cluster, config: Config) -> str:
    """The addresses it listens on, and a command to copy to try it."""
    from arlo.control.gateway.process import reachable

    assert cluster.addresses is not None
    grpc, http = reachable(cluster.addresses.grpc), reachable(cluster.addresses.http)
    mode = cluster.mode
    client, row = f'Client("{grpc}"', "[[101, 7592, 102]]"
    if mode.kind != "model" or config.gateway.several_models:
        client += f', model="{mode.name}"'
    if cluster.manifest.tokenizer is not None:
        tokenizer = config.model.repository / cluster.manifest.tokenizer
        client, row = f'{client}, tokenizer="{os.path.relpath(tokenizer)}"', '"Hello, world."'
    return f"""
{mode.text}
  {mode.choice.text}
  gRPC   {cluster.addresses.grpc}   KServe v2 / Triton protocol; any Triton client works
{_api_line(config)}  HTTP   {cluster.addresses.http}   /metrics /livez /readyz
  admin  {cluster.addresses.admin}
  status {cluster.http_address}   /status /metrics /livez of the control plane

try it:
  arlo top --control {reachable(cluster.http_address)}
  arlo top --once --admin {reachable(cluster.addresses.admin)}
  curl http://{http}/readyz
  python -c 'from arlo.client import Client; print({client}).{mode.call}({row}))'

Ctrl-C stops it."""
