"""The runtime scheduler of a cascade with workers of each stage's own: another operating point brings another plan."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arlo import proto
from arlo.cascade.manifest import CascadeManifest, Point, Stage, repository_hash
from arlo.cascade.spec import hard
from arlo.config import load
from arlo.config.stages import cascade_manifest
from arlo.control.mode import Cascade, mode_of
from arlo.control.serve import load_manifest
from arlo.control.watch import scheduler as module
from arlo.control.watch.scheduler import RuntimeScheduler
from arlo.planning.cascade import Stages
from arlo.workers.emulated.repository import write_emulated_repository
from tests.fakes.noted_wishes import Notes

SERVE = """\
[cascade]
manifest = "cascade.json"
slo_ms = 100
workers = [3, 3]
[workers]
run_dir = "run"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cascade_manifest.cache_clear()
    (tmp_path / "run").mkdir()
    stages = []
    for name in ("small", "large"):
        write_emulated_repository(tmp_path / name, model=name, max_lengths=(64,), latency_ms=(5,))
        stages.append(Stage(name=name, repository=name, manifest_sha256=repository_hash(tmp_path / name)))
    common: dict[str, Any] = {"search": "exact", "objective": "mean", "accuracy": None, "mean_ms": 1.0}
    CascadeManifest(
        name="kinds",
        task="emulated",
        labels=("a", "b"),
        stages=tuple(stages),
        points=tuple(
            Point(name=name, reach=(1.0, reach), agreement=agreement, rules=((hard(t),),), **common)
            for name, reach, agreement, t in (("ap", 0.2, 0.9, 0.6), ("safe", 1.0, 1.0, 0.99))
        ),
        default_point="ap",
    ).save(tmp_path)
    (tmp_path / "serve.toml").write_text(SERVE)
    return tmp_path


async def test_another_point_brings_another_plan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(folder / "serve.toml")
    mode = mode_of(config, load_manifest(config))
    assert isinstance(mode, Cascade)
    notes, deployments = Notes(6), SimpleNamespace(point=None)
    now_s = [1000.0]
    monkeypatch.setattr(module, "monotonic_s", lambda: now_s[0])
    scheduler = RuntimeScheduler(mode, notes, deployments, Counter())  # type: ignore[arg-type]
    assert isinstance(scheduler.planner.subject, Stages)
    notes.want(scheduler.first_placement())
    counts = {"kinds.small": [0] * 65, "kinds.large": [0] * 65}
    for _ in range(600):
        now_s[0] += 0.1
        for name, rows in (("kinds.small", 50), ("kinds.large", 10)):
            counts[name][60] += rows
        stats = {}
        for name, lengths in counts.items():
            stats[name] = proto.message("Stats")(started_at_ms=1, uptime_ns=round(now_s[0] * 1e9), model=name)
            stats[name].at_ms = round(now_s[0] * 1000)
            stats[name].arrivals_by_length.extend(lengths)
        await scheduler.see(stats["kinds.large"], "kinds.large")
        await scheduler.see(stats["kinds.small"])
    await scheduler.plan("period")
    before = Counter(notes.desired.values())
    assert max(before.values()) > 3, "most rows end at the first stage"
    assert not mode.turned(scheduler.planner, deployments)  # type: ignore[arg-type]
    deployments.point = "safe"
    assert mode.turned(scheduler.planner, deployments)  # type: ignore[arg-type]
    await scheduler.plan("point")
    assert sorted(Counter(notes.desired.values()).values()) == [3, 3]
    assert scheduler.plans[-1].reason == "point"
    by_model = scheduler.plans[-1].demand_by_model
    assert by_model["kinds.large"] == pytest.approx(by_model["kinds.small"], rel=0.01), "as it will be"
    assert mode.in_force(deployments).name == "safe"  # type: ignore[arg-type]
    assert not mode.turned(scheduler.planner, deployments)  # type: ignore[arg-type]


def test_a_point_of_the_same_reach_brings_none(folder: Path) -> None:
    manifest = CascadeManifest.load(folder)
    points = tuple(dataclasses.replace(point, reach=(1.0, 0.2)) for point in manifest.points)
    dataclasses.replace(manifest, points=points).save(folder)
    cascade_manifest.cache_clear()
    config = load(folder / "serve.toml")
    mode, deployments = mode_of(config, load_manifest(config)), SimpleNamespace(point="safe")
    assert not mode.turned(mode.planner(), deployments)  # type: ignore[arg-type]
