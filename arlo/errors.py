"""The error tree of the Python side.

ArloError
├── ConfigError        a configuration, manifest or command line is wrong; says what to change      exit code 2
├── EnvironmentProblem a package, program, file, memory or disk space is missing; says how to get it exit code 3
├── CompileError       a compile step failed; names the step                                        exit code 4
├── WorkerError        a worker did not start, load or answer; carries the end of its log           exit code 5
├── GatewayError       the gateway did not start or refused a deployment                            exit code 6
└── ClientError        see arlo.client.errors                                                       exit code 7

Exit codes are given in one place, `exit_code`; gRPC codes are mapped in one place, `arlo.client.errors`.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator


class ArloError(Exception):
    """Base of all errors that Arlo raises on purpose. The message says what to do."""

    exit_code = 1


class ConfigError(ArloError):
    """A configuration, manifest or command line is wrong."""

    exit_code = 2


def need(good: bool, message: str) -> None:
    """ConfigError with this message, unless it is `good`."""
    if not good:
        raise ConfigError(message)


class EnvironmentProblem(ArloError):  # noqa: N818  # EnvironmentError is a name of Python's own
    """A required package, program or file is missing."""

    exit_code = 3


def how_to_install(*packages: str) -> str:
    """The command that installs these packages.

    PyPI's PyTorch for Linux includes CUDA, several GB; PyTorch's own index has the build for the CPU.
    """
    if "torch" in packages:
        index = "--extra-index-url https://download.pytorch.org/whl/cpu"
        return f"pip install 'arlo-serve[up,compile]' {index} (for a GPU: without --extra-index-url)"
    known = {"onnx", "onnxscript", "onnx_ir", "onnxruntime", "transformers", "a Triton server"}
    return "pip install " + ("'arlo-serve[up]'" if {*packages} <= known else " ".join(packages))


class CompileError(ArloError):
    """A compile step failed."""

    exit_code = 4


class WorkerError(ArloError):
    """A worker did not start, load or answer."""

    exit_code = 5


class GatewayError(ArloError):
    """The gateway did not start or refused a deployment."""

    exit_code = 6


# What to do about an errno.
_REMEDIES = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there",
    errno.EROFS: "name a folder that is not mounted read-only",
    errno.EACCES: "grant the permission, or name another path",
    errno.EPERM: "grant the permission, or name another path",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the limit of open files (fs.file-max)",
    errno.ENOMEM: "free some memory, or raise the limit",
    errno.EADDRINUSE: "name another port",
    errno.ENAMETOOLONG: "name a shorter path",
}
# These concern a path that the user named.
_OF_PATHS = (
    FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError,
)  # fmt: skip


def explain(error: BaseException) -> str:
    """Any error in one line: its cause, its place and its remedy."""
    if isinstance(error, ArloError):
        return str(error)
    if isinstance(error, MemoryError) or "bad_alloc" in str(error):
        return "out of memory: free some, raise the limit, or ask for less (fewer rows, --jobs 1)"
    if isinstance(error, OSError) and error.strerror is not None:
        where = f"{printable(str(error.filename))}: " if error.filename is not None else ""
        remedy = _REMEDIES.get(error.errno or 0)
        return f"{where}{error.strerror}" + (f": {remedy}" if remedy else "")
    return f"{type(error).__name__}: {printable(str(error), limit=2000)}"


def known(error: BaseException) -> ArloError | None:
    """The ArloError for a system error; None if only a fault of ours explains it."""
    if isinstance(error, ArloError):
        return error
    if isinstance(error, ModuleNotFoundError):  # a package of an extra, imported at its use
        package = (error.name or "").partition(".")[0]
        if package in ("", "arlo"):
            return None
        return EnvironmentProblem(f"this needs the package {package}: {how_to_install(package)}")
    if isinstance(error, _OF_PATHS) or (isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG):
        return ConfigError(explain(error))
    if isinstance(error, OSError | MemoryError) or "bad_alloc" in str(error):
        return EnvironmentProblem(explain(error))
    return None


@contextlib.contextmanager
def system_errors(kind: type[ArloError], what: str) -> Iterator[None]:
    """Raise system errors inside the block as errors of one kind."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {explain(error)}") from error


def printable(text: str, *, limit: int = 200) -> str:
    """Outside text that is safe for a terminal: without control characters, and of limited length."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)
    return shown if len(shown) <= limit else f"{shown[:limit]}... ({len(text):,} characters)"
