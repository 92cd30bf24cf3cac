"""The choice of lengths in a build: where the latency comes from, what is refused, what the cache keeps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from arlo.compile.engines.onnxruntime import OnnxRuntimeEngine
from arlo.compile.job import Job
from arlo.compile.lengths.curve import from_points
from arlo.compile.steps.lengths import choose, longest_served
from arlo.errors import ConfigError
from arlo.profiler import LatencyProfile
from tests.unit.compile.conftest import MAX_TOKENS, profile_of


def changed(job: Job, **options: Any) -> Job:
    return dataclasses.replace(job, options=dataclasses.replace(job.options, **options))


def saved(profile: LatencyProfile, folder: Path) -> Path:
    path = folder / "profile.json"
    profile.save(path)
    return path


def test_measured_here_by_the_engine_and_once_only(job: Job) -> None:
    found = choose(job)
    assert found.curve.source == "measured"
    assert [length for length, _ in found.curve.curve.points] == [16, 32, 48]
    assert found.curve.about == f"measured on {job.engine.device()}, 1 thread, CPU time: a dynamic runtime at 3 lengths"
    assert all(cost_us > 0 for _, cost_us in found.curve.curve.points)
    assert found.lengths[-1] == MAX_TOKENS
    # Other requests: the choice is another one, on the same measured points.
    assert choose(changed(job, histogram="fixed:10")).curve == found.curve


def test_requests_that_are_too_long_count_as_the_longest(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    line = from_points([(length, 1000.0 * length) for length in (16, 32, 40)], "measured")
    monkeypatch.setattr("arlo.compile.steps.lengths.measured_here", lambda job, longest: line)
    found = choose(changed(job, max_length=40, max_runtimes=2))
    assert found.curve.curve.reading == "line"
    # uniform:2:48 up to 40: (24, 40) is what halves a line; 48 > 40 counts as 40.
    assert found.lengths == (24, 40)
    assert found.traffic.cut_share == pytest.approx(8 / 47, abs=1e-4)
    assert any("17.02% of the requests are longer than 40 tokens" in note for note in found.notes)


def test_assumed_where_this_machine_cannot_run_it(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OnnxRuntimeEngine, "cannot_run", lambda _: "there is no such device here")
    found = choose(job)
    assert found.curve.source == "assumed"
    assert found.curve.relative
    assert "assumed, not measured: there is no such device here" in found.notes[0]
    assert "--latency-profile" in found.notes[0]


def test_static_runtimes_of_a_profile_are_what_can_be_chosen(job: Job, tmp_path: Path) -> None:
    path = saved(profile_of({12: 100, 20: 200, 32: 300, 48: 400}, {12: 1, 48: 2}), tmp_path)
    found = choose(changed(job, latency_profile=path, max_runtimes=3))
    assert (found.curve.source, found.curve.curve.reading) == ("latency profile", "steps")
    assert found.curve.notes == ()
    assert set(found.lengths) <= {12, 20, 32, 48}
    assert len(found.lengths) == 3


def test_a_dynamic_runtime_of_a_profile_stands_for_static_ones(job: Job, tmp_path: Path) -> None:
    line = {length: 1000.0 + 100 * length for length in (8, 16, 24, 32, 40, 48)}
    path = saved(profile_of({48: 7000.0}, line, model="other"), tmp_path)
    found = choose(changed(job, latency_profile=path))
    assert found.curve.curve.reading == "line"
    assert "stand for those of static ones" in found.notes[0]
    assert found.notes[1] == "profile.json was measured with the model 'other', and this is 'tiny'"
    steps = {length: 100.0 * -(-length // 24) for length in (6, 12, 18, 24, 30, 36, 42, 48)}
    path = saved(profile_of({}, steps), tmp_path)
    stairs = choose(changed(job, latency_profile=path))
    assert stairs.curve.curve.reading == "steps"
    assert stairs.lengths == (24, 48)


@pytest.mark.parametrize(
    ("static", "dynamic", "why"),
    [
        ({16: 1, 24: 2, 30: 3, 32: 4}, {}, r"reach 32 tokens.*--max-length 32"),
        ({48: 1}, {}, r"too few lengths.*--lengths 64:48:64|too few lengths"),
        ({}, {24: 1, 48: 2}, "too few lengths"),
    ],
)
def test_a_profile_that_does_not_say_enough_is_refused(
    job: Job, tmp_path: Path, static: dict[int, float], dynamic: dict[int, float], why: str
) -> None:
    path = saved(profile_of(static, dynamic), tmp_path)
    with pytest.raises(ConfigError, match=why):
        choose(changed(job, latency_profile=path))


def test_two_static_runtimes_are_enough_with_a_warning(job: Job, tmp_path: Path) -> None:
    path = saved(profile_of({24: 1, 48: 2}, {}), tmp_path)
    found = choose(changed(job, latency_profile=path))
    assert found.lengths == (24, 48)
    assert found.notes == ("only 2 lengths were measured, and only these can be chosen",)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"histogram": "tweet"}, "lengths are paper, tweets"),
        ({"histogram": "no/such/file.csv"}, "does not exist"),
        ({"histogram": "file:no/such/file.csv"}, "no/such/file.csv"),
        ({"latency_profile": Path("none.json")}, "does not exist: write it with `arlo compile profile`"),
    ],
)
def test_wrong_options(job: Job, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        choose(changed(job, **options))


def test_the_longest_length(job: Job) -> None:
    options = job.options
    assert longest_served(options, None) == 512
    assert longest_served(options, 48) == 48
    assert longest_served(options, 8192) == 512
    assert longest_served(dataclasses.replace(options, max_length=8192), 8192) == 8192
    assert longest_served(dataclasses.replace(options, lengths=(16, 20)), 48) == 20
