"""The Triton server: its location, and the command line and environment of a worker."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

from arlo.errors import EnvironmentProblem
from arlo.workers.paths import arlo_backends_dir
from arlo.workers.triton.preload import KEY_PLACEHOLDER, KEY_VARIABLE, hides_key, preloaded

SERVER_VARIABLE = "TRITON_SERVER"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TritonServer:
    """An installed Triton server."""

    executable: Path
    backends: Path  # its own backends, one folder each
    library_dirs: tuple[Path, ...] = ()  # for LD_LIBRARY_PATH
    python_stub: Path | None = None  # of the running Python's version; None: already next to the Python backend


def find_triton() -> TritonServer:
    """Find the server: the program that TRITON_SERVER names, the package nvidia-pytriton, or `tritonserver` on PATH.

    EnvironmentProblem when there is none, or when nvidia-pytriton has no Python stub for the running Python.
    """
    named = os.environ.get(SERVER_VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise EnvironmentProblem(f"{SERVER_VARIABLE}={named} is not a program: name the tritonserver binary")
        return _from_executable(Path(named))
    package = _package_dir()
    if package is not None:
        return _from_package(package)
    on_path = shutil.which("tritonserver")
    if on_path:
        return _from_executable(Path(on_path))
    raise EnvironmentProblem(
        "no Triton server found: install it with `pip install 'arlo-serve[triton]'`, put `tritonserver` on PATH, "
        f"or name it in {SERVER_VARIABLE}"
    )


def _package_dir() -> Path | None:
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)))
    return folder if (folder / "tritonserver" / "bin" / "tritonserver").is_file() else None


def _from_package(package: Path) -> TritonServer:
    root = package / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = root / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.is_file():
        have = sorted(folder.name for folder in (root / "python_backend_stubs").iterdir())
        raise EnvironmentProblem(
            f"nvidia-pytriton has no Python-backend stub for Python {version}: use one of {', '.join(have)}"
        )
    return TritonServer(
        executable=root / "bin" / "tritonserver",
        backends=root / "backends",
        library_dirs=(package.parent / "nvidia_pytriton.libs",),
        python_stub=stub,
    )


def _from_executable(executable: Path) -> TritonServer:
    # The layout of the official image: /opt/tritonserver/{bin/tritonserver,backends,lib}.
    root = executable.resolve().parent.parent
    return TritonServer(executable=executable, backends=root / "backends", library_dirs=(root / "lib",))


def prepare_backends(server: TritonServer, *, cache: Path | None = None) -> Path:
    """A folder with all backends: the server's, with the right Python stub next to the Python backend, and ours.

    It consists of symbolic links and lies in the user's cache; servers of the same installation share it.
    """
    ours = arlo_backends_dir()
    sources: dict[str, Path] = {}
    for parent in (server.backends, ours):
        if parent.is_dir():
            sources |= {folder.name: folder for folder in sorted(parent.iterdir()) if folder.is_dir()}
    links: dict[str, Path] = {}
    for name, folder in sources.items():
        if name == "python" and server.python_stub is not None:
            links |= {f"python/{file.name}": file for file in sorted(folder.iterdir()) if file.is_file()}
            links["python/triton_python_backend_stub"] = server.python_stub
        else:
            links[name] = folder
    listing = "\n".join(f"{name} -> {target.resolve()}" for name, target in links.items())
    key = hashlib.sha256(listing.encode()).hexdigest()[:16]
    parent = (cache or user_cache_dir()) / "backends"
    target = parent / key
    if target.is_dir():
        return target
    parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=parent, prefix="new-"))
    for name, source in links.items():
        (scratch / name).parent.mkdir(exist_ok=True)
        (scratch / name).symlink_to(source.resolve())
    try:
        scratch.rename(target)
    except OSError:  # another process made it meanwhile
        shutil.rmtree(scratch)
    return target


def user_cache_dir() -> Path:
    """$XDG_CACHE_HOME/arlo, by default ~/.cache/arlo."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arlo"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TritonOptions:
    """The start options of a worker's server."""

    repository: Path
    grpc_port: int
    address: str = "127.0.0.1"
    http_port: int | None = None  # None: no HTTP
    metrics_port: int | None = None  # None: no metrics
    exit_timeout_s: int = 30  # after SIGTERM, for queued and running work
    max_load_threads: int = 4
    shm_prefix: str | None = None  # of the Python backend's shared-memory files
    admin_key: str | None = None  # when set, administration calls need it (see `admin_headers`, `key_environment`)
    extra: tuple[str, ...] = ()  # further arguments, last, so they win


