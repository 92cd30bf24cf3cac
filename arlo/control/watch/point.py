"""The operating point that `arlo cascade use` has chosen for a cascade that is served: in force within a second.

The name of the point lies in a file of workers.run_dir, where it outlives the control plane. The gateway takes it up
between two decisions; no worker moves for it. One event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from arlo.cascade.manifest import CascadeManifest
from arlo.config import Config
from arlo.config.stages import cascade_manifest
from arlo.control.events import emit
from arlo.control.reconcile.deployments import Deployments
from arlo.errors import ArloError, ConfigError

log = logging.getLogger("arlo.control")

LOOK_S = 0.5
FILE = "cascade_point"


def choose_point(config: Config, name: str | None) -> Path:
    """Write down which point is to be in force; None: that of the configuration. ConfigError: there is none of it."""
    manifest = _manifest(config)
    if name is not None:
        manifest.point(name)
    path = config.workers.run_dir / FILE
    if name is None:
        path.unlink(missing_ok=True)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(name + "\n")
    fresh.replace(path)
    return path


def _manifest(config: Config) -> CascadeManifest:
    if config.cascade is None:
        raise ConfigError("this configuration serves no cascade: it has no [cascade]")
    return cascade_manifest(config.cascade.manifest)


class PointWatch:
    """See the module."""

    def __init__(self, config: Config, deployments: Deployments) -> None:
        self._config, self._deployments = config, deployments
        self._path = config.workers.run_dir / FILE
        self._seen: str | None = None

    async def run(self) -> None:
        """Watch the file until cancelled."""
        while True:
            name = self._read()
            if name != self._seen:
                try:
                    await self._use(name)
                except ArloError as error:
                    emit(log, "cascade_point_refused", level=logging.ERROR, point=name, error=str(error))
                self._seen = name
            await asyncio.sleep(LOOK_S)

    def _read(self) -> str | None:
        try:
            return self._path.read_text().strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    async def _use(self, name: str | None) -> None:
        if name is not None:
            _manifest(self._config).point(name)
        self._deployments.point = name
        await self._deployments.ensure()
        emit(log, "cascade_point_chosen", point=name or "that of the configuration")
