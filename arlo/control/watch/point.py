"""Applies the operating point that `arlo config use` has chosen for a served cascade, within a second.

The point's name is in a file in workers.run_dir, where it outlives the control plane. The gateway applies it between
two decisions; no worker moves for it.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from arlo.config import Config
from arlo.config.flows import CascadeConfig
from arlo.config.stages import cascade_manifest
from arlo.control.events import emit
from arlo.control.gateway.process import made_run_dir
from arlo.control.reconcile.deployments import Deployments
from arlo.control.watch.feed import Snapshot
from arlo.control.watch.tasks import file_mark
from arlo.errors import ArloError, GatewayError

log = logging.getLogger("arlo.control")

FILE = "cascade_point"


def choose_point(config: Config, cascade: CascadeConfig, name: str | None) -> Path:
    """Write down the point to put in force; None: the configuration's. ConfigError if the cascade lacks it."""
    if name is not None:
        cascade_manifest(cascade.manifest).point(name)
    path = made_run_dir(config) / FILE
    if name is None:
        path.unlink(missing_ok=True)
        return path
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(name + "\n")
    fresh.replace(path)
    return path


class PointWatch:
    """See the module."""

    def __init__(self, cascade: CascadeConfig, run_dir: Path, deployments: Deployments) -> None:
        self._cascade, self._deployments = cascade, deployments
        self._path = run_dir / FILE
        self._mark: tuple[int, int] | None = None  # of the file, as last applied
        self._starts = True

    async def on_stats(self, seen: Snapshot) -> None:
        """Check the file. GatewayError: the point is not in force yet; retry."""
        if (mark := file_mark(self._path)) != self._mark:
            name = self._read()
            try:
                await self._use(name, starts=self._starts)
            except GatewayError:
                raise
            except ArloError as error:
                emit(log, "cascade_point_refused", level=logging.ERROR, point=name, error=str(error))
            self._mark = mark
        self._starts = False

    def _read(self) -> str | None:
        try:
            return self._path.read_text().strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    async def _use(self, name: str | None, *, starts: bool) -> None:
        manifest, kept = cascade_manifest(self._cascade.manifest), self._deployments.point
        chosen = manifest.point(name) if name is not None else None
        if starts and chosen and kept and manifest.point(kept).agreement > chosen.agreement:
            return  # a drift alarm has raised it since it was chosen
        self._deployments.point = name
        await self._deployments.ensure()
        emit(log, "cascade_point_chosen", point=name or "that of the configuration")
