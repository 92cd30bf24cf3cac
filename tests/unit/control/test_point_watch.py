"""The operating point that `arlo config use` writes down: when it is taken up, and when it is not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arlo.cascade.manifest import CascadeManifest
from arlo.control.watch.point import PointWatch, choose_point
from arlo.errors import ConfigError, GatewayError
from tests.fakes.processes import until
from tests.integration.gateway.replayed import write_cascade


class Deployments:
    """What the watch needs of the real one; `fails` times the gateway is away."""

    def __init__(self, point: str | None = None, fails: int = 0) -> None:
        self.point, self.fails = point, fails
        self.told: list[str | None] = []

    async def ensure(self) -> None:
        if self.fails:
            self.fails -= 1
            raise GatewayError("away")
        self.told.append(self.point)


@contextlib.asynccontextmanager
async def watching(config: Any, deployments: Deployments) -> AsyncIterator[None]:
    task = asyncio.create_task(PointWatch(config, deployments).run())  # type: ignore[arg-type]
    try:
        await asyncio.sleep(0.1)
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CascadeManifest]:
    folder = tmp_path_factory.mktemp("cascade")
    return folder / "cascade.json", write_cascade(folder)


@pytest.fixture
def config(manifest: tuple[Path, CascadeManifest], tmp_path: Path) -> Any:
    return SimpleNamespace(cascade=SimpleNamespace(manifest=manifest[0]), workers=SimpleNamespace(run_dir=tmp_path))


@pytest.fixture
def by_agreement(manifest: tuple[Path, CascadeManifest]) -> tuple[str, str]:
    """A point, and one that agrees more often with the last stage."""
    points = sorted(manifest[1].points, key=lambda point: point.agreement)
    assert points[0].agreement < points[-1].agreement
    return points[0].name, points[-1].name


async def test_a_choice_is_taken_up_again_and_again(config: Any, by_agreement: tuple[str, str]) -> None:
    less, more = by_agreement
    deployments = Deployments(fails=1)
    async with watching(config, deployments):
        assert deployments.told == [], "nothing was chosen"
        choose_point(config, more)
        await until(lambda: deployments.told == [more], "the choice, though the gateway was away at first")
        choose_point(config, less)
        await until(lambda: deployments.told[1:] == [less], "a less careful one")
        deployments.point = more  # an alarm of drift
        choose_point(config, less)
        await until(lambda: deployments.told[2:] == [less], "the same one, chosen again")
        with pytest.raises(ConfigError, match="no operating point 'none'"):
            choose_point(config, "none")
        choose_point(config, None)
        await until(lambda: deployments.told[3:] == [None], "that of the configuration")


async def test_a_start_does_not_lower_what_an_alarm_has_raised(config: Any, by_agreement: tuple[str, str]) -> None:
    less, more = by_agreement
    choose_point(config, less)
    deployments = Deployments(point=more)
    async with watching(config, deployments):
        assert deployments.told == []
        choose_point(config, less)
        await until(lambda: deployments.told == [less], "chosen since")
    fresh = Deployments()
    async with watching(config, fresh):
        await until(lambda: fresh.told == [less], "what was chosen before the start")


async def test_a_point_that_is_not_there_is_named_once(config: Any) -> None:
    (config.workers.run_dir / "cascade_point").write_text("gone\n")
    deployments = Deployments()
    async with watching(config, deployments):
        assert deployments.point is None
        assert deployments.told == []
