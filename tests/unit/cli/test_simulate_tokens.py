"""`arlo simulate` of a file with [tokens]."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arlo.cli.app import main

OTAS = Path(__file__).resolve().parents[3] / "examples" / "simulate" / "otas.toml"


def simulated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, object]]:
    """Runs by policy."""
    assert main(["simulate", str(OTAS), *words, "--duration-s", "30", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return {run["run"]["tokens"]: run for run in found.get("runs", [found])}


@pytest.mark.parametrize("rate", [150, 500, 720])
def test_ours_is_never_below(capsys: pytest.CaptureFixture[str], rate: int) -> None:
    """From light load to one and a half of what all tokens carry: price beats the printed rules and every count."""
    fixed = [f"fixed:{count}" for count in (-20, -15, -10, -5, 0, 2, 4, 8)]
    found = simulated(capsys, "--rate", str(rate), f"--tokens=price,exact,printed,{','.join(fixed)}")
    utility = {policy: run["utility"] for policy, run in found.items()}
    assert utility["price"] >= 0.999 * max(utility.values())  # type: ignore[type-var, operator]
    assert all(sum(run["outcomes"].values()) == pytest.approx(1) for run in found.values())  # type: ignore[attr-defined]
    assert len({run["queries"] for run in found.values()}) == 1


def test_every_query_has_one_outcome(capsys: pytest.CaptureFixture[str]) -> None:
    """By kind of query the four outcomes add up; far beyond capacity most are evicted, and none is late."""
    run = simulated(capsys, "--rate", "2000", "--tokens=fixed:8", "--workers", "2")["fixed:8"]
    by_query = run["by_query"]
    assert sum(sum(each.values()) for each in by_query.values()) == run["queries"]  # type: ignore[attr-defined]
    assert run["outcomes"]["evicted"] > 0.4  # type: ignore[index]
    assert run["outcomes"]["late"] == 0  # type: ignore[index]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tokens", "best"], "--tokens must be printed, exact, price, load or fixed:N, N of -20, -15"),
        (["--tokens", "fixed:3"], "not 'fixed:3'"),
        (["--policy", "late"], "--policy does not go with a file of token counts"),
    ],
)
def test_refused(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    """What it cannot do is said in a sentence."""
    assert main(["simulate", str(OTAS), *words]) != 0
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("beta = 5", "betta = 5", "unknown key 'betta'; did you mean 'beta'?"),
        ("tokens = -15", "tokens = -25", "must ascend by tokens"),
        ('task = "eurosat"', 'task = "euro"', "has no task 'euro'"),
        ("[0.50, 0.930", "[0.930", "8 numbers of 0 to 1"),
        ("[[1, ", "[[0, ", "rows ascending from 1"),
    ],
)
def test_wrong_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, old: str, new: str, says: str) -> None:
    """A file that says what cannot be is refused, with what to change."""
    text = OTAS.read_text()
    assert old in text
    file = tmp_path / "wrong.toml"
    file.write_text(text.replace(old, new))
    assert main(["simulate", str(file)]) != 0
    assert says in capsys.readouterr().err
