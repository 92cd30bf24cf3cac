"""Lengths and token counts chosen together: the best of all sets, what is dominated, and what a point is worth."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arlo.cli.app import main
from arlo.errors import ConfigError
from arlo.planning.lengths.pairs import MOST, POINT, Engine, choose_pairs


def engine(length: int, tokens: int, time_us: float, *right: float) -> Engine:
    """Accuracy of short rows and of full ones."""
    bins = tuple(zip((length // 2, length), right if len(right) == 2 else right * 2, strict=True))
    return Engine(length=length, tokens=tokens, time_us=time_us, accuracy=bins, name=f"{length}{tokens:+d}")


def cost(kept: tuple[Engine, ...], all_of: list[Engine], counts: dict[int, float], worth_us: float) -> float:
    """The definition, row by row."""
    total = 0.0
    for row, count in counts.items():
        top = max(one.right(row) for one in all_of if row <= one.length)
        each = [one.time_us + worth_us / POINT * (top - one.right(row)) for one in kept if row <= one.length]
        total += count * min(each, default=np.inf)
    return total / sum(counts.values())


@pytest.mark.parametrize("seed", range(20))
def test_best_of_all_sets(seed: int) -> None:
    draws = np.random.default_rng(seed)
    engines = [
        engine(length, tokens, float(length * 10 + tokens * draws.uniform(1, 20)), *sorted(draws.uniform(0.5, 0.9, 2)))
        for length in (16, 32, 64)
        for tokens in (0, -2, -4)
    ]
    counts = {int(row): float(draws.integers(1, 9)) for row in draws.integers(1, 65, 30)}
    worth_us = float(draws.uniform(0, 40))
    found = choose_pairs(engines, counts, worth_us=worth_us, least_saving=0.0)
    beaten = {one.name for one, _ in found.dominated}
    left = [one for one in engines if one.name not in beaten]
    for each in found.best:
        sets = itertools.combinations(left, len(each.engines))
        assert each.cost_us == pytest.approx(min(cost(one, left, counts, worth_us) for one in sets))
        assert each.cost_us == pytest.approx(cost(each.engines, left, counts, worth_us))
    assert all(b.cost_us <= a.cost_us + 1e-9 for a, b in itertools.pairwise(found.best))


def test_dominated_are_left_out() -> None:
    good, slow, poor = engine(64, 0, 100, 0.9), engine(64, 2, 120, 0.9, 0.85), engine(64, -4, 60, 0.7)
    found = choose_pairs([slow, good, poor], {64: 1.0}, worth_us=1.0)
    assert [(one.tokens, other.tokens) for one, other in found.dominated] == [(2, 0)]
    assert all(slow not in each.engines for each in found.best)


def test_two_that_are_alike_keep_one() -> None:
    one, other = engine(64, 0, 100, 0.9), engine(64, -4, 100, 0.9)
    found = choose_pairs([one, other], {64: 1.0}, worth_us=1.0)
    assert len(found.dominated) == 1
    assert len(found.chosen.engines) == 1


def test_worth_decides() -> None:
    """20 points for 40 us: merged where a point is worth less than 2 us."""
    engines = [engine(64, 0, 100, 0.9), engine(64, -4, 60, 0.7)]
    for worth_us, tokens in ((1.9, -4), (2.1, 0)):
        found = choose_pairs(engines, {64: 1.0}, worth_us=worth_us, most=1)
        assert [one.tokens for one in found.chosen.engines] == [tokens]


def test_too_many() -> None:
    engines = [engine(64, -number, 100 - number, 0.9 - number / 100) for number in range(MOST + 1)]
    with pytest.raises(ConfigError, match="too many to choose among"):
        choose_pairs(engines, {64: 1.0}, worth_us=1.0)


def adapted(folder: Path, length: int, *variants: tuple[int, float, float]) -> Path:
    """A folder with what the command reads of adapt.json: tokens, ms of a row, accuracy."""
    folder.mkdir()
    found: list[dict[str, Any]] = [
        {
            "name": f"m{-tokens}-{length}", "tokens": tokens, "accuracy": right, "latency_ms": {"1": ms},
            "bins": [{"max_length": length, "accuracy": right}],
        }
        for tokens, ms, right in variants
    ]  # fmt: skip
    (folder / "adapt.json").write_text(json.dumps({"length": length, "rows": {"measured": 100}, "variants": found}))
    return folder


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Long texts with all tokens, short ones on an engine of their own; the merged one of the short is not quicker."""
    short = adapted(tmp_path / "32", 32, (0, 1.0, 0.9), (-4, 1.0, 0.8))
    long = adapted(tmp_path / "64", 64, (0, 3.0, 0.9), (-4, 2.0, 0.89))
    words = ["compile", "lengths", "--adapted", str(short), str(long), "--histogram", "uniform:8:64"]
    assert main([*words, "--worth-us", "2000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["length"], one["tokens"]) for one in found["chosen"]["engines"]] == [(32, 0), (64, 0)]
    assert [each["engine"]["name"] for each in found["dominated"]] == ["32/m4-32"]
    assert main([*words, "--worth-us", "100"]) == 0
    said = capsys.readouterr().out
    assert "32, 64 -4" in said
    assert "left out: 32/m4-32, which is nowhere more accurate than 32/m0-32, and not quicker" in said
    assert main(words) == 2
    assert "--adapted and --worth-us go together" in capsys.readouterr().err
