"""`arlo plan`: the contract of its JSON, its inputs, its tables and its messages."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arlo.cli import main
from arlo.profiler.format import How, LatencyProfile, Point, RuntimeProfile
from arlo.traces import Trace, write_csv
from arlo.workers.emulated.repository import write_emulated_repository

PAPER = ["--slo-ms", "150", "--max-lengths", "64,128,256,512", "--latency-ms", "1.15,1.7,2.7,4.9"]
DEMAND = ["--demand", "30,20,8,2"]


def plan(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    assert main(["plan", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("solver", ["exact", "gurobi"])
def test_json_starts_with_the_answer(solver: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, "--workers", "10", *PAPER, *DEMAND, "--solver", solver)
    assert list(found)[:4] == ["allocation", "objective", "solver", "solve_s"]
    assert found["allocation"] == [4, 3, 2, 1]
    # 30 requests over 4 instances of 1.15 ms, and so on: L(B) * C with L(B) = latency * (B + 1) / 2.
    parts = [(1.15, 30, 4), (1.7, 20, 3), (2.7, 8, 2), (4.9, 2, 1)]
    assert found["objective"] == pytest.approx(sum(ms * (c / n + 1) / 2 * c for ms, c, n in parts), rel=1e-9)
    assert found["solver"] == solver
    assert 0 <= found["solve_s"] < 60
    assert found["capacities"] == [130, 88, 55, 30]
    assert found["lower_bounds"] == [0, 0, 0, 1]
    assert (found["optimal"], found["reason"], found["warnings"]) == (True, None, [])
    assert found["mean_ms"] == pytest.approx(found["objective"] / 60)


def test_the_default_is_exact_for_the_printed_objective(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, "--workers", "10", *PAPER, *DEMAND)
    assert (found["solver"], found["objective_name"], found["allocation"]) == ("exact", "paper", [4, 3, 2, 1])
    queueing = plan(capsys, "--workers", "10", *PAPER, *DEMAND, "--objective", "queueing")
    assert queueing["objective_name"] == "queueing"
    assert queueing["queueing_mean_ms"] <= found["queueing_mean_ms"]
    assert queueing["objective"] >= found["objective"]


def test_more_than_a_million_requests_within_the_slo(capsys: pytest.CaptureFixture[str]) -> None:
    """Twenty minutes of requests of a millisecond, or of a microsecond; not of a nanosecond."""
    runtimes = ["--max-lengths", "64,128", "--demand", "1000,1000"]
    for latency, capacities in (("1,2", [1_200_000, 600_000]), ("0.01,0.02", [120_000_000, 60_000_000])):
        found = plan(capsys, "--workers", "8", "--slo-ms", "1200000", "--latency-ms", latency, *runtimes)
        assert found["capacities"] == capacities
        assert sum(found["allocation"]) == 8
        assert found["optimal"]
    assert main(["plan", "--workers", "8", "--slo-ms", "1200000", "--latency-ms", "1e-6,2", *runtimes]) == 2
    assert "one of them is in the wrong unit" in capsys.readouterr().err


@pytest.mark.parametrize("demand", ["1e-300,1e-300", "1e-308,1e-308", "5e-324,5e-324", "1e-6,1e-6"])
def test_a_demand_near_nothing_has_a_plan_and_a_mean(demand: str, capsys: pytest.CaptureFixture[str]) -> None:
    named = ["--slo-ms", "150", "--max-lengths", "64,128", "--latency-ms", "1,2", "--demand", demand]
    found = plan(capsys, "--workers", "8", *named, "--objective", "queueing")
    assert sum(found["allocation"]) == 8
    assert found["queueing_mean_ms"] == pytest.approx(1.5 if found["allocation"][0] else 2.0, rel=1e-6)


def test_a_range_compares_numbers_of_workers(capsys: pytest.CaptureFixture[str]) -> None:
    demand = ["--demand", "300,200,80,20"]
    plans = plan(capsys, "--workers", "4-12", *PAPER, *demand)["plans"]
    assert [each["workers"] for each in plans] == list(range(4, 13))
    assert [each["reason"] is None for each in plans] == [False] * 2 + [True] * 7
    alone = plan(capsys, "--workers", "10", *PAPER, *demand)
    assert plans[6]["allocation"] == alone["allocation"]
    assert plans[6]["objective"] == alone["objective"]
    means = [each["mean_ms"] for each in plans]
    assert means == sorted(means, reverse=True)
    assert plan(capsys, "--workers", "4-4", *PAPER, *demand)["plans"][0]["workers"] == 4


def test_screens_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--workers", "3", *PAPER, "--demand", "600,200,80,20"]) == 0
    one = capsys.readouterr().out
    assert "left over" in one
    assert "warning: overload: the demand needs at least 8 instances (Eq. 3 and 7: [4, 2, 1, 1])" in one
    assert main(["plan", "--workers", "5-6", *PAPER, "--demand", "300,200,80,20"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert any(row[0] == "5" and row[-2:] == ["no:", "overload"] for row in rows if row)
    assert any(row[0] == "6" and "yes:" in row for row in rows if row)


def test_a_runtime_above_the_slo_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    lengths = ["--max-lengths", "64,128", "--latency-ms", "9,5", "--demand", "1,1"]
    found = plan(capsys, "--workers", "3", "--slo-ms", "8", *lengths)
    assert found["warnings"] == [
        "the runtimes of [64] take longer than the SLO (M is 0): a longer one takes their requests"
    ]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "emulated"
    path.mkdir()
    write_emulated_repository(
        path, model="m", max_lengths=[64, 512], latency_ms=[1.0, 5.0], max_batch=4, batch_growth=0.5
    )
    return path


def test_runtimes_of_a_repository_with_their_batches(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, "--workers", "4", "--slo-ms", "100", "--repository", repository, "--demand", "50,10")
    assert found["max_lengths"] == [64, 512]
    assert found["capacities"] == [160, 32]  # batches of 4 take 2.5 and 12.5 ms
    assert found["load_ms"] == [None, None]


def test_what_loads_take_is_shown_where_it_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_emulated_repository(tmp_path, model="m", max_lengths=[64, 512], latency_ms=[1.0, 5.0], load_delay_ms=2500)
    arguments = ("--workers", "4", "--slo-ms", "100", "--repository", tmp_path, "--demand", "50,10")
    assert plan(capsys, *arguments)["load_ms"] == [2500, 2500]
    assert main(["plan", *map(str, arguments)]) == 0
    screen = capsys.readouterr().out
    assert "load s" in screen
    assert "2.5" in screen


def profile(path: Path, *, dynamic: bool = False) -> Path:
    def point(length: int, batch: int, mean_us: float) -> Point:
        times = {"mean_us": mean_us, "p50_us": mean_us, "p98_us": mean_us}
        return Point(length=length, batch=batch, samples=100, half_width_us=1.0, **times)

    runtimes = tuple(
        RuntimeProfile(
            name=f"m_len{length}",
            hash="0",
            max_length=length,
            max_batch=2,
            dynamic=dynamic,
            points=(point(length, 1, 10.0 * length), point(length, 2, 15.0 * length)),
        )
        for length in (100, 400)
    )
    how = How(confidence=0.95, precision=0.05, max_seconds=1.0, threads=1, outputs=("y",))
    LatencyProfile(
        model="m", device="d", versions={}, date="2024-01-01", provenance="a test", how=how, runtimes=runtimes
    ).save(path)
    return path


def test_runtimes_of_a_latency_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = profile(tmp_path / "profile.json")
    found = plan(capsys, "--workers", "2", "--slo-ms", "12", "--profile", path, "--demand", "4,1")
    assert found["max_lengths"] == [100, 400]
    assert found["capacities"] == [16, 4]  # 1.5 and 6 ms for two rows


def test_demand_of_a_trace_and_of_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.csv"
    # 101 requests in 10 s: 10 a second, 1.5 in 150 ms; one in four is longer than 64.
    length = np.where(np.arange(101) % 4 == 0, 300, 40).astype(np.int32)
    write_csv(Trace(arrived_at_s=np.linspace(0, 10, 101), length=length), trace)
    found = plan(capsys, "--workers", "10", *PAPER, "--trace", trace)
    assert found["demand"] == pytest.approx([1.5 * 75 / 101, 0, 0, 1.5 * 26 / 101])
    lengths = tmp_path / "lengths.json"
    lengths.write_text(json.dumps({"source": "a test", "counts": {"64": 3, "65": 1, "600": 1}}))
    found = plan(capsys, "--workers", "10", *PAPER, "--rate", "1000", "--lengths", lengths)
    assert found["demand"] == pytest.approx([90, 30, 0, 30])
    assert found["warnings"] == [
        "20.00% of the requests are longer than 512 tokens; they are counted in the last bin, but no runtime takes them"
    ]
    found = plan(capsys, "--workers", "10", *PAPER, "--rate", "1000", "--lengths", "uniform:1:256")
    assert found["demand"] == pytest.approx([37.5, 37.5, 75, 0])
    found = plan(capsys, "--workers", "10", *PAPER, "--rate", "1000", "--lengths", "tweets", "--rescale", "512")
    assert sum(found["demand"]) == pytest.approx(150)
    assert found["warnings"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "x", *PAPER, *DEMAND], "--workers must be a number such as 10, or a range"),
        (["--workers", "0", *PAPER, *DEMAND], "--workers must be from 1 to 100,000"),
        (["--workers", "8-4", *PAPER, *DEMAND], "--workers must be from 1 to 100,000, the smaller number first"),
        (["--workers", "1-2000", *PAPER, *DEMAND], "asks for 2,000 plans: at most 1,000"),
        (["--workers", "4", *PAPER, "--demand", "1,2,3"], "--demand needs one number for each of 4 runtimes, not 3"),
        (["--workers", "4", *PAPER, "--demand=-1,2,3,4"], "--demand must be at least 0 requests per SLO period"),
        (["--workers", "4", *PAPER, "--demand", "-1,2,3,4"], "--demand must be at least 0 requests per SLO period"),
        (["--workers", "4", *PAPER, "--demand", "1,2,3,1e300"], "demand must be at most 1,000,000,000 requests"),
        (["--workers", "4", *PAPER, "--demand", "1,2,x,4"], "--demand must be numbers joined by commas, not '1,2,x,4'"),
        (["--workers", "4", *PAPER, "--demand", "1,2,inf,4"], "--demand must be finite numbers"),
        (["--workers", "4", *PAPER], "give one of --demand Q,Q,..., --trace FILE, or --rate RPS with --lengths"),
        (["--workers", "4", *PAPER, *DEMAND, "--rate", "3"], "not --demand and --rate"),
        (["--workers", "4", *PAPER, *DEMAND, "--lengths", "tweets"], "--lengths belongs to --rate, not to --demand"),
        (["--workers", "4", *PAPER, *DEMAND, "--rescale", "512"], "--rescale stretches the lengths"),
        (["--workers", "4", *PAPER, "--rate", "3"], "--rate needs --lengths"),
        (["--workers", "4", *PAPER, "--rate", "0", "--lengths", "tweets"], "--rate must be above 0"),
        (["--workers", "4", *PAPER, "--rate", "1", "--lengths", "tweet"], "did you mean tweets?"),
        (["--workers", "4", *PAPER, "--rate", "1", "--lengths", "no.json"], "--lengths no.json does not exist"),
        (["--workers", "4", *PAPER, "--rate", "1", "--lengths", "uniform:9:3"], "with 1 <= MIN <= MAX"),
        (["--workers", "4", *PAPER, "--trace", "no.csv"], "cannot read the trace no.csv"),
        (["--workers", "4", *PAPER, *DEMAND, "--solver", "gurobbi"], "did you mean 'gurobi'?"),
        (["--workers", "4", *PAPER, *DEMAND, "--solver", "gurobi", "--objective", "queueing"], "objective paper only"),
        (["--workers", "4", *PAPER, *DEMAND, "--time-limit-s", "0"], "--time-limit-s must be above 0, not 0"),
        (["--workers", "4", "--slo-ms", "nan", *PAPER[2:], *DEMAND], "--slo-ms: must be a number, not 'nan'"),
        (["--workers", "4", "--slo-ms", "150", *DEMAND], "name the runtimes: --max-lengths"),
        (["--workers", "4", "--slo-ms", "150", "--max-lengths", "64", *DEMAND], "name the runtimes: --max-lengths"),
        (["--workers", "4", "--slo-ms", "150", "--repository", "no", *DEMAND], "no has no arlo.json"),
        (["--workers", "4", "--slo-ms", "150", "--profile", "no.json", *DEMAND], "no.json does not exist"),
        (["--workers", "4", *PAPER, "--profile", "p", *DEMAND], "--repository and --profile, not both kinds"),
        (["--workers", "4", *DEMAND], "--slo-ms is missing"),
        (["--workers", "4", "--models", "no.toml"], "no.toml"),
        (["--workers", "4", "--models", "no.toml", "--slo-ms", "5"], "--slo-ms is of one model"),
    ],
)
def test_wrong_command_lines(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("lengths", "latencies", "message"),
    [
        ("64,32", "1,2", "--max-lengths must ascend, without one twice: '64,32'"),
        ("64,64", "1,2", "--max-lengths must ascend"),
        ("0,64", "1,2", "--max-lengths must be whole numbers of tokens of at least 1"),
        ("64.5,128", "1,2", "--max-lengths must be whole numbers"),
        ("64,128", "1", "--latency-ms needs one number for each of 2 lengths, not 1"),
        ("64,128", "1,0", "--latency-ms must be above 0 ms"),
        ("64,128", "-1,2", "--latency-ms must be above 0 ms"),
        ("64,128", "1e-12,2", "latencies must be at least 1e-06 ms"),
        ("64,128", "1,b", "--latency-ms must be numbers joined by commas"),
    ],
)
def test_wrong_runtimes(lengths: str, latencies: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    named = ["--max-lengths", lengths, "--latency-ms", latencies]
    assert main(["plan", "--workers", "2", "--slo-ms", "9", *named, "--demand", "1,1"]) == 2
    assert message in capsys.readouterr().err


def test_only_dynamic_runtimes_need_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = profile(tmp_path / "profile.json", dynamic=True)
    assert main(["plan", "--workers", "2", "--slo-ms", "9", "--profile", str(path), "--demand", "1"]) == 2
    assert "has only dynamic runtimes" in capsys.readouterr().err


def test_a_missing_package_exits_3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    assert main(["plan", "--workers", "10", *PAPER, *DEMAND, "--solver", "gurobi"]) == 3
    assert "pip install 'arlo-serve[gurobi]'" in capsys.readouterr().err


MODELS = """\
[workload]
arrivals = "poisson"
duration_s = 3
[cluster]
profile = "bert-base-a100"
max_lengths = [64, 256]
max_batch = 16
bundle = "all"
timeout_ms = 500
[dispatch]
batching = "deadline"
[[model]]
name = "often"
rate = 9000
length = "fixed:200"
slo_ms = 100
[[model]]
name = "rare"
rate = 200
length = "tweets"
slo_ms = 50
"""


@pytest.mark.long
def test_workers_are_divided_among_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "models.toml"
    file.write_text(MODELS)
    assert main(["plan", "--models", str(file), "--workers", "2-4", "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert [[model["workers"] for model in plan["models"]] for plan in plans] == [[1, 1], [2, 1], [3, 1]]
    assert [model["name"] for model in plans[0]["models"]] == ["often", "rare"]
    assert plans[0]["divided"]["slo_attainment"] < plans[0]["together"]["slo_attainment"]
    assert plans[2]["together"]["slo_attainment"] == plans[2]["divided"]["slo_attainment"] == 1
    assert main(["plan", "--models", str(file), "--workers", "3"]) == 0
    text = capsys.readouterr().out
    assert "3 workers" in text
    assert re.search(r"^often +\d,\d\d\d +100 .* 2 ", text, re.M)
    file.write_text(MODELS.replace("timeout_ms = 500", "timeout_ms = 0.5"))  # nothing is ever answered
    assert main(["plan", "--models", str(file), "--workers", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["divided"] == {"slo_attainment": 0, "mean_ms": None}
    assert main(["plan", "--models", str(file), "--workers", "2"]) == 0
    capsys.readouterr()
    assert main(["plan", "--models", str(file), "--workers", "1"]) == 2
    assert "each needs one" in capsys.readouterr().err
    file.write_text(MODELS.partition("[[model]]")[0] + "rate = 5\n")
    assert main(["plan", "--models", str(file), "--workers", "1"]) == 2
