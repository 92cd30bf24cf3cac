"""`arlo serve triton`: one Triton server on a repository, in the foreground."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from arlo.cli.text import between

PORT = between(1, 65535)

DESCRIPTION = """Start one Triton server on a repository and load every model in it, in the foreground, until Ctrl-C.
With the logical model of `arlo compile --plugin` in it, the server takes requests of any length under
one name, over Triton's own HTTP and gRPC; no gateway and no control plane."""

EPILOG = """examples:
  arlo serve triton repository                                           HTTP on 8000, gRPC on 8001, metrics on 8002
  arlo serve triton repository --http-port 9000 --grpc-port 9001
  arlo serve triton repository -- --log-verbose=1 --rate-limit=off       more options of Triton's own

The server is the one that TRITON_SERVER names, that of the package nvidia-pytriton, or `tritonserver` on PATH."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `triton`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "triton",
        help="start one Triton server on a repository, without a gateway",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("repository", type=Path, metavar="REPOSITORY", help="what `arlo compile` or `emulate` wrote")
    parser.add_argument("--http-port", type=PORT, default=8000, metavar="PORT", help="default: 8000")
    parser.add_argument("--grpc-port", type=PORT, default=8001, metavar="PORT", help="default: 8001")
    parser.add_argument("--metrics-port", type=PORT, default=8002, metavar="PORT", help="default: 8002")
    parser.add_argument("--address", default="127.0.0.1", help="to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--threads", type=between(1, 1024), metavar="N", help="of an engine on the CPU (default: all cores)"
    )
    parser.add_argument(
        "--log", type=Path, metavar="FILE", default=Path("triton.log"), help="Triton's log (default: triton.log)"
    )
    parser.add_argument("options", nargs="*", metavar="OPTION", help="after --: further options of Triton")
    return parser


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C, SIGTERM or the server's end."""
    import asyncio

    from arlo.errors import ConfigError

    if not args.repository.is_dir():
        raise ConfigError(f"{args.repository} is no folder: name a repository that `arlo compile` wrote")
    if not any(args.repository.glob("*/config.pbtxt")) and not any(args.repository.glob("*/[0-9]*/")):
        raise ConfigError(f"{args.repository} holds no model: name a repository that `arlo compile` wrote")
    ports = (args.http_port, args.grpc_port, args.metrics_port)
    if len(set(ports)) < len(ports):
        raise ConfigError(f"--http-port, --grpc-port and --metrics-port must differ, not {ports}")
    return asyncio.run(_serve(args))


async def _serve(args: argparse.Namespace) -> int:
    import asyncio
    import signal

    from arlo.errors import WorkerError
    from arlo.workers.triton.alone import LoneTriton

    told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    server = LoneTriton(
        args.repository,
        grpc_port=args.grpc_port,
        http_port=args.http_port,
        metrics_port=args.metrics_port,
        address=args.address,
        log=args.log,
        threads=args.threads,
        extra=tuple(args.options),
    )
    stop = asyncio.create_task(told.wait())
    start = asyncio.create_task(server.__aenter__())
    await asyncio.wait([start, stop], return_when=asyncio.FIRST_COMPLETED)
    if not start.done():
        start.cancel()
        await asyncio.wait([start])
        return 130
    await start  # raises the error of the start
    try:
        print(
            f"Triton serves {args.repository}: HTTP {args.address}:{args.http_port}, gRPC {args.address}:"
            f"{args.grpc_port}, metrics {args.address}:{args.metrics_port}; log in {args.log}; Ctrl-C stops it",
            flush=True,
        )
        ended = asyncio.create_task(server.wait())
        await asyncio.wait([ended, stop], return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            raise WorkerError(f"Triton ended with exit code {ended.result()}; from {args.log}:\n{server.log.excerpt()}")
        ended.cancel()
    finally:
        await server.__aexit__(None, None, None)
    return 0
