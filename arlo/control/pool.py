"""The worker pool that the configuration describes."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import Any

from arlo.config import Config
from arlo.errors import ConfigError
from arlo.workers import EndpointsPool, LocalPool, WorkerPool


def make_pool(config: Config) -> WorkerPool:
    """A pool, not started. ConfigError when the repository or a file is missing."""
    workers = config.workers
    if workers.kind == "endpoints":
        return EndpointsPool(
            workers.endpoints, admin_key=_key(workers.admin_key_file), start_timeout_s=workers.start_timeout_s
        )
    common: dict[str, Any] = {
        "workers": config.worker_count,
        "run_dir": workers.run_dir,
        "threads": workers.threads,
        # Loading, unloading and the like are reserved for us; other clients of the workers' ports can only infer.
        "admin_key": secrets.token_urlsafe(16),
        "start_timeout_s": workers.start_timeout_s,
        "hang_timeout_s": workers.hang_timeout_s,
        "linger_s": workers.linger_s,
    }
    if workers.kind == "local":
        return LocalPool(config.model.repository, gpus=workers.gpus, **common)
    # Not imported from arlo.workers: Ray is needed only where it is used.
    from arlo.workers.ray.pool import RayPool

    return RayPool(
        config.model.repository,
        namespace=ray_namespace(config),
        address=workers.ray_address,
        resource=workers.ray_resource,
        amount=workers.ray_amount,
        **common,
    )


def ray_namespace(config: Config) -> str:
    """The namespace that finds this `arlo serve`'s workers again: one repository and run folder, one set of workers."""
    places = f"{config.model.repository.resolve()}\n{config.workers.run_dir.resolve()}"
    return f"arlo-{hashlib.sha256(places.encode()).hexdigest()[:12]}"


def _key(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        key = path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"workers.admin_key_file: {path} cannot be read ({error.strerror})") from None
    if not key:
        raise ConfigError(f"workers.admin_key_file: {path} is empty: write the key into it")
    return key
