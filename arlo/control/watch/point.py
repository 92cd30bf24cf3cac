"""The operating point that `arlo config use` has chosen for a cascade that is served: in force within a second.

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
from arlo.control.gateway.process import made_run_dir
from arlo.control.reconcile.deployments import Deployments
from arlo.control.watch.tasks import file_mark
from arlo.errors import ArloError, ConfigError, GatewayError

log = logging.getLogger("arlo.control")

LOOK_S = 0.5
FILE = "cascade_point"


def choose_point(config: Config, name: str | None) -> Path:
    """Write down which point is to be in force; None: that of the configuration. ConfigError: there is none of it."""
    manifest = _manifest(config)
    if name is not None:
        manifest.point(name)
    path = made_run_dir(config) / FILE
    if name is None:
        path.unlink(missing_ok=True)
        return path
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

    async def run(self) -> None:
        """Watch the file until cancelled."""
        seen, starts = None, True
        while True:
            if (mark := file_mark(self._path)) != seen:
                name = self._read()
                try:
                    await self._use(name, starts=starts)
                    seen = mark
                except GatewayError:
                    await asyncio.sleep(LOOK_S)
                    continue  # it is restarting; whoever restarts it says so
                except ArloError as error:
                    emit(log, "cascade_point_refused", level=logging.ERROR, point=name, error=str(error))
                    seen = mark
            starts = False
            await asyncio.sleep(LOOK_S)

    def _read(self) -> str | None:
        try:
            return self._path.read_text().strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    async def _use(self, name: str | None, *, starts: bool) -> None:
        manifest, kept = _manifest(self._config), self._deployments.point
        chosen = manifest.point(name) if name is not None else None
        if starts and chosen and kept and manifest.point(kept).agreement > chosen.agreement:
            return  # an alarm of drift has raised it since it was chosen
        self._deployments.point = name
        await self._deployments.ensure()
        emit(log, "cascade_point_chosen", point=name or "that of the configuration")