def command_line(server: TritonServer, backends: Path, options: TritonOptions) -> list[str]:
    """The server's command line: explicit model control, and no listeners but the requested ones.

    strict-readiness is off because loading one model would make the whole server not ready; pings every 5 s are
    allowed because the default ends a connection that pings more often than every 300 s.
    """
    command = [
        str(server.executable),
        f"--model-repository={options.repository}",
        f"--backend-directory={backends}",
        "--model-control-mode=explicit",
        "--disable-auto-complete-config",
        "--strict-readiness=false",
        f"--exit-timeout-secs={options.exit_timeout_s}",
        f"--model-load-thread-count={options.max_load_threads}",
        f"--grpc-address={options.address}",
        f"--grpc-port={options.grpc_port}",
        # The pool keeps the port reserved with a separate socket, across restarts.
        "--reuse-grpc-port=true",
        "--grpc-http2-min-recv-ping-interval-without-data=5000",
        "--grpc-keepalive-permit-without-calls=1",
        "--log-format=ISO8601",
    ]
    if options.http_port is None:
        command.append("--allow-http=false")
    else:
        command += [f"--http-address={options.address}", f"--http-port={options.http_port}"]
    if options.metrics_port is None:
        command.append("--allow-metrics=false")
    else:
        command += [f"--metrics-address={options.address}", f"--metrics-port={options.metrics_port}"]
        if not has_gpu():
            command.append("--allow-gpu-metrics=false")
    if options.shm_prefix:
        command.append(f"--backend-config=python,shm-region-prefix-name={options.shm_prefix}")
    if options.admin_key:
        command.append(
            "--grpc-restricted-protocol=model-repository,shared-memory,trace,logging:"
            f"{ADMIN_HEADER}={KEY_PLACEHOLDER if hides_key(server.executable) else options.admin_key}"
        )
    return command + list(options.extra)


ADMIN_HEADER = "arlo-admin"


def key_environment(server: TritonServer, admin_key: str | None) -> dict[str, str]:
    """The environment variables by which a server finds its key."""
    return {KEY_VARIABLE: admin_key} if admin_key and hides_key(server.executable) else {}


def admin_headers(admin_key: str | None) -> dict[str, str]:
    """The gRPC metadata that a server started with `admin_key` requires on administration calls."""
    return {f"triton-grpc-protocol-{ADMIN_HEADER}": admin_key} if admin_key else {}


def has_gpu() -> bool:
    """True where the NVIDIA driver is loaded."""
    return Path("/dev/nvidiactl").exists()


def environment(server: TritonServer, *, threads: int, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a worker: its libraries, this Python's packages, and its share of the cores.

    The Python backend embeds an interpreter, which finds the virtual environment by `python3` on PATH. PYTHONPATH
    also names the packages, for stubs of another build. `threads` goes to the OpenMP family and to ARLO_THREADS,
    which model code reads (ONNX Runtime has no such variable).
    """
    env = dict(os.environ if base is None else base)
    libdir = sysconfig.get_config_var("LIBDIR")
    libraries = [str(folder) for folder in server.library_dirs if folder.is_dir()]
    libraries += [libdir] if libdir and server.python_stub is not None else []
    env["LD_LIBRARY_PATH"] = os.pathsep.join([*libraries, *_parts(env.get("LD_LIBRARY_PATH"))])
    if server.python_stub is not None:
        env["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), *_parts(env.get("PATH"))])
        packages = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
        env["PYTHONPATH"] = os.pathsep.join([*_parts(env.get("PYTHONPATH")), *packages])
        env["PYTHONDONTWRITEBYTECODE"] = "1"
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "ARLO_THREADS"):
        env[name] = str(threads)
    env["TOKENIZERS_PARALLELISM"] = "false"
    if preload := preloaded(server.backends):
        env["LD_PRELOAD"] = os.pathsep.join([*map(str, preload), *_parts(env.get("LD_PRELOAD"))])
    return env


def _parts(value: str | None) -> list[str]:
    return [part for part in (value or "").split(os.pathsep) if part]


@functools.cache
def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
