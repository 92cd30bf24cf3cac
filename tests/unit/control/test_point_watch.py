"""The operating point that `arlo config use` writes down: when it is taken up, and when it is not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arlo.cascade.manifest import CascadeManifest
from arlo.control.watch.feed import Snapshot
from arlo.control.watch.point import PointWatch, choose_point
from arlo.errors import ConfigError, GatewayError
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


async def look(watch: PointWatch) -> None:
    await watch.on_stats(Snapshot(()))


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
    watch = PointWatch(config.cascade, config.workers.run_dir, deployments)  # type: ignore[arg-type]
    await look(watch)
    assert deployments.told == [], "nothing was chosen"
    choose_point(config, config.cascade, more)
    with pytest.raises(GatewayError):
        await look(watch)
    await look(watch)
    assert deployments.told == [more], "the choice, though the gateway was away at first"
    choose_point(config, config.cascade, less)
    await look(watch)
    assert deployments.told[1:] == [less], "a less careful one"
    deployments.point = more  # an alarm of drift
    choose_point(config, config.cascade, less)
    await look(watch)
    assert deployments.told[2:] == [less], "the same one, chosen again"
    with pytest.raises(ConfigError, match="no operating point 'none'"):
        choose_point(config, config.cascade, "none")
    choose_point(config, config.cascade, None)
    await look(watch)
    await look(watch)
    assert deployments.told[3:] == [None], "that of the configuration"


async def test_a_start_does_not_lower_what_an_alarm_has_raised(config: Any, by_agreement: tuple[str, str]) -> None:
    less, more = by_agreement
    choose_point(config, config.cascade, less)
    deployments, fresh = Deployments(point=more), Deployments()
    watch = PointWatch(config.cascade, config.workers.run_dir, deployments)  # type: ignore[arg-type]
    await look(watch)
    assert deployments.told == []
    choose_point(config, config.cascade, less)
    await look(watch)
    assert deployments.told == [less], "chosen since"
    await look(PointWatch(config.cascade, config.workers.run_dir, fresh))  # type: ignore[arg-type]
    assert fresh.told == [less], "what was chosen before the start"


async def test_a_point_that_is_not_there_is_named_once(config: Any, caplog: pytest.LogCaptureFixture) -> None:
    (config.workers.run_dir / "cascade_point").write_text("gone\n")
    deployments = Deployments()
    watch = PointWatch(config.cascade, config.workers.run_dir, deployments)  # type: ignore[arg-type]
    await look(watch)
    await look(watch)
    assert deployments.point is None
    assert deployments.told == []
    assert caplog.text.count("cascade_point_refused") == 1
