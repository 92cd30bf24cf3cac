"""The desired state, kept over restarts: one small file in the run folder.

It holds only facts that cannot be observed. What runs where is read from the workers and the gateway.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from arlo.control.mode import ServingMode

FILE_NAME = "desired.json"
FORMAT = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DesiredState:
    """A placement, with its reason."""

    placement: dict[str, str]  # worker id -> runtime name
    reason: str
    at_ms: int
    fingerprint: str  # of the inputs of the decision, see fingerprint()


def fingerprint(mode: ServingMode) -> str:
    """A fingerprint of everything that a saved placement depends on; if it differs, the placement is not used."""
    config = mode.config
    content: dict[str, Any] = {
        "repository": str(config.model.repository.resolve()),
        "runtimes": [
            (runtime.name, runtime.max_length, sorted(runtime.files.items())) for runtime in mode.manifest.runtimes
        ],
        "allocation": sorted(config.deployment.allocation.items()),
        "dynamic": config.deployment.dynamic,
        "models": [model.workers for model in config.models],
        "serve": mode.choice.serve,
        "workers": [config.workers.kind, config.worker_count, list(config.workers.endpoints)],
        "reallocate": config.control.reallocate,
    }
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def save(run_dir: Path, state: DesiredState) -> None:
    """Write atomically: a reader, and a start after a kill, see the old state or the new one."""
    path = run_dir / FILE_NAME
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"format": FORMAT, **dataclasses.asdict(state)}, indent=2) + "\n")
    temporary.replace(path)


def load(run_dir: Path, *, expected: str) -> DesiredState | None:
    """The saved state; None if there is none, or it is damaged, or it was decided for another configuration."""
    try:
        raw = json.loads((run_dir / FILE_NAME).read_text())
        if raw.pop("format") != FORMAT or raw["fingerprint"] != expected:
            return None
        placement = raw["placement"]
        if not all(isinstance(key, str) and isinstance(value, str) for key, value in placement.items()):
            return None
        return DesiredState(**raw)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
