"""The libraries preloaded into our Triton servers, and the servers that need them."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from arlo.workers.paths import preload_library

KEY_PLACEHOLDER = "@ARLO_WORKER_KEY@"  # on the command line, where src/plugins/key puts the key
KEY_VARIABLE = "ARLO_WORKER_KEY"

# Python back-ends whose unloading we examined, by the SHA-256 of libtriton_python.so: src/plugins/unload shortens a
# sleep that may serve another purpose in another version.
LOOKED_AT = {
    "08a47eb9cb120475442abebf283a910cf06053bc1322711aeb34f4d42f038cba": "2.51, of nvidia-pytriton 0.7.0",
}


def hides_key(executable: Path) -> bool:
    """Whether the server takes its key from the environment: src/plugins/key exists, and applies to this program."""
    return executable.name == "tritonserver" and preload_library("key") is not None


def preloaded(backends: Path) -> list[Path]:
    """The libraries to preload into a server with these back-ends. Without `unload`, unloading Python takes 1.2 s."""
    wanted = [preload_library("key")]
    if _digest(backends / "python" / "libtriton_python.so") in LOOKED_AT:
        wanted.append(preload_library("unload"))
    return [library for library in wanted if library is not None]


@functools.cache
def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
