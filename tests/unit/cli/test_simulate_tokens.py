"""`arlo simulate` of a file with [tokens]."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arlo.cli.app import main

OTAS = Path(__file__).resolve().parents[3] / "examples" / "simulate" / "otas.toml"


# Short rows have padding to lose, long ones do not; each has an engine of its own.
BY_LENGTH = """
[workload]
length = "mixture:0.5*fixed:20+0.5*fixed:100"
[tokens]
name = "by length"
batch = 8
delta_ms = 200
eta_ms = 200
bins = [32, 128]
[[tokens.variant]]
tokens = -8
latency = [[32, 1, 3], [32, 8, 10], [128, 1, 6], [128, 8, 30]]
[[tokens.variant]]
tokens = 0
latency = [[32, 1, 5], [32, 8, 20], [128, 1, 10], [128, 8, 50]]
[tokens.accuracy]
all = [0.75, 0.9]
[tokens.bin_accuracy]
all = [[0.9, 0.6], [0.9, 0.9]]
[[tokens.query]]
task = "all"
slo_ms = 400
utility = 1
"""
LONGEST = """
[tokens]
name = "longest alone"
batch = 8
delta_ms = 200
eta_ms = 200
[[tokens.variant]]
tokens = -8
latency = [[1, 6], [8, 30]]
[[tokens.variant]]
tokens = 0
latency = [[1, 10], [8, 50]]
[tokens.accuracy]
all = [0.6, 0.9]
[[tokens.query]]
task = "all"
slo_ms = 400
utility = 1
"""
POLICIES = "printed,price,fixed:-8,fixed:0"


def simulated(capsys: pytest.CaptureFixture[str], *words: str, file: Path = OTAS) -> dict[str, dict[str, object]]:
    """Runs by policy."""
    assert main(["simulate", str(file), *words, "--duration-s", "30", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    alone = next((word.removeprefix("--tokens=") for word in words if word.startswith("--tokens=")), "price")
    runs = {run["varied"].get("tokens", alone): run for run in found.get("runs", [found])}
    for run in runs.values():
        del run["wall_s"]
    return runs


@pytest.mark.parametrize("rate", [150, 500, 720])
def test_ours_is_never_below(capsys: pytest.CaptureFixture[str], rate: int) -> None:
    """From light load to one and a half of what all tokens carry: price beats the printed rules and every count."""
    fixed = [f"fixed:{count}" for count in (-20, -15, -10, -5, 0, 2, 4, 8)]
    found = simulated(capsys, "--rate", str(rate), f"--tokens=price,printed,{','.join(fixed)}")
    utility = {policy: run["utility"] for policy, run in found.items()}
    assert utility["price"] >= 0.999 * max(utility.values())  # type: ignore[type-var, operator]
    assert all(sum(run["types"].values()) == pytest.approx(1) for run in found.values())  # type: ignore[attr-defined]
    assert len({run["requests"] for run in found.values()}) == 1


def test_every_query_has_one_outcome(capsys: pytest.CaptureFixture[str]) -> None:
    """By kind of query the four outcomes add up; far beyond capacity most are evicted, and none is late."""
    run = simulated(capsys, "--rate", "2000", "--tokens=fixed:8", "--workers", "2")["fixed:8"]
    by_query = run["by_query"]
    assert sum(sum(each.values()) for each in by_query.values()) == run["requests"]  # type: ignore[attr-defined]
    assert run["types"]["evicted"] > 0.4  # type: ignore[index]
    assert run["types"]["late"] == 0  # type: ignore[index]


@pytest.fixture
def by_length(tmp_path: Path) -> Path:
    file = tmp_path / "lengths.toml"
    file.write_text(BY_LENGTH)
    return file


def test_rows_of_one_length_are_as_without(capsys: pytest.CaptureFixture[str], by_length: Path) -> None:
    """All of the longest: what a file says that knows no lengths, by every policy."""
    plain = by_length.with_name("longest.toml")
    plain.write_text(LONGEST)
    words = ("--rate", "180", f"--tokens={POLICIES}")
    known = ("utility", "types", "by_query", "rows", "batches", "accuracy", "outcomes", "mean_ms", "p99_ms")
    runs = [simulated(capsys, *words, *more, file=file)
            for file, more in ((plain, ()), (by_length, ("--length", "fixed:128")))]  # fmt: skip
    wanted, found = ({policy: [run[key] for key in known] for policy, run in each.items()} for each in runs)
    assert found == wanted


def test_a_row_takes_the_shortest_engine(capsys: pytest.CaptureFixture[str], by_length: Path) -> None:
    """Short ones are carried at a rate that long ones are not."""
    words = ("--rate", "320", "--tokens=fixed:0")
    for length, evicted in (("fixed:20", False), ("fixed:33", True), ("fixed:100", True)):
        run = simulated(capsys, *words, "--length", length, file=by_length)["fixed:0"]
        assert (run["types"]["evicted"] > 0.3) == evicted, length  # type: ignore[index]


def test_counts_by_length(capsys: pytest.CaptureFixture[str], by_length: Path) -> None:
    """Short rows lose nothing with fewer tokens, so they pay for all tokens of the long ones: no count for all is as
    good, and price knows what rows of each length take."""
    found = simulated(capsys, "--rate", "260", f"--tokens={POLICIES}", file=by_length)
    utility = {policy: run["utility"] for policy, run in found.items()}
    best = max(utility["fixed:-8"], utility["fixed:0"])  # type: ignore[type-var]
    assert utility["price"] > 1.04 * best  # type: ignore[operator]
    assert utility["price"] > 0.98 * max(utility.values())  # type: ignore[type-var, operator]
    assert 0.3 < found["price"]["rows"]["-8"] / found["price"]["requests"] < 0.8  # type: ignore[index, operator]


def test_lengths_of_a_trace(capsys: pytest.CaptureFixture[str], by_length: Path) -> None:
    """A trace has lengths of its own, cut to what the longest engine takes."""
    trace = by_length.with_name("trace.csv")
    rows = [(i / 100, 20 if i % 2 else 500) for i in range(3000)]
    trace.write_text("arrived_at_s,length\n" + "".join(f"{at},{length}\n" for at, length in rows))
    assert main(["simulate", str(by_length), "--trace", str(trace), "--tokens=fixed:-8", "--json"]) == 0
    run = json.loads(capsys.readouterr().out)
    assert run["requests"] == 3000
    assert run["accuracy"] == pytest.approx(0.75, abs=0.03)


def test_joules_of_token_counts(capsys: pytest.CaptureFixture[str], by_length: Path) -> None:
    """Watts change nothing but that joules are told. A joule that is worth something saves some by the rules that heed
    it, evicts none, and leaves the others as they are."""
    policies = ("--rate", "60", f"--tokens={POLICIES}", "--length", "fixed:100")
    plain = simulated(capsys, *policies, file=by_length)
    assert all(run["joules"] is None for run in plain.values())
    runs = []
    for joule in (0, 0.2, 5):
        file = by_length.with_name(f"watts{joule}.toml")
        file.write_text(BY_LENGTH.replace("[tokens]\n", f"[tokens]\nwatts = 100\njoule = {joule}\n", 1))
        runs.append(simulated(capsys, *policies, file=file))
    known = {"joules", "joules_total"}
    for policy in plain:
        assert {k: v for k, v in runs[0][policy].items() if k not in known} == {
            k: v for k, v in plain[policy].items() if k not in known
        }
        drawn = [run[policy]["joules"] for run in runs]
        assert drawn[0] > 0.3  # type: ignore[operator]
        if policy == "price":
            assert drawn[0] > 1.2 * drawn[2]  # type: ignore[operator]
            assert drawn == sorted(drawn, reverse=True)  # type: ignore[type-var]
            assert runs[2][policy]["rows"]["0"] < 0.02 * runs[2][policy]["requests"]  # type: ignore[index, operator]
        else:
            assert runs[2][policy] == runs[0][policy]
        assert all(run[policy]["types"]["evicted"] == 0 for run in runs)  # type: ignore[index]
    alone = by_length.with_name("watts0.toml")
    run = simulated(capsys, "--rate", "0.5", "--tokens=fixed:0", "--length", "fixed:100", file=alone)["fixed:0"]
    assert run["joules"] == pytest.approx(0.010 * 100), "one row alone, 10 ms at 100 W"
    assert run["joules_total"] == pytest.approx(run["joules"] * run["requests"])  # type: ignore[operator]


def test_energy_has_no_say_where_nothing_can_be_saved(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """OTAS's body at half of what all tokens carry: batches of the rows that have just come keep its worker busy at any
    count, so that shorter ones are smaller ones. At a twentieth it stands by, and half of the energy can be saved."""
    found = {}
    for joule in (0, 0.01):
        file = tmp_path / f"otas{joule}.toml"
        file.write_text(OTAS.read_text().replace("[tokens]\n", f"[tokens]\nwatts = 200\njoule = {joule}\n", 1))
        for rate in (24, 240):
            run = simulated(capsys, "--rate", str(rate), "--tokens=price", file=file)["price"]
            found[joule, rate] = (run["utility_share"], run["joules"])
    assert found[0.01, 240] == pytest.approx(found[0, 240], rel=0.002)
    assert found[0.01, 24][1] < 0.6 * found[0, 24][1]  # type: ignore[operator]
    assert found[0.01, 24][0] > found[0, 24][0] - 0.05  # type: ignore[operator]


def test_a_joule_needs_watts(capsys: pytest.CaptureFixture[str], by_length: Path) -> None:
    for more in ("joule = 1", "joule = -1", "watts = -1"):
        by_length.write_text(BY_LENGTH.replace("[tokens]\n", f"[tokens]\n{more}\n", 1))
        assert main(["simulate", str(by_length), "--duration-s", "1"]) == 2
        assert more.split()[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tokens", "best"], "--tokens must be printed, price or fixed:N, N of -20, -15"),
        (["--tokens", "fixed:3"], "not 'fixed:3'"),
        (["--policy", "late"], "--policy does not go with cluster.serves"),
        (["--length", "tweets"], "lengths make no difference to this body"),
    ],
)
def test_refused(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    """What it cannot do is said in a sentence."""
    assert main(["simulate", str(OTAS), *words]) != 0
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("beta = 5", "betta = 5", "tokens.betta is not a key of [tokens]: did you mean 'beta'?"),
        ("tokens = -15", "tokens = -25", "must ascend by tokens"),
        ('task = "eurosat"', 'task = "euro"', "has no task 'euro'"),
        ("[0.50, 0.930", "[0.930", "8 numbers of 0 to 1"),
        ("[[1, ", "[[0, ", "rows ascending from 1"),
        ("batch = 64", "bins = [64]", "bins and [tokens.bin_accuracy] go together"),
        ("[tokens]", "[workload]\nlenght = 'tweets'\n[tokens]", "lenght"),
        ("[tokens]", "[workload]\nbulk_share = 0.5\n[tokens]", "bulk_share does not go with [tokens]"),
        ("[tokens]", "[cluster]\n[tokens]", "[cluster] does not go with [tokens]"),
        ("latency = [[1, 8.38]", "latency = [[64, 1, 8.38], [1, 1, 8.38]", "every count takes every row"),
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
