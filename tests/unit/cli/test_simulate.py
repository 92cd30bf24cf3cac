"""`arlo simulate`: flags, sweeps, the search for the number of GPUs, files written, and what is said of wrong ones."""

from __future__ import annotations

import csv
import json
import math
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from arlo.cli import main
from arlo.cli.simulate.find import search
from arlo.cli.simulate.flags import plans
from arlo.cli.simulate.load import least_workers, offered_workers
from arlo.simulator.scenario import config
from arlo.simulator.scenario.build import build

QUEUE = ["--workers", "1", "--max-lengths", "512", "--latency-ms", "10", "--arrivals", "poisson", "--rate", "50",
         "--length", "fixed:100", "--policy", "uniform", "--overhead-ms", "0"]  # fmt: skip
CONTRACT = [*QUEUE, "--duration-s", "2000", "--seed", "1", "--json"]
SHORT = [*QUEUE, "--duration-s", "20"]
# The mean of such a run varies by this much from seed to seed (250 seeds: 15.004 ms +- 0.061).
SIGMA_MS = 0.061

Capture = pytest.CaptureFixture[str]


def simulate(capsys: Capture, *arguments: str) -> Any:
    """What it prints as JSON."""
    assert main(["simulate", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_md1_queue(capsys: Capture) -> None:
    """Load 0.5 on a server of 10 ms: mean wait rho / (2 (1 - rho)) * 10 ms = 5 ms (Pollaczek-Khinchine)."""
    assert main(["simulate", *CONTRACT]) == 0
    found = json.loads(capsys.readouterr().out)
    assert abs(found["mean_ms"] - 15.0) < 3 * SIGMA_MS
    assert found["mean_execution_ms"] == 10.0
    assert abs(found["requests"] - 100_000) < 3 * math.sqrt(100_000)
    assert found["outcomes"]["on_time"] == found["requests"]
    assert found["slo_attainment"] == 1.0
    assert found["goodput_rps"] == pytest.approx(found["requests"] / 2000, rel=1e-5)
    # Half of the requests find the server free.
    assert 10.0 <= found["p50_ms"] < 10.3
    assert found["p50_ms"] < found["p98_ms"] < found["p99_ms"] < found["max_ms"]
    assert found["utilization"] == pytest.approx(found["requests"] * 0.01 / 2000, rel=1e-3)
    assert found["gpu_hours"] == pytest.approx(2000 / 3600, rel=1e-5)


def test_the_same_seed_gives_the_same_figures(capsys: Capture) -> None:
    first, again = (simulate(capsys, *SHORT, "--seed", "4") for _ in range(2))
    other = simulate(capsys, *SHORT, "--seed", "5")
    for each in (first, again, other):
        each.pop("wall_s")
    assert first == again
    assert first["mean_ms"] != other["mean_ms"]


def test_lists_sweep_in_order(capsys: Capture) -> None:
    found = simulate(capsys, "--duration-s", "2", "--scheme", "st,arlo", "--workers", "4,6", "--rate", "200")
    assert [run["varied"] for run in found["runs"]] == [
        {"workers": 4, "scheme": "st"},
        {"workers": 4, "scheme": "arlo"},
        {"workers": 6, "scheme": "st"},
        {"workers": 6, "scheme": "arlo"},
    ]
    st, arlo, *_ = found["runs"]
    assert st["scenario"] == "4 GPUs, st"
    assert st["requests"] == arlo["requests"]
    assert arlo["mean_ms"] < st["mean_ms"]
    assert [len(run["runtimes"]) for run in found["runs"]] == [1, 8, 1, 8]
    found = simulate(capsys, "--duration-s", "1", "--allocation", "even,global", "--scaling", "none,target")
    assert [run["scenario"] for run in found["runs"]] == [
        "even allocation, scaling none",
        "even allocation, scaling target",
        "global allocation, scaling none",
        "global allocation, scaling target",
    ]


def test_a_comparison_says_what_changed(capsys: Capture) -> None:
    assert main(["simulate", "--duration-s", "2", "--scheme", "st,arlo"]) == 0
    out = capsys.readouterr().out
    head, st, arlo = (line.split() for line in out.splitlines() if line.startswith((" " * 8, "st ", "arlo ")))
    assert head[:4] == ["mean", "ms", "p98", "ms"]
    assert (len(st), st[0]) == (7, "st")
    change = float(arlo[2].rstrip("%"))
    assert change == pytest.approx(100 * (float(arlo[1]) / float(st[1]) - 1), abs=0.3)
    assert change < -30
    assert "requests simulated in" in out


def test_one_run_prints_its_tables(capsys: Capture) -> None:
    assert main(["simulate", "--duration-s", "3", "--workers", "5", "--instances", "1,1,1,2", "--max-lengths",
                 "64,128,256,512"]) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert "5 GPUs, static runtimes of 64, 128, 256, 512 tokens, dispatch late, fixed allocation" in out
    assert "bert-base (estimated)" in out
    assert "arrival to answer" in out
    rows = {line.split()[0]: line.split()[1] for line in out.splitlines() if line.startswith("static-")}
    assert rows == {"static-64": "1", "static-128": "1", "static-256": "1", "static-512": "2"}
    shares = [float(line.split()[1].rstrip("%")) for line in out.splitlines() if "█" in line or line.endswith("%  ")]
    assert sum(shares) == pytest.approx(100, abs=1)


def test_overload_is_a_result_that_is_pointed_out(capsys: Capture) -> None:
    found = simulate(capsys, *SHORT, "--rate", "1250")
    assert found["slo_attainment"] < 0.1
    assert len(found["warnings"]) == 1
    # 1,250 requests a second of 10 ms keep 12.5 workers busy.
    assert "overload: the load needs at least 13 workers" in found["warnings"][0]
    assert simulate(capsys, *SHORT)["warnings"] == []


def test_a_runtime_above_the_slo_and_lengths_that_nothing_takes(capsys: Capture) -> None:
    found = simulate(capsys, *SHORT, "--slo-ms", "9")
    assert "takes 10 ms, with the overhead more than the SLO of 9 ms" in found["warnings"][0]
    found = simulate(capsys, "--duration-s", "3", "--max-lengths", "64,128")
    assert found["outcomes"]["rejected"] > 0
    (warning,) = found["warnings"]
    share = found["outcomes"]["rejected"] / found["requests"]
    assert "requests of more than 128 tokens are rejected" in warning
    assert warning.endswith(f": {share:.2%} of the requests")


def test_what_a_month_costs(capsys: Capture) -> None:
    found = simulate(capsys, *SHORT, "--price", "2")
    assert found["cost_per_month"] == pytest.approx(2 * 730)
    assert found["cost_per_million_on_time"] == pytest.approx(2 * 20 / 3600 / found["requests"] * 1e6, rel=1e-4)
    assert main(["simulate", *SHORT, "--price", "2"]) == 0
    assert "cost at 2 a GPU-hour: 1,460 a month (730 h)" in capsys.readouterr().out
    assert main(["simulate", "--duration-s", "1", "--workers", "8,9", "--price", "0.5"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(("8 GPUs", "9 GPUs"))]
    assert [row[-1] for row in rows] == ["2,920", "3,285"]


def test_failures_cost_what_they_cost(capsys: Capture) -> None:
    """The one worker is away from 5 s to 9 s: what arrives meanwhile waits."""
    found = simulate(capsys, *SHORT, "--fail", "5:0:4")
    assert found["outcomes"]["failed"] == 0
    assert found["max_ms"] == pytest.approx(4000, rel=0.05)
    slow = simulate(capsys, *SHORT, "--slow", "0:0:1.5")
    assert slow["mean_execution_ms"] == 15.0


def test_finding_workers(capsys: Capture) -> None:
    arguments = ["--find-workers", "--attainment", "0.99", "--slo-ms", "30", "--duration-s", "10"]
    queue = QUEUE[2:]  # without --workers
    found = simulate(capsys, *queue, "--rate", "400", *arguments)
    tried = {each["workers"]: each["slo_attainment"] for each in found["tried"]}
    assert found["workers"] > 4
    assert tried[found["workers"]] >= 0.99
    assert tried[found["workers"] - 1] < 0.99
    assert main(["simulate", *queue, "--rate", "400", *arguments]) == 0
    assert f"{found['workers']} GPUs keep 99% on time" in capsys.readouterr().out


def test_no_number_of_workers_will_do(capsys: Capture) -> None:
    found = simulate(capsys, *QUEUE[2:], "--duration-s", "2", "--slo-ms", "9", "--find-workers")
    assert found["workers"] is None
    assert "no more with twice as many" in found["reason"]


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize(("lowest", "needed"), [(1, 1), (1, 2), (3, 3), (7, 100), (50, 53), (10, 11)])
def test_the_search_finds_the_least(width: int, lowest: int, needed: int) -> None:
    runs = 0

    def run(counts: Sequence[int]) -> list[Any]:
        nonlocal runs
        runs += len(counts)
        assert min(counts, default=lowest) >= lowest
        return [types.SimpleNamespace(slo_attainment=min(1.0, 0.5 + 0.5 * count / needed)) for count in counts]

    found = search(run, lowest=lowest, attainment=0.9999, width=width)
    assert found.workers == needed
    assert needed == lowest or needed - 1 in found.tried
    assert runs == len(found.tried) <= 26
    assert found.worse_above(0.9999) == []


def test_the_search_looks_below_a_number_that_happens_to_fail() -> None:
    def run(counts: Sequence[int]) -> list[Any]:
        return [types.SimpleNamespace(slo_attainment=1.0 if count >= 13 and count != 14 else 0.9) for count in counts]

    found = search(run, lowest=7, attainment=0.99, width=1)
    assert found.workers == 13
    assert {11, 12} <= set(found.tried)
    assert found.worse_above(0.99) == [14]


def test_the_least_number_of_workers_of_a_load() -> None:
    text = """
    [workload]
    arrivals = "constant"
    rate = 1000
    duration_s = 10
    length = "bimodal:50:400:0.25"
    [cluster]
    workers = 3
    [[runtime]]
    max_length = 64
    points = [[64, 1, 2.0], [64, 4, 4.0]]
    max_batch = 4
    [[runtime]]
    max_length = 512
    latency_ms = 8
    """
    offered = offered_workers(build(config.parse(text, base=Path())).scenario)
    # 750 of 1 ms (a quarter of a full batch), 250 of 8 ms.
    assert offered == pytest.approx(0.75 + 2.0, rel=0.05)
    # The cheapest 75 % of the requests; then those and a fifth of the others.
    assert offered_workers(build(config.parse(text, base=Path())).scenario, 0.5) == pytest.approx(0.5, rel=0.05)
    assert offered_workers(build(config.parse(text, base=Path())).scenario, 0.8) == pytest.approx(1.15, rel=0.1)
    assert [least_workers(x) for x in (0.0, 0.2, 2.75, 3.0, 3.0000000000000004, 3.001)] == [1, 1, 3, 3, 3, 4]


# Requests of 5 ms, one each millisecond: exactly five workers, without any wait.
EXACT = ["--max-lengths", "512", "--latency-ms", "5", "--arrivals", "constant", "--rate", "1000",
         "--length", "fixed:100", "--overhead-ms", "0", "--slo-ms", "6", "--duration-s", "20"]  # fmt: skip


def test_a_load_of_a_whole_number_needs_that_number(capsys: Capture) -> None:
    found = simulate(capsys, *EXACT, "--attainment", "1", "--find-workers")
    assert found["workers"] == 5
    assert min(each["workers"] for each in found["tried"]) == 5
    alone = simulate(capsys, *EXACT, "--workers", "5")
    assert alone["slo_attainment"] == 1.0
    assert alone["warnings"] == []
    fewer = simulate(capsys, *EXACT, "--workers", "4")
    assert "overload: the load needs at least 5 workers" in fewer["warnings"][0]


def test_fewer_workers_than_the_load_where_a_share_on_time_will_do(capsys: Capture) -> None:
    """Short requests on a runtime of their own are on time, whatever becomes of the long ones."""
    mixed = ["--max-lengths", "64,512", "--latency-ms", "1,40", "--arrivals", "constant", "--rate", "100",
             "--seed", "1", "--length", "bimodal:50:400:0.5",
             "--overhead-ms", "0", "--slo-ms", "100", "--duration-s", "20",
             "--policy", "ilb", "--allocation", "even"]  # fmt: skip
    found = simulate(capsys, *mixed, "--attainment", "0.45", "--find-workers")
    load = 100 * (0.5 * 1 + 0.5 * 40) / 1000
    assert load > 2
    assert found["workers"] == 2
    assert min(each["workers"] for each in found["tried"]) < load


def test_a_scenario_file_is_written_read_and_overridden(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "queue.toml"
    flags = simulate(capsys, *SHORT, "--fail", "3:0:1", "--save", str(path))
    assert "latency_ms = 10.0" in path.read_text()
    file = simulate(capsys, str(path))
    for each in (flags, file):
        each.pop("wall_s")
    assert flags == file
    assert simulate(capsys, str(path), "--rate", "25")["requests"] < 0.7 * file["requests"]
    assert simulate(capsys, str(path), "--profile", "bert-base", "--scheme", "st")["runtimes"][0]["busy_s"] > 0


def test_the_trace_of_a_file_and_rows_of_each_request(tmp_path: Path, capsys: Capture) -> None:
    trace, rows = tmp_path / "t.csv", tmp_path / "rows.csv"
    trace.write_text("arrived_at_s,length\n0.0,30\n0.001,600\n0.002,40\n")
    arguments = ["--trace", str(trace), "--max-lengths", "64", "--latency-ms", "5", "--workers", "1"]
    found = simulate(capsys, *arguments, "--overhead-ms", "1", "--record", str(rows))
    assert found["outcomes"] == {
        "on_time": 2, "late": 0, "rejected": 1, "expired": 0, "cancelled": 0, "failed": 0
    }  # fmt: skip
    with rows.open() as file:
        read = list(csv.DictReader(file))
    assert [row["outcome"] for row in read] == ["on_time", "rejected", "on_time"]
    assert [row["latency_ms"] for row in read] == ["6.000000", "", "9.000000"]
    assert [row["wait_ms"] for row in read] == ["0.000000", "", "3.000000"]
    assert [row["runtime"] for row in read] == ["static-64", "", "static-64"]
    assert [float(row["arrived_at_s"]) for row in read] == [0.0, 0.001, 0.002]


def emulated(folder: Path, *arguments: str) -> str:
    """A repository of emulated runtimes."""
    assert main(["compile", "emulate", "--out", str(folder), *arguments]) == 0
    return str(folder)


def test_a_repository_is_taken_as_it_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    emulated(tmp_path / "repo", "--max-lengths", "64,512", "--latency-ms", "1,5", "--max-batch", "4",
             "--batch-growth", "0.5")  # fmt: skip
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    saved = tmp_path / "s.toml"
    found = simulate(capsys, "--profile", "repo", "--duration-s", "4", "--save", str(saved), "--rate", "3000")
    assert [runtime["max_length"] for runtime in found["runtimes"]] == [64, 512]
    assert sum(runtime["batches"] for runtime in found["runtimes"]) < found["requests"]
    monkeypatch.chdir("/")  # the file names the folder beside it
    again = simulate(capsys, str(saved))
    assert again["runtimes"] == found["runtimes"]
    single = simulate(capsys, str(saved), "--max-batch", "1", "--max-lengths", "512")
    assert [runtime["batches"] for runtime in single["runtimes"]] == [single["requests"]]
    assert main(["simulate", str(saved), "--scheme", "dt"]) == 2
    assert "name a model of its latency with --dynamic, for example added" in capsys.readouterr().err
    modelled = simulate(capsys, str(saved), "--scheme", "dt", "--dynamic", "added", "--duration-s", "1")
    assert [runtime["name"] for runtime in modelled["runtimes"]] == ["dynamic-512"]


def test_a_repository_of_dynamic_runtimes(tmp_path: Path, capsys: Capture) -> None:
    repository = emulated(tmp_path / "repo", "--max-lengths", "512", "--latency-ms", "5", "--dynamic")
    capsys.readouterr()
    assert main(["simulate", "--profile", repository]) == 2
    assert "has dynamic runtimes only: the scheme dt takes them" in capsys.readouterr().err
    found = simulate(capsys, "--profile", repository, "--scheme", "dt", "--duration-s", "2")
    assert found["padding"] == 0.0


def test_ctrl_c_ends_it_cleanly(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("arlo.simulator.run.run", interrupted)
    assert main(["simulate", "--duration-s", "1"]) == 130
    captured = capsys.readouterr()
    assert captured.err.strip() == "arlo: interrupted before there was a result"
    assert captured.out == ""


def test_profiles_are_listed(capsys: Capture) -> None:
    assert main(["simulate", "--profiles"]) == 0
    out = capsys.readouterr().out
    assert "bert-base (estimated; SLO 150 ms" in out
    assert "bert-large" in out


def test_flags_and_keys_agree() -> None:
    """Every flag sets a key that exists; a run of all defaults is that of an empty file."""
    import argparse

    from arlo.cli.simulate.flags import add_flags, flags
    from arlo.simulator.scenario.file import SECTIONS, ScenarioConfig

    assert {flag.section for flag in flags()} == set(SECTIONS)
    assert len({flag.option for flag in flags()}) == len(flags())
    parser = argparse.ArgumentParser()
    parser.add_argument("file", nargs="?", type=Path)
    add_flags(parser)
    (plan,) = plans(parser.parse_args([]))
    assert plan.config == ScenarioConfig()
    (plan,) = plans(parser.parse_args(["--arrivals", "stable", "--rate", "steps:0=100,60=200"]))
    assert (plan.config.workload.arrivals, plan.config.workload.rate) == ("twitter-stable", "steps:0=100,60=200")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--max-lengths 64,128 --latency-ms 1", "--latency-ms needs one number for each of 2 --max-lengths, not 1"),
        ("--max-lengths 128,64 --latency-ms 1,2", "--max-lengths must ascend"),
        ("--latency-ms 3", "--latency-ms needs --max-lengths"),
        ("--latency-ms 3 --max-lengths 9 --profile bert-base", "give --latency-ms or --profile, not both"),
        ("--max-lengths 64 --latency-ms 1 --length fixed:100", "longer than the longest runtime, 64 tokens"),
        ("--max-lengths 64,1024", "--max-lengths has 1024, but the latency profile bert-base ends at 512"),
        ("--rate x", "--rate must be numbers, several joined by commas, not 'x'"),
        ("--rate 0", "--rate must be above 0"),
        ("--workers 4-2", "--workers must be numbers such as 8,10,12 or a range such as 8-12, not '4-2'"),
        ("--workers 1-2000", "the lists ask for 2,000 runs: at most 1,000"),
        ("--workers 1.5", "--workers must be whole numbers"),
        ("--duration-s 1,2", "--duration-s takes one number, not the list '1,2'"),
        ("--policy fcfs", '--policy must be "rs" or '),
        ("--scheme st,,dt", "--scheme has an empty value"),
        ("--scheme dt --max-lengths 64 --latency-ms 1", "the scheme dt needs a dynamic runtime"),
        ("--profile bert-bas", "did you mean 'bert-base'?"),
        ("--instances 1,2,3", "--instances needs one number for each of the 8 runtimes, not 3"),
        ("--workers 5 --instances 1,2", "--instances are 3 in all, but there are 5 workers"),
        ("--fail 3", "--fail is AT:WORKER or AT:WORKER:RESTART, as in 30:2:5, not '3'"),
        ("--fail 3:99", "the worker of --fail and --slow must be from 0 to 9, not 99"),
        ("--slow 3:1", "--slow is AT:WORKER:FACTOR"),
        ("--burst 3 --arrivals poisson", "burst cannot be set here"),
        ("--length fixd:3", "lengths are paper, tweets, rag, mix, fixed:N"),
        ("--trace no.csv", "no.csv"),
        ("--trace no.csv --length fixed:3", "--length is of drawn requests; leave it out with trace"),
        ("--warmup-s 120", "--warmup-s must be below --duration-s (120)"),
        ("--attainment 0.9", "--attainment belongs to --find-workers"),
        ("--find-workers --attainment 2", "--attainment must be above 0, at most 1, not 2"),
        ("--find-workers --workers 3", "--workers is left out with --find-workers"),
        ("--find-workers --scaling target", "--find-workers is for a fixed number of GPUs"),
        ("--record x.txt", "--record writes .csv, not '.txt'"),
        ("--record x.csv --rate 1,2", "--record writes one run, but the lists ask for 2"),
        ("--plot x.png", "--plot writes a page, .html, or a file for `arlo report`, .json, not 'x.png'"),
        ("--save x.toml --rate 1,2", "--save writes one scenario, but the lists ask for 2 runs"),
        ("--save no/such/x.toml", "no/such is no folder: make it first"),
        ("--price 0", "--price must be above 0, not 0"),
        ("--jobs 0", "--jobs must be at least 1"),
        ("no.toml", "no.toml does not exist"),
    ],
)
def test_wrong_command_lines(arguments: str, message: str, capsys: Capture) -> None:
    assert main(["simulate", *arguments.split()]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_wrong_flag_over_a_file_names_both(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "s.toml"
    path.write_text("[cluster]\nworkers = 3\n[allocation]\ninstances = [1, 2]\n[[runtime]]\nmax_length = 64\n"
                    "latency_ms = 1\n[[runtime]]\nmax_length = 512\nlatency_ms = 4\n")  # fmt: skip
    assert main(["simulate", str(path), "--workers", "4"]) == 2
    assert f"--instances are 3 in all, but there are 4 workers (with {path})" in capsys.readouterr().err
    assert simulate(capsys, str(path), "--instances", "2,2", "--duration-s", "1")["workers_max"] == 4


EXAMPLES = sorted((Path(__file__).parents[3] / "examples/simulate").glob("*.toml"))


@pytest.mark.long
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_run(path: Path, capsys: Capture) -> None:
    found = simulate(capsys, str(path), "--rate", "40", "--duration-s", "120")
    assert found["requests"] > 1000
    assert found["slo_attainment"] > 0.99
    assert found.get("types", {}).get("evicted", 0) == 0


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES} >= {"bert-base", "autoscaling", "failures"}
