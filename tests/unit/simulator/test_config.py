"""Scenario files: TOML to sections and back, and what is said of a wrong one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arlo.config.field import hints
from arlo.errors import ConfigError
from arlo.simulator.scenario import config
from arlo.simulator.scenario.file import ARRAYS, OF_SERVED, SECTIONS, ScenarioConfig

BASE = Path("/somewhere")

WHOLE = """\
[run]
name = "all of it"
seed = 3
warmup_s = 5
[workload]
arrivals = "mmpp"
rate = 250.5
duration_s = 60
length = "uniform:1:512"
burst = 3
sojourn_ms = 200
[cluster]
scheme = "arlo"
workers = 4
slo_ms = 100
timeout_ms = 900
noise = 0.1
[dispatch]
policy = "rs"
[allocation]
kind = "periodic"
instances = [1, 3]
[scaling]
kind = "target"
max_workers = 8
[[runtime]]
max_length = 128
points = [[128, 1, 2.5], [128, 4, 6]]
max_batch = 4
[[runtime]]
max_length = 512
latency_ms = 5
dynamic = true
truth = [[512, 1, 5.5]]
[[fault]]
at_s = 10
worker = 7
restart_s = 5
[[fault]]
at_s = 20
worker = 1
kind = "slow"
factor = 1.5
"""


def parse(text: str) -> ScenarioConfig:
    return config.parse(text, base=BASE, source="s.toml")


def test_the_whole_file() -> None:
    found = parse(WHOLE)
    assert found.run.name == "all of it"
    assert found.allocation.instances == (1, 3)
    assert [runtime.max_length for runtime in found.runtime] == [128, 512]
    assert found.runtime[0].points == ((128, 1, 2.5), (128, 4, 6))
    assert [fault.kind for fault in found.fault] == ["fail", "slow"]
    assert parse(config.to_toml(found)) == found


def test_an_empty_file_is_all_defaults() -> None:
    assert parse("") == ScenarioConfig()
    assert parse(config.to_toml(ScenarioConfig())) == ScenarioConfig()


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    text = '[workload]\ntrace = "t/day.csv"\n[cluster]\nprofile = "./minilm"\n'
    found = config.parse(text, base=tmp_path)
    assert found.workload.trace == tmp_path / "t/day.csv"
    assert found.cluster.profile == str(tmp_path / "minilm")
    written = config.to_toml(found, base=tmp_path)
    assert 'trace = "./t/day.csv"' in written
    assert 'profile = "./minilm"' in written
    assert config.parse(written, base=tmp_path) == found
    assert config.parse(config.to_toml(found), base=Path("/elsewhere")) == found
    assert parse('[cluster]\nprofile = "bert-base"').cluster.profile == "bert-base"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[cluster", "s.toml is not TOML"),
        ("[clustre]\n", "s.toml:1: unknown section [clustre]: did you mean 'cluster'?"),
        ("[cluster]\nworkres = 1", "s.toml:2: cluster.workres is not a key of [cluster]: did you mean 'workers'?"),
        ('[cluster]\nworkers = "ten"', "s.toml:2: cluster.workers must be an integer, not 'ten'"),
        ("[cluster]\nworkers = 0", "s.toml:2: cluster.workers must be at least 1"),
        ("[cluster]\nslo_ms = inf", "s.toml:2: cluster.slo_ms must be above 0, at most 1,000,000,000 ms"),
        ("[allocation]\nreplacement_s = inf", "allocation.replacement_s must be a finite number"),
        ("[cluster]\nmax_lengths = [64, 0]", "s.toml:2: cluster.max_lengths must be at least 1 tokens, not 0"),
        ('[dispatch]\npolicy = "fcfs"', 's.toml:2: dispatch.policy must be "rs" or '),
        ("[run]\nwarmup_s = 9\n[workload]\nduration_s = 9", "s.toml:2: run.warmup_s must be below"),
        ('[workload]\ntrace = "a.csv"\narrivals = "poisson"', "s.toml:3: workload.arrivals is of drawn requests"),
        ('[workload]\narrivals = "possion"', 's.toml:2: workload.arrivals must be "poisson" or '),
        ("[workload]\nrate = 0", "s.toml:2: workload.rate must be above 0, at most 100,000,000 1/s, not 0"),
        ("[run]\nwarmup_s = 120", "s.toml:2: run.warmup_s must be below workload.duration_s (120)"),
        ("[runtime]\nmax_length = 4", "s.toml:1: runtime is written [[runtime]], once for each"),
        ("[[runtime]]\nlatency_ms = 4", "s.toml:1: runtime.max_length is missing"),
        ("[[runtime]]\nmax_length = 4", "s.toml:1: runtime.latency_ms or points is needed"),
        (
            "[[runtime]]\nmax_length = 4\nlatency_ms = 1\n\n[[runtime]]\nmax_length = 8\npoints = [[9, 1, 1.0]]",
            "s.toml:7: runtime.points has [9, 1, 1.0], beyond max_length 8",
        ),
        (
            "[[runtime]]\nmax_length = 8\nlatency_ms = 1\n[[runtime]]\nmax_length = 8\nlatency_ms = 2",
            "runtime.max_length must ascend, without one twice: [8, 8]",
        ),
        (
            '[cluster]\nprofile = "bert-base"\n[[runtime]]\nmax_length = 4\nlatency_ms = 1',
            "s.toml:2: cluster.profile is of a latency profile; leave it out with [[runtime]]",
        ),
        ("[allocation]\ninstances = [1, 2]", "s.toml:2: allocation.instances are 3 in all, but there are 10 workers"),
        ('[allocation]\nkind = "fixed"', "s.toml:1: allocation.instances is needed with kind"),
        (
            '[cluster]\nworkers = 9\n[scaling]\nkind = "target"\nmax_workers = 8',
            "s.toml:2: cluster.workers must be from scaling.min_workers (1) to max_workers (8), not 9",
        ),
        ("[[fault]]\nat_s = 1\nworker = 0\n[[fault]]\nat_s = 1\nworker = 10", "fault.worker must be from 0 to 9"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist: give the path of a TOML scenario file"):
        config.load(tmp_path / "no.toml")


def values(annotation: Any, field: Any) -> st.SearchStrategy[Any]:
    """Values of a key's type within its range, or its default."""
    doc = field.metadata["doc"]
    if get_origin(annotation) is Literal:
        return st.sampled_from(get_args(annotation))
    low = doc.minimum if doc.minimum is not None else (doc.above or 0) + 0.001
    high = doc.maximum if doc.maximum is not None else 1e9
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        return st.integers(int(low), int(high))
    if annotation is float:
        return st.floats(low, high)
    if annotation is str:
        return st.text(st.characters(codec="utf-8"))
    return st.just(field.default)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_round_trip(data: st.DataObject) -> None:
    """What is written is read back, whatever the values; sections whose keys depend on each other stay as they are."""
    made = {}
    for name in ("cluster", "dispatch"):
        cls = SECTIONS[name]
        chosen = {}
        for field in dataclasses.fields(cls):
            kind = hints(cls)[field.name]
            parts = [part for part in get_args(kind) if part is not type(None)] if type(None) in get_args(kind) else []
            drawn = data.draw(values(parts[0] if parts else kind, field))
            if field.name == "profile" and config.is_path(str(drawn)):
                drawn = "bert-large"
            # An empty name is left out of the file, and so is the same as none.
            if field.name == "bundle":
                drawn = "one"
            if field.name in (*OF_SERVED, "serves"):
                drawn = None
            chosen[field.name] = drawn if drawn != "" or not parts else None
        made[name] = cls(**chosen)
    whole = ScenarioConfig(**made)
    assert parse(config.to_toml(whole)) == whole


def test_every_key_is_documented() -> None:
    for cls in [*SECTIONS.values(), *ARRAYS.values()]:
        for field in dataclasses.fields(cls):
            assert len(field.metadata["doc"].text) > 4, field.name
            assert field.metadata["doc"].text.endswith((".", "`")), field.name
