"""Messages of the control <-> gateway contract (proto/), made from the descriptor set that the build installs.

No generated Python is committed or shipped: the classes are made at import, so they fit any protobuf runtime.
"""

from __future__ import annotations

import functools
import sysconfig
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from arlo.errors import EnvironmentProblem


def share_dir() -> Path:
    """The folder with the files that the build installed next to the Python code (descriptors, Triton backends)."""
    path = Path(sysconfig.get_path("data")) / "share" / "arlo"
    if not path.is_dir():
        raise EnvironmentProblem(f"{path} is missing: install Arlo with `make setup` or `pip install .`")
    return path


@functools.cache
def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString((share_dir() / "arlo.binpb").read_bytes())
    for file in files.file:
        pool.Add(file)
    return pool


@functools.cache
def message(name: str) -> Any:
    """The message class `arlo.v1.<name>`, for example `message("Deployment")`; nested names use dots."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"arlo.v1.{name}"))
