"""The locations of the installed worker parts."""

from __future__ import annotations

import os
from pathlib import Path

from arlo.errors import EnvironmentProblem
from arlo.proto import share_dir

SHARE_VARIABLE = "ARLO_SHARE_DIR"


def worker_share_dir() -> Path:
    """`share/arlo` of the installation, or the folder that the environment variable ARLO_SHARE_DIR names."""
    override = os.environ.get(SHARE_VARIABLE)
    return Path(override) if override else share_dir()


def guard_program() -> Path:
    """The program `arlo-guard`."""
    path = worker_share_dir() / "bin" / "arlo-guard"
    if not os.access(path, os.X_OK):
        raise EnvironmentProblem(f"{path} is missing: install Arlo with `make setup` or `pip install .`")
    return path


def preload_library(name: str) -> Path | None:
    """A library that is preloaded into Triton servers, src/plugins/{name}; None: it is not installed."""
    path = worker_share_dir() / "lib" / f"libarlo_{name}.so"
    return path if path.is_file() else None


def plugin_library() -> Path:
    """The Triton backend `arlo`, which `arlo compile --plugin` writes next to the logical model's configuration."""
    path = arlo_backends_dir() / "arlo" / "libtriton_arlo.so"
    if not path.is_file():
        raise EnvironmentProblem(f"{path} is missing: install Arlo with `make setup` or `pip install .`")
    return path


def arlo_backends_dir() -> Path:
    """The folder with our own Triton backends, one folder each."""
    path = worker_share_dir() / "backends"
    if not path.is_dir():
        raise EnvironmentProblem(f"{path} is missing: install Arlo with `make setup` or `pip install .`")
    return path
