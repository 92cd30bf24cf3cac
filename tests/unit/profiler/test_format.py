"""The latency profile as a file and as a value: written, read, refused, resumed, applied to a manifest."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arlo import config
from arlo.catalog.manifest import InputTensor, LatencyPoint, Manifest, Runtime
from arlo.errors import ConfigError
from arlo.profiler import How, LatencyProfile, Point, RuntimeProfile, runtime_hash, with_profile
from arlo.profiler.findings import staircase_lines, warnings
from arlo.profiler.job import keep_points


def point(length: int, batch: int = 1, mean_us: float = 1000.0, **other: Any) -> Point:
    values: dict[str, Any] = {"p50_us": mean_us, "p98_us": mean_us, "samples": 50, "half_width_us": 0.01 * mean_us}
    return Point(**{**values, "length": length, "batch": batch, "mean_us": mean_us, **other})


def runtime(max_length: int, *, dynamic: bool = False, name: str = "") -> Runtime:
    return Runtime(
        name=name or f"m_len{max_length}",
        max_length=max_length,
        max_batch=2,
        dynamic=dynamic,
        engine="emulated",
        precision="fp32",
        device="before",
        latency=(LatencyPoint(length=max_length, batch=1, latency_us=1),),
        files={"config.pbtxt": "abc"},
    )


STATIC = (runtime(64), runtime(128), runtime(192))
DYNAMIC = dataclasses.replace(runtime(256, dynamic=True, name="m_dyn"), max_batch=1)
MANIFEST = Manifest(
    model="m", task="emulated", source="test", tokenizer=None, inputs=(), outputs=(), runtimes=(*STATIC, DYNAMIC)
)


def entry(of: Runtime, *points: Point, shorter: Point | None = None) -> RuntimeProfile:
    return RuntimeProfile(
        name=of.name,
        hash=runtime_hash(of),
        max_length=of.max_length,
        max_batch=of.max_batch,
        dynamic=of.dynamic,
        points=points,
        shorter=shorter,
    )


PROFILE = LatencyProfile(
    model="m",
    device="a test",
    versions={"arlo": "1", "triton": "2"},
    date="2026-01-02T03:04:05+00:00",
    provenance="measured through Triton 2",
    how=How(confidence=0.95, precision=0.02, max_seconds=10.0, threads=1, outputs=("y",)),
    runtimes=(
        *(
            entry(of, point(of.max_length, 1, 10.0 * of.max_length), point(of.max_length, 2, 15.0 * of.max_length))
            for of in STATIC
        ),
        entry(DYNAMIC, *(point(length, 1, 700.0 * (1 + (length - 1) // 64)) for length in range(32, 257, 32))),
    ),
)


def test_written_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "profile.json"
    PROFILE.save(path)
    assert LatencyProfile.load(path) == PROFILE
    assert [file.name for file in path.parent.iterdir()] == ["profile.json"]
    raw = json.loads(path.read_text())
    assert raw["format"] == 1
    assert raw["staircase"]["shape"] == "linear"
    assert raw["runtimes"][3]["staircase"]["step"] == 64
    assert raw["runtimes"][3]["staircase"]["edges"] == [64, 128, 192, 256]
    assert raw["runtimes"][0]["staircase"] is None


def change(*path: str | int, to: Any = dataclasses.MISSING) -> Callable[[dict[str, Any]], None]:
    """Set, or without `to` remove, what lies at a path of the JSON document."""

    def edit(raw: Any) -> None:
        for step in path[:-1]:
            raw = raw[step]
        if to is dataclasses.MISSING:
            del raw[path[-1]]
        else:
            raw[path[-1]] = to

    return edit


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (change("format", to=2), "its format is 2, not 1"),
        (change("runtimes"), "it has no list `runtimes`"),
        (change("runtimes", to=3), "it has no list `runtimes`"),
        (change("runtimes", to=[4]), r"runtimes\[0\] must be an object"),
        (change("device"), "lacks the field 'device'"),
        (change("how", "precision", to="high"), "how.precision must be a number, not 'high'"),
        (change("how", to=None), "how must be an object"),
        (change("runtimes", 1, "max_length", to=True), r"runtimes\[1\].max_length must be a whole number"),
        (change("runtimes", 1, "name", to="m_len64"), "a runtime is listed twice"),
        (change("runtimes", 0, "points", 0, "mean_us", to=0), r"runtimes\[0\].points\[0\]: mean_us must be above 0"),
        (change("runtimes", 0, "points", 0, "samples", to=0), "samples must be at least 1"),
        (change("runtimes", 0, "points", 0, "half_width_us", to=-1), "half_width_us must be at least 0"),
        (change("runtimes", 0, "points", 0, "batch", to=2), "two points for one length and batch"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, edit: Callable[[Any], None], problem: str) -> None:
    raw = PROFILE.as_dict()
    raw = json.loads(json.dumps(raw))
    edit(raw)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match=problem) as caught:
        LatencyProfile.load(path)
    assert str(path) in str(caught.value)
    assert "arlo compile profile" in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    with pytest.raises(ConfigError, match="does not exist: write it with `arlo compile profile`"):
        LatencyProfile.load(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        LatencyProfile.load(path)
    with pytest.raises(ConfigError, match="cannot be written"):
        PROFILE.save(path / "below.json")


def test_with_profile_replaces_the_latencies() -> None:
    applied = with_profile(MANIFEST, PROFILE)
    assert applied.runtimes[1].latency == (
        LatencyPoint(length=128, batch=1, latency_us=1280),
        LatencyPoint(length=128, batch=2, latency_us=1920),
    )
    assert [len(each.latency) for each in applied.runtimes] == [2, 2, 2, 8]
    assert {each.device for each in applied.runtimes} == {"a test"}
    kept = dataclasses.replace(
        applied, runtimes=tuple(dataclasses.replace(r, latency=(), device="") for r in applied.runtimes)
    )
    assert kept == dataclasses.replace(
        MANIFEST, runtimes=tuple(dataclasses.replace(r, latency=(), device="") for r in MANIFEST.runtimes)
    )
    # What a profile was applied to is still what was measured.
    assert with_profile(applied, PROFILE) == applied


def test_what_a_load_takes_is_kept_applied_and_not_lost(tmp_path: Path) -> None:
    known = PROFILE.with_runtime(dataclasses.replace(PROFILE.runtimes[0], load_ms=850))
    known.save(tmp_path / "profile.json")
    assert LatencyProfile.load(tmp_path / "profile.json") == known
    raw = json.loads((tmp_path / "profile.json").read_text())
    for runtime in raw["runtimes"]:  # as it was written before loads were timed
        del runtime["load_ms"]
    (tmp_path / "older.json").write_text(json.dumps(raw))
    assert LatencyProfile.load(tmp_path / "older.json") == PROFILE
    applied = with_profile(MANIFEST, known)
    assert [runtime.load_ms for runtime in applied.runtimes] == [850, None, None, None]
    assert with_profile(applied, PROFILE).runtimes[0].load_ms == 850  # of a worker that had loaded it already
    assert [each.load_ms for each in keep_points(fresh(), known).runtimes] == [850, None, None, None]
    ids = InputTensor(name="input_ids", datatype="INT64", role="ids")
    dataclasses.replace(applied, inputs=(ids,)).save(tmp_path)
    assert Manifest.load(tmp_path).runtimes[0].load_ms == 850
    (tmp_path / "arlo.json").write_text((tmp_path / "arlo.json").read_text().replace("850", "-1"))
    with pytest.raises(ConfigError, match="m_len64 takes -1 ms to load"):
        Manifest.load(tmp_path)


def test_with_profile_refuses_what_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="of model 'n', but the repository has 'm'"):
        with_profile(MANIFEST, dataclasses.replace(PROFILE, model="n"))
    rebuilt = dataclasses.replace(STATIC[1], files={"config.pbtxt": "other"})
    manifest = dataclasses.replace(MANIFEST, runtimes=(STATIC[0], rebuilt))
    with pytest.raises(
        ConfigError, match="another build of runtime m_len128: measure this one with `arlo compile profile`"
    ):
        with_profile(manifest, PROFILE)
    lacking = dataclasses.replace(PROFILE, runtimes=PROFILE.runtimes[1:])
    with pytest.raises(ConfigError, match="no points for runtime m_len64: run `arlo compile profile` again"):
        with_profile(MANIFEST, lacking)
    short = PROFILE.with_runtime(entry(DYNAMIC, point(64)))
    with pytest.raises(ConfigError, match="m_dyn has no point at its max_length 256"):
        with_profile(MANIFEST, short)


def test_with_part_of_a_profile() -> None:
    part = dataclasses.replace(PROFILE, runtimes=(PROFILE.runtimes[0], entry(STATIC[1])))
    applied = with_profile(MANIFEST, part, partial=True)
    assert applied.runtimes[0].latency[0].latency_us == 640
    assert applied.runtimes[1:] == MANIFEST.runtimes[1:]


def fresh(**changes: Any) -> LatencyProfile:
    """What a new run starts from: no points yet."""
    runtimes = tuple(dataclasses.replace(each, points=(), shorter=None) for each in PROFILE.runtimes)
    return dataclasses.replace(PROFILE, **{"runtimes": runtimes, "date": "now", **changes})


def test_resuming_keeps_the_points() -> None:
    assert keep_points(fresh(), PROFILE) == PROFILE


def test_resuming_measures_a_rebuilt_runtime_again() -> None:
    new = fresh()
    rebuilt = dataclasses.replace(new.runtimes[0], hash="other")
    kept = keep_points(new.with_runtime(rebuilt), PROFILE)
    assert [len(each.points) for each in kept.runtimes] == [0, 2, 2, 8]


def test_resuming_with_more_time_measures_imprecise_points_again() -> None:
    rough = PROFILE.with_runtime(entry(STATIC[0], point(64, 1, half_width_us=100.0), point(64, 2)))
    same, longer = fresh(), fresh(how=dataclasses.replace(PROFILE.how, max_seconds=20.0))
    assert len(keep_points(same, rough).runtimes[0].points) == 2
    assert [p.batch for p in keep_points(longer, rough).runtimes[0].points] == [2]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"model": "other"}, "model"),
        ({"device": "other"}, "device"),
        ({"versions": {"arlo": "2"}}, "versions"),
        ({"provenance": "estimated"}, "provenance"),
        ({"how": dataclasses.replace(PROFILE.how, precision=0.01)}, "precision"),
        ({"how": dataclasses.replace(PROFILE.how, threads=2)}, "threads"),
        ({"how": dataclasses.replace(PROFILE.how, outputs=("z",))}, "outputs"),
    ],
)
def test_points_of_another_kind_are_not_mixed(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"measured with another {name} .*--fresh"):
        keep_points(fresh(**changes), PROFILE)


def test_findings_of_a_good_profile() -> None:
    assert warnings(PROFILE) == []
    maximum, by_length = staircase_lines(PROFILE)
    assert maximum.startswith("maximum lengths: linear")
    assert by_length.startswith("m_dyn, by length: steps of 64 tokens")


def test_findings_of_a_bad_one() -> None:
    static = entry(
        STATIC[0],
        point(64, 1, 1000.0, other_load=0.4, half_width_us=90.0),
        point(64, 2, 1000.0, p98_us=2500.0, queue_us=300.0),
        shorter=point(32, 1, 500.0),
    )
    alone = entry(STATIC[1], point(128, 1, 1000.0))
    busy, imprecise, spread, queued, not_static, left_out = warnings(PROFILE.with_runtime(static).with_runtime(alone))
    assert "took up to 40% of its CPU time at 1 point(s)" in busy
    assert "m_len64 at length 64, batch 1 (+-9.0%)" in imprecise
    assert "m_len64 at length 64, batch 2" in spread
    assert "m_len64 at length 64, batch 2 (0.3 ms)" in queued
    assert "a row of 32 tokens padded to 64 took 0.50 ms instead of 1.00 ms" in not_static
    assert "the largest batch was not measured: m_len128 (1 of 2 rows)" in left_out


def test_the_configuration_names_it(tmp_path: Path) -> None:
    text = '[model]\nrepository = "r"\nslo_ms = 50\nlatency_profile = "p.json"\n[deployment]\ndynamic = 1\n'
    assert config.parse(text, base=tmp_path).model.latency_profile == tmp_path / "p.json"
    without = text.replace('latency_profile = "p.json"\n', "")
    assert config.parse(without, base=tmp_path).model.latency_profile is None
