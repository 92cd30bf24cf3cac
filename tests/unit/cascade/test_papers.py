"""Searches and schemes as Tabi, HybridServe, INFaaS and Cocktail have them, in benchmarks/papers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from arlo.cascade.search.table import Table
from arlo.cascade.spec import hard
from arlo.cascade.study import Measured, Study
from arlo.errors import ConfigError
from arlo.simulator.cascade.rows import read_study
from arlo.simulator.scenario.config import parse
from benchmarks.papers import schemes
from benchmarks.papers.hybridserve import search as hybridserve
from benchmarks.papers.tabi import ablation
from benchmarks.papers.tabi import search as tabi

from .conftest import EXAMPLES, LOAD, Made, fit, of_records, said_by


def test_printed_benefits() -> None:
    table = Table.of([[0.9], [0.4], [0.6]], np.ones((3, 2)), (1, 3))
    assert hybridserve.reach(table, [0.5]) == pytest.approx([1, 1 / 3])
    assert hybridserve.printed_benefits((1, 1, 0.752, 0.47), (1, 3, 9, 30)) == pytest.approx([-1, -0.768, 1.692])


def test_even_cuts() -> None:
    assert hybridserve.spaced(0.8, 2) == pytest.approx((0.4,))
    assert hybridserve.spaced(0.9, 3, 0.5) == pytest.approx((0.633333, 0.766667), abs=1e-6)
    assert hybridserve.spaced(0.1, 3, log=True) == pytest.approx((0.1 / 10 ** (4 / 3), 0.1 / 10 ** (2 / 3)))
    assert hybridserve.floor_of("max", 2, squared=True) == 0.25
    assert hybridserve.floor_of("margin", 2, squared=False) == 0


def test_gpu_time() -> None:
    assert tabi.cost((7, 22 * 0.83), (1, 0.302), (5, 2)) == pytest.approx(4.157, abs=5e-4)
    assert tabi.cost((22,), (1,), (2,)) == 11


def measured(rows: int = 1500) -> tuple[list[Measured], np.ndarray]:
    said, y = said_by(rows, (1.5, 2.2, 3.5))
    rng = np.random.default_rng(3)
    return [Measured(s, ms * rng.uniform(0.8, 1.2, rows)) for s, ms in zip(said, (1.0, 3.0, 10.0), strict=True)], y


def test_tabi() -> None:
    stages, y = measured()
    found = tabi.candidates(stages, y)
    assert {c.stages for c in found} >= {(0,), (1,), (2,), (0, 2), (1, 2)}
    chosen = tabi.choose(found, accuracy=0.95)
    single = tabi.infaas(stages, y, accuracy=0.95)
    assert single is not None
    assert len(chosen.stages) >= 2
    assert chosen.mean_ms < stages[single].ms.mean()
    assert tabi.choose(found).stages == (0,)  # a single stage, where that is good enough
    assert tabi.choose(found, accuracy=0.95, objective="cost", fit=(6, 4, 2)).accuracy >= 0.95
    for each in found:
        if each.c is not None:
            members = np.mean([(stages[s].said.answer == y).mean() for s in each.stages])
            assert each.accuracy >= members
    with pytest.raises(ConfigError, match="most accurate"):
        tabi.choose(found, accuracy=0.9999)


def test_tabi_prunes_until_it_hurts() -> None:
    stages, y = measured()
    bad, _ = said_by(len(y), (0.1,))
    quick = Measured(stages[2].said, 0.8 * stages[2].ms)
    pruned = {(0, 2, 0.5): quick, (0, 2, 0.6): Measured(bad[0], quick.ms)}
    found = tabi.candidates([*stages], y, pruned=pruned)
    assert {c.alpha for c in found} == {0.0, 0.5}
    assert tabi.choose([c for c in found if c.stages == (0, 2)], accuracy=0.95).alpha == 0.5


def test_cocktail_is_as_slow_as_its_slowest() -> None:
    stages, y = measured()
    vote = tabi.cocktail(stages, y, accuracy=0.5)
    assert vote is not None
    assert vote.stages == (0, 1)
    assert vote.mean_ms == pytest.approx(np.maximum(stages[0].ms, stages[1].ms).mean())
    assert tabi.cocktail(stages, y, accuracy=0.9999) is None


def study_of(path: Path, code: int = 0) -> Study:
    fit(path, "--tolerance", "0.01", code=code)
    return read_study(path, path.parent / "texts.jsonl", None)


def test_both_searches_and_what_mechanisms_are_worth(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    path = made()
    study = study_of(path)
    test = study.of(2)
    last = float((test.said[-1].answer == test.truth).mean())
    soft = tabi.point(study, accuracy=0.9)
    assert soft.prices[0][0].kind == "soft"
    points = [hybridserve.point(study, name, tolerance=0.02) for name in get_args(hybridserve.PointName)]
    for rules in (soft, *points):
        assert test.play(rules).accuracy.mean > last - 0.08
    capsys.readouterr()
    assert ablation.main([str(path), "--data", str(path.parent / "texts.jsonl"), "--fit", "4,1"]) == 0
    told = json.loads(capsys.readouterr().out)
    ways = {each["name"]: each for each in told["ways"]}
    assert ways["s0"]["cost"] == pytest.approx(ways["s0"]["mean_ms"] / 4)
    assert ways["INFaaS: s1"] == {**ways["s1"], "name": "INFaaS: s1"}
    kinds = {each["how"]: each for each in told["pruning"]}
    assert kinds["importance"]["agreement"] > kinds["plain"]["agreement"] > kinds["random"]["agreement"]
    assert {"as searched", "no calibration"} <= {each["name"] for each in told["points"]["ap"]}


def test_skips_as_printed_cost_less_or_are_left_out(made: Made) -> None:
    study = study_of(made(strengths=(1.2, 1.4, 3.2), pruned=False))
    off = hybridserve.point(study, "ap", skip="off", tolerance=0.02)
    assert not any(off.skip)
    for skip in ("benefit", "uniform", "log"):
        rules = hybridserve.point(study, "ap", skip=skip, tolerance=0.02)
        assert study.of(1).play(rules).ms.mean() <= study.of(1).play(off).ms.mean()


def test_a_stage_alone_where_that_is_accurate_enough(made: Made) -> None:
    rules = tabi.point(study_of(made()), accuracy=0.6)
    assert rules.start == 0
    assert rules.prices[0] == (hard(0.0),)


@pytest.mark.parametrize("name", ["tabi", "hybridserve-ap", "hybridserve-eo", "infaas-model"])
def test_each_scheme_on_records(made: Made, name: schemes.SchemeName) -> None:
    path = made()
    study = study_of(path)
    config = parse(LOAD + of_records(path), base=Path())
    found = schemes.simulated(config, schemes.Scheme(name=name))
    last = float((study.of(2).said[-1].answer == study.of(2).truth).mean())
    assert found["on_time"] == 1.0
    if name == "infaas-model":
        assert found["exits"] == [1.0]
        assert found["agreement"] == 1.0
    else:
        assert len(found["exits"]) == 2
        assert 0 < found["exits"][0] < 1
    assert found["accuracy"] > last - 0.04


def test_a_vote_takes_as_long_as_its_slowest_member(made: Made) -> None:
    path = made(strengths=(1.6, 1.8, 3.2))
    study_of(path, code=1)  # with so few texts `ap` does not hold its bar
    stages = "".join(f'[[stage]]\nname = "s{i}"\nlatency_ms = {ms}\n' for i, ms in enumerate((2, 5, 10)))
    config = parse(LOAD + of_records(path) + stages, base=Path())
    assert 5 <= schemes.simulated(config, schemes.Scheme(name="cocktail", accuracy=0.6))["mean_ms"] < 6
    with pytest.raises(ConfigError, match="cocktail: no two stages"):
        schemes.simulated(config, schemes.Scheme(name="cocktail", accuracy=1.0))


@pytest.mark.parametrize("name", ["tabi", "hybridserve-eo", "infaas-model"])
def test_a_population(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert schemes.main([str(EXAMPLES / "cascade_sst2.toml"), "--scheme", name, "--c", "0.95"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["on_time"] > 0.95
    assert found["accuracy"] > 0.93
    assert sum(found["exits"]) == pytest.approx(1)
