"""Several models on the same simulated workers: the file, the merged stream of requests, what each one gets."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arlo.errors import ConfigError
from arlo.simulator.division import divide
from arlo.simulator.run import run
from arlo.simulator.scenario.build import build
from arlo.simulator.scenario.config import parse, to_toml
from arlo.simulator.scenario.merged import MergedWorkload

BASE = """\
[workload]
arrivals = "poisson"
duration_s = 20
length = "uniform:1:256"
rate = 300
[cluster]
workers = 2
profile = "bert-base-a100"
max_lengths = [64, 256]
max_batch = 16
bundle = "all"
slo_ms = 50
timeout_ms = 500
[dispatch]
batching = "deadline"
"""
TWO = """\
[[model]]
name = "a"
rate = 900
[[model]]
name = "b"
length = "fixed:40"
slo_ms = 20
max_lengths = [64]
share = 2
"""


def made(text: str) -> Any:
    return build(parse(text, base=Path(), source="two.toml")).scenario


def test_each_model_has_its_runtimes_requests_and_limits() -> None:
    scenario = made(BASE + TWO)
    assert [runtime.name for runtime in scenario.runtimes] == ["a/static-64", "a/static-256", "b/static-64"]
    assert scenario.of_runtimes() == [(0, 50), (0, 50), (1, 20)]
    first, second = scenario.models
    assert (first.slo_ms, first.timeout_ms, first.share) == (50, 500, 1)
    assert (second.slo_ms, second.timeout_ms, second.share) == (20, 500, 2)
    assert second.workload.expected() == pytest.approx(first.workload.expected() / 3)
    config = parse(BASE + TWO, base=Path())
    assert parse(to_toml(config), base=Path()) == config


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('bundle = "all"', 'bundle = "one"', 'cluster.bundle must be "all" with [[model]]'),
        ('name = "b"', 'name = "a"', "model.name is needed for each [[model]], one of its own: ['a', 'a']"),
        ('name = "b"', "", "model.name is missing"),
        ("share = 2", "share = 0", "model.share must be above 0"),
        ("share = 2", "shares = 2", "two.toml:24: model.shares is not a key of [model]: did you mean 'share'?"),
    ],
)
def test_refused(old: str, new: str, said: str) -> None:
    assert old in BASE + TWO
    with pytest.raises(ConfigError) as caught:
        parse((BASE + TWO).replace(old, new), base=Path(), source="two.toml")
    assert said in str(caught.value)


def test_the_streams_are_merged_in_order_and_whole() -> None:
    scenario = made(BASE + TWO)
    assert isinstance(scenario.workload, MergedWorkload)
    chunks = list(scenario.workload.chunks_by_model())
    arrived, length, model = (np.concatenate(part) for part in zip(*chunks, strict=True))
    assert (np.diff(arrived) >= 0).all()
    for number, one in enumerate(scenario.models):
        own = [np.concatenate(part) for part in zip(*one.workload.chunks(), strict=True)]
        assert (arrived[model == number] == own[0]).all()
        assert (length[model == number] == own[1]).all()


def figures(result: Any) -> dict[str, Any]:
    return {
        key: value for key, value in result.summary().items() if key not in ("wall_s", "scenario", "models", "runtimes")
    }


def test_one_model_in_a_table_is_a_plain_scenario() -> None:
    plain, one = run(made(BASE)), run(made(BASE + '[[model]]\nname = "a"\n'))
    assert figures(plain) == figures(one)
    assert (one.models[0]["requests"], one.models[0]["p98_ms"]) == (plain.requests, plain.p98_ms)


def test_the_models_make_up_the_whole() -> None:
    result = run(made(BASE + TWO))
    assert result.requests == sum(model["requests"] for model in result.models)
    assert result.outcomes["on_time"] == sum(model["on_time"] for model in result.models)
    served = {name: sum(r["served"] for r in result.runtimes if r["name"].startswith(name)) for name in ("a/", "b/")}
    assert served == {f"{model['name']}/": model["on_time"] + model["late"] for model in result.models}
    assert result.slo_attainment == 1
    assert figures(run(made(BASE + TWO))) == figures(result)


@pytest.mark.parametrize("share", [1, 4])
def test_a_flood_of_one_costs_the_other_nothing(share: int) -> None:
    """a asks for five times what the workers do; b for a tenth of that."""
    text = (BASE + TWO).replace("rate = 900", "rate = 60000").replace("share = 2", f"share = {share}\nrate = 2000")
    flood, other = run(made(text)).models
    assert flood["slo_attainment"] < 0.5
    assert other["slo_attainment"] > 0.98


def test_the_division_is_the_best_of_all() -> None:
    three = (
        BASE.replace("workers = 2", "workers = 5").replace("duration_s = 20", "duration_s = 3")
        + """\
[[model]]
name = "a"
rate = 9000
[[model]]
name = "b"
rate = 12000
length = "fixed:40"
[[model]]
name = "c"
rate = 100
"""
    )
    config = parse(three, base=Path())
    found = divide(config, [5], jobs=1)[0]

    def on_time(counts: tuple[int, ...]) -> int:
        total = 0
        for model, count in zip(config.model, counts, strict=True):
            one = config.of(model)
            cluster = dataclasses.replace(one.cluster, workers=count)
            total += run(build(dataclasses.replace(one, cluster=cluster)).scenario).outcomes["on_time"]
        return total

    ways = {counts: on_time(counts) for counts in itertools.product(range(1, 4), repeat=3) if sum(counts) == 5}
    assert ways[found.workers] == max(ways.values()) > min(ways.values())
    assert found.slo_attainment == ways[found.workers] / sum(result.requests for result in found.alone)
    assert found.shared.requests == sum(result.requests for result in found.alone)
