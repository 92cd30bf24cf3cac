"""The desired state, kept over restarts: one small file in the run folder.

It holds only a fact that cannot be observed: which worker should have which runtime. What runs where is read from the
workers and the gateway.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from arlo.control.mode import ServingMode

FILE_NAME = "desired.json"
FORMAT = 1


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


def save(mode: ServingMode, placement: dict[str, str], **notes: Any) -> None:
    """Write atomically: a reader, and a start after a kill, see the old state or the new one. `notes`: for people."""
    path = mode.config.workers.run_dir / FILE_NAME
    temporary = path.with_suffix(".tmp")
    content = {"format": FORMAT, "placement": placement, "fingerprint": fingerprint(mode), **notes}
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.replace(path)


def load(mode: ServingMode) -> dict[str, str] | None:
    """The saved placement, worker -> runtime; None if there is none, or it is damaged, or it was decided for another
    configuration."""
    try:
        raw = json.loads((mode.config.workers.run_dir / FILE_NAME).read_text())
        placement: dict[str, str] = raw["placement"]
        fits = raw["format"] == FORMAT and raw["fingerprint"] == fingerprint(mode)
        known = {runtime.name for runtime in mode.manifest.runtimes}
        return placement if fits and known.issuperset(placement.values()) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
