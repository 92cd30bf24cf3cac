"""`arlo top`: rates between two samples, small charts, and the command over a real control port and admin server."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from arlo.cli import main
from arlo.cli.top import charts
from arlo.cli.top.parts import number, percent, plans, seconds
from arlo.cli.top.source import ControlUnreachableError, checked, fetch_status, seen_from_here
from arlo.cli.top.view import History, Sample, view
from arlo.control.gateway.messages import to_dict
from arlo.control.http.server import ControlHttp
from arlo.control.http.status import ControlStatus
from arlo.errors import ConfigError
from tests.fakes.admin_server import AdminServer
from tests.fakes.control_status import (
    CASCADE,
    NOW_MS,
    cascade_deployment,
    cascade_stats,
    cascade_status,
    control_status,
    gateway_deployment,
    gateway_stats,
    several_deployment,
    several_stats,
    several_status,
)


def sample(step: int, **other: Any) -> Sample:
    values: dict[str, Any] = {
        "at_s": 2.0 * step,
        "control": control_status(),
        "gateway": to_dict(gateway_stats(step=step)),
    }
    return Sample(**(values | other))


# --- the numbers ---


def test_rates_are_differences_over_the_gateways_own_time() -> None:
    shown = view(sample(3), base=to_dict(gateway_stats(step=1)), long_base=to_dict(gateway_stats(step=1)))
    assert shown.rows_per_s == 580 / 2
    assert shown.goodput_rps == 577 / 2
    assert shown.attainment == pytest.approx(577 / 580)
    assert shown.padding == 0.125
    assert shown.window_s == 4
    assert sum(shown.lengths) == 2 * 580
    assert [row.share for row in shown.runtimes] == pytest.approx([400 / 580, 120 / 580, 48 / 580, 12 / 580])
    assert [row.demoted for row in shown.runtimes] == [0, pytest.approx(8 / 122), None, pytest.approx(0.8)]
    by_id = {row.id: row for row in shown.workers}
    assert (by_id["w2"].rows_per_s, by_id["w2"].busy) == (61, pytest.approx(0.52))
    assert (by_id["w3"].rows_per_s, by_id["w3"].step, by_id["w3"].target) == (None, "loading", "minilm_256")
    assert shown.runtimes[0].load == pytest.approx(96.4 / (2 * 130))


def test_one_sample_has_no_rates() -> None:
    shown = History().add(sample(1))
    assert (shown.rows_per_s, shown.attainment, shown.lengths, shown.workers[0].busy) == (None, None, [], None)
    assert shown.workers[0].in_flight == 1


def test_a_restarted_gateway_begins_again() -> None:
    """Its counters are smaller than before: no rate until two samples of its new life."""
    history = History()
    history.add(sample(50))
    fresh = to_dict(gateway_stats(step=51, started_at_ms=NOW_MS))
    shown = history.add(sample(51, gateway=fresh))
    assert (shown.rows_per_s, shown.goodput_rps, shown.lengths) == (None, None, [])
    shown = history.add(sample(52, gateway=to_dict(gateway_stats(step=52, started_at_ms=NOW_MS))))
    assert shown.rows_per_s == 290


def test_rates_cover_the_last_seconds_and_the_histogram_the_last_minute() -> None:
    history = History()
    for step in range(1, 80):
        shown = history.add(sample(step))
    assert shown.rows_per_s == 290
    assert shown.window_s == 60
    assert len(shown.p98_ms) == 79
    assert history.add(sample(80, at_s=1e6)).p98_ms == [(0.0, 41.0)]


def test_a_long_interval_and_a_gateway_that_was_away() -> None:
    history = History()
    history.add(sample(1, at_s=0.0))
    assert history.add(sample(31, at_s=60.0)).rows_per_s == 290
    history.add(sample(32, at_s=62.0, gateway=None))
    shown = history.add(sample(33, at_s=64.0))
    assert shown.rows_per_s == 290


def test_an_instance_that_is_new_or_came_back_counts_from_zero() -> None:
    base = to_dict(gateway_stats(step=5))
    for item in base["instances"]:
        if item["worker"] == "w0":
            item["started"] = 10**6
    base["instances"] = [item for item in base["instances"] if item["worker"] != "w1"]
    by_id = {row.id: row for row in view(sample(6), base=base).workers}
    assert by_id["w0"].rows_per_s == 196 * 6 / 2
    assert by_id["w1"].rows_per_s == 196 * 6 / 2
    assert by_id["w1"].busy is not None
    assert by_id["w1"].busy <= 1


def test_two_instances_of_a_worker_in_the_middle_of_a_switch_are_one_row() -> None:
    stats = gateway_stats(step=2)
    stats.instances.add(id="w2-2", worker="w2", runtime="minilm_256", state="STATE_JOINING", in_flight=1, queued=4)
    (row,) = [row for row in view(sample(2, gateway=to_dict(stats))).workers if row.id == "w2"]
    assert (row.runtime, row.in_flight, row.queued) == ("minilm_128", 3, 4)


def test_without_a_control_plane_the_gateways_deployment_names_the_runtimes() -> None:
    shown = view(sample(2, control=None, deployment=to_dict(gateway_deployment())), base=to_dict(gateway_stats(step=1)))
    assert (shown.model, shown.slo_ms) == ("minilm", 150)
    first = shown.runtimes[0]
    assert (first.name, first.observed, first.latency_ms) == ("minilm_64", 2, 1.15)
    assert [row.step for row in shown.workers] == ["active"] * 4
    bare = view(sample(2, control=None))
    assert [row.max_length for row in bare.runtimes] == [64, 128, 256, 512]


def test_a_worker_that_the_gateway_has_ejected_is_in_trouble() -> None:
    stats = gateway_stats(step=2)
    stats.instances[0].state = 4  # STATE_EJECTED
    row = view(sample(2, gateway=to_dict(stats))).workers[0]
    assert (row.id, row.step, row.trouble) == ("w0", "ejected", True)


def test_a_worker_whose_process_is_gone_says_so() -> None:
    control = control_status()
    control.workers[0] = dataclasses.replace(control.workers[0], state="failed", error="exit code 1")
    row = view(sample(1, control=control)).workers[0]
    assert (row.step, row.trouble, row.error) == ("failed", True, "exit code 1")


def of_models(step: int, **other: Any) -> Sample:
    stats = {model: to_dict(several_stats(model, step=step)) for model in ("embedder", "reranker")}
    values: dict[str, Any] = {
        "control": several_status(dedicated=True),
        "gateway": stats["embedder"],
        "deployment": to_dict(several_deployment()),
        "several": stats,
    }
    return sample(step, **(values | other))


def test_of_several_models_each_has_rates_of_its_own() -> None:
    history = History()
    history.add(of_models(1))
    shown = history.add(of_models(3))
    assert [(row.name, row.slo_ms, row.rows_per_s, row.queued) for row in shown.models] == [
        ("embedder", 50, 290, 3),
        ("reranker", 200, 35, 9),
    ]
    assert [row.attainment for row in shown.models] == [pytest.approx(577 / 580), 0.9]
    assert [row.observed for row in shown.models] == [2, 1]
    # Above: all of them together. No latency, as each has another SLO.
    assert (shown.rows_per_s, shown.slo_ms, shown.model) == (325, None, "embedder, reranker")
    assert shown.attainment == pytest.approx((577 + 45) / (580 + 50))
    assert shown.gateway is not None
    assert (shown.gateway["queued"], shown.gateway["total"]["count"], shown.p98_ms) == (12, 0, [])
    lengths = [(row.model, row.max_length, row.demand, row.share) for row in shown.runtimes]
    assert lengths == [
        ("embedder", 64, 32, 0.5),
        ("embedder", 512, 7.5, 0.5),
        ("reranker", 256, 128, 0.5),
        ("reranker", 512, 7.5, 0.5),
    ]


def test_one_of_several_models_is_shown_in_full() -> None:
    history = History()
    history.add(of_models(1, chosen="reranker", gateway=to_dict(several_stats("reranker", step=1))))
    shown = history.add(of_models(2, chosen="reranker", gateway=to_dict(several_stats("reranker", step=2))))
    assert (shown.model, shown.slo_ms, shown.rows_per_s) == ("reranker", 200, 35)
    assert [row.model for row in shown.runtimes] == ["reranker", "reranker"]
    assert [row.name for row in shown.models] == ["embedder", "reranker"]


def test_without_a_control_plane_the_gateway_says_which_models_there_are() -> None:
    shown = view(of_models(2, control=None), several=of_models(1).several)
    assert [(row.name, row.slo_ms, row.desired, row.observed, row.rows_per_s) for row in shown.models] == [
        ("embedder", 50, None, 3, 290),
        ("reranker", 200, None, 3, 35),
    ]
    assert [(row.model, row.max_length) for row in shown.runtimes][-1] == ("reranker", 512)
    alone = view(sample(2, control=several_status(dedicated=False), gateway=None))
    assert [(row.name, row.observed, row.rows_per_s) for row in alone.models] == [
        ("embedder", 3, None),
        ("reranker", 3, None),
    ]


def of_cascade(step: int, **other: Any) -> Sample:
    stats = {model: to_dict(cascade_stats(model, step=step)) for model in CASCADE}
    values: dict[str, Any] = {
        "control": cascade_status(),
        "gateway": stats[CASCADE[1]],
        "deployment": to_dict(cascade_deployment()),
        "several": stats,
    }
    return sample(step, **(values | other))


def test_a_row_of_a_cascade_is_one_row_whatever_stages_it_runs_on() -> None:
    history = History()
    history.add(of_cascade(1))
    shown = history.add(of_cascade(3))
    assert (shown.model, shown.slo_ms, shown.rows_per_s) == ("kinds", 50, 290)
    assert shown.gateway is not None
    assert (shown.gateway["queued"], shown.gateway["in_flight"]) == (5, 5)  # at the stages
    assert shown.p98_ms
    assert [(row.name, row.observed, row.queued, row.goodput_rps) for row in shown.models] == [
        ("kinds", None, 5, shown.goodput_rps),
        ("kinds.small", 2, 1, None),
        ("kinds.large", 1, 4, None),
    ]
    assert {row.model for row in shown.runtimes} == {"kinds.small", "kinds.large"}
    (found,) = shown.cascades
    assert (found.name, found.point, found.price, found.degraded) == ("kinds", "ap", 2, 0.04)
    small, large = found.stages
    assert (small.answers_per_s, small.reach, small.went_on) == (50, 1, 0.4)
    assert small.ended == {"confident": 0.58, "deadline": 0.02, "load": 0.02}
    assert (large.answers_per_s, large.reach, large.ended) == (19, 0.38, {"final": 1})


def test_a_cascade_that_is_chosen_and_one_without_rates() -> None:
    chosen = view(of_cascade(2, chosen="kinds", gateway=to_dict(cascade_stats("kinds", step=2))))
    assert chosen.gateway is not None
    assert (chosen.model, chosen.slo_ms, chosen.gateway["queued"]) == ("kinds", 50, 5)
    assert {row.model for row in chosen.runtimes} == {"kinds.small", "kinds.large"}
    assert [(row.reach, row.ended) for row in chosen.cascades[0].stages] == [(None, {}), (None, {})]
    stage = view(of_cascade(2, chosen="kinds.large", gateway=to_dict(cascade_stats("kinds.large", step=2))))
    assert stage.cascades == []
    assert {row.model for row in stage.runtimes} == {"kinds.large"}


# --- words and charts ---


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (12, "12 s"),
        (60, "1m 00s"),
        (3599, "59m 59s"),
        (3725, "1h 02m"),
        (9e4, "1d 01h"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text


def test_numbers() -> None:
    assert [number(None), number(0.25, 2), number(12345.6)] == ["-", "0.25", "12,346"]
    assert [percent(None), percent(0.125), percent(0.99999, 2), percent(1.0, 2)] == [
        "-",
        "12 %",
        ">99.99 %",
        "100.00 %",
    ]


def test_a_bar_of_something_is_never_empty_and_never_too_high() -> None:
    assert charts.column(0, 10, 2, charts.BLOCKS) == "  "
    assert charts.column(1e-9, 10, 2, charts.BLOCKS) == " ▁"
    assert charts.column(5, 10, 2, charts.BLOCKS) == " █"
    assert charts.column(10, 10, 2, charts.BLOCKS) == "██"
    assert charts.bar(7, 4, charts.ASCII).plain == "####"


def test_the_histogram_counts_every_row_once_and_marks_the_edges() -> None:
    lengths = [0] * 65
    lengths[1] = lengths[8] = 1  # both in the first of eight bars
    lengths[9] = 1
    lengths[64] = 4
    rows = [line.plain for line in charts.histogram(lengths, [16, 64], 8, 1, charts.BLOCKS)]
    assert rows == ["▄▂     █", "16    64"]


def test_rows_longer_than_the_longest_runtime_widen_the_histogram() -> None:
    lengths = [0] * 129
    lengths[128] = 1
    assert charts.histogram(lengths, [64], 16, 1, charts.BLOCKS)[1].plain == "      64     128"
    assert charts.histogram([], [], 80, 4, charts.BLOCKS) == []


def test_the_allocation_over_time_leaves_out_plans_that_were_not_carried_out() -> None:
    status = control_status()
    span_s, over_time = charts.allocation_over_time(status, 100, charts.BLOCKS)
    assert span_s == 446
    assert over_time["minilm_128"][0] == 2
    assert 3 not in over_time["minilm_128"], "the plan that gave 128 three instances was not carried out"
    assert over_time["minilm_128"][-1] == 1
    nothing = dataclasses.replace(status, plans=[])
    assert charts.allocation_over_time(nothing, 3, charts.BLOCKS) == (0.0, {
        "minilm_64": [2, 2, 2], "minilm_128": [1, 1, 1], "minilm_256": [1, 1, 1], "minilm_512": [1, 1, 1],
    })  # fmt: skip


def test_a_plan_that_nothing_solved_predicts_nothing() -> None:
    status = control_status()
    status.plans = [dataclasses.replace(status.plans[0], solver="", predicted_mean_ms=0.0, note="as configured")]
    assert plans(status, 80, 9)[1].plain == "7m 26s ago  start  1 2 1 1        5     -     -  -  as configured"


# --- where it comes from ---


def test_a_loopback_admin_address_is_on_the_control_planes_machine() -> None:
    assert seen_from_here("127.0.0.1:8003", "127.0.0.1:8004") == "127.0.0.1:8003"
    assert seen_from_here("0.0.0.0:8003", "localhost:8004") == "127.0.0.1:8003"
    assert seen_from_here("127.0.0.1:8003", "10.0.0.5:8004") == "10.0.0.5:8003"
    assert seen_from_here("gateway-admin:8003", "10.0.0.5:8004") == "gateway-admin:8003"
    assert seen_from_here("unix:/run/a.sock", "127.0.0.1:8004") == checked("unix:/run/a.sock", "--admin")
    with pytest.raises(ConfigError, match="--control must be HOST:PORT"):
        checked("unix:/run/a.sock", "--control")


def test_status_of_a_newer_version_is_read_and_of_another_program_is_refused() -> None:
    document = control_status().to_json() | {"new": 1}
    document["workers"][0]["new"] = 2
    assert ControlStatus.from_json(document) == control_status()
    several = several_status(dedicated=True)
    assert ControlStatus.from_json(json.loads(json.dumps(several.to_json()))) == several
    del document["models"]  # an older one
    assert [model.name for model in ControlStatus.from_json(document).each_model] == ["minilm"]
    for broken in ({}, {"runtimes": []}, document | {"workers": [{"id": "w0"}]}, {**document, "scaling": None}):
        with pytest.raises(ValueError, match="not a status document of this version"):
            ControlStatus.from_json(broken)


class MovingAdmin(AdminServer):
    """Each look is one step of 2 s later."""

    steps = 0

    async def _watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.steps += 1
        yield gateway_stats(step=self.steps)


class ModelsAdmin(AdminServer):
    """The same of two models on the same workers; a step for each three questions: the first model, then each."""

    asked = 0

    async def _watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.asked += 1
        yield several_stats(request.model or "embedder", step=1 + (self.asked - 1) // 3)


@contextlib.asynccontextmanager
async def cluster() -> AsyncIterator[tuple[str, MovingAdmin]]:
    """A control port and the admin server that it names."""
    async with MovingAdmin() as admin:
        admin.deployment = gateway_deployment()
        control = ControlHttp("127.0.0.1:0", lambda: control_status(gateway_admin=admin.address))
        address = await control.start()
        try:
            yield address, admin
        finally:
            await control.stop()


async def top(*arguments: str) -> int:
    return await asyncio.to_thread(main, ["top", *arguments])


async def test_once_prints_one_screen_without_control_codes(capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster() as (address, _):
        assert await top("--control", address, "--once", "--interval", "0.1") == 0
    screen = capsys.readouterr().out
    assert "\x1b" not in screen
    assert screen.startswith("minilm  replacing  slo 150 ms  policy eft")
    assert "rows/s 290.0" in screen
    assert "w4: killed by signal 9" in screen
    assert max(map(len, screen.splitlines())) <= 80


async def test_once_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster() as (address, admin):
        assert await top("--control", address, "--once", "--json", "--interval", "0.1") == 0
        document = json.loads(capsys.readouterr().out)
        assert document["control"] == control_status(gateway_admin=admin.address).to_json()
    assert document["gateway"]["policy"] == "eft"
    assert document["now"]["rows_per_s"] == 290
    assert document["now"]["workers"][2]["rows_per_s"] == 61
    assert (document["control_error"], document["gateway_error"]) == (None, None)


async def test_several_models_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    async with ModelsAdmin() as admin:
        admin.deployment = several_deployment()
        nobody = "127.0.0.1:1"
        assert await top("--control", nobody, "--admin", admin.address, "--once", "--json", "--interval", "0.1") == 0
        document = json.loads(capsys.readouterr().out)
        assert await asyncio.to_thread(main, ["status", "--admin", admin.address]) == 0
        screen = capsys.readouterr().out
        assert await asyncio.to_thread(main, ["status", "--admin", admin.address, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert await asyncio.to_thread(main, ["status", "--admin", admin.address, "--model", "reranker"]) == 0
        alone = capsys.readouterr().out
    assert [(row["name"], row["rows_per_s"]) for row in document["now"]["models"]] == [
        ("embedder", 290),
        ("reranker", 35),
    ]
    assert list(document["gateway_by_model"]) == ["embedder", "reranker"]
    assert "2 models" in screen
    for line in (
        r"^embedder +50 +3 +4 ",
        r"^reranker +200 +9 +1 +60.0 +150.0 ",
        r"^reranker +\d+ +\d+ +0 ",
        r"^embedder +512 +3 +",
        r"^reranker +256 +3 +",
    ):
        assert re.search(line, screen, re.MULTILINE), screen
    assert list(told["models"]) == ["embedder", "reranker"]
    assert told["stats"]["model"] == "embedder"
    assert "model reranker  deployment 12" in alone
    assert "slo 200 ms" in alone


async def test_one_of_the_two_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    nobody = "127.0.0.1:1"
    async with cluster() as (address, admin):
        assert await top("--control", nobody, "--admin", admin.address, "--once", "--interval", "0.1") == 0
        only_gateway = capsys.readouterr().out
        assert await top("--control", address, "--admin", nobody, "--once", "--interval", "0.1") == 0
        only_control = capsys.readouterr().out
    assert "no control plane answers at 127.0.0.1:1" in only_gateway
    assert "rows/s 290.0" in only_gateway
    assert "no gateway answers at the admin address 127.0.0.1:1" in only_control
    assert "plans: next in 34 s" in only_control


async def test_neither_is_exit_code_6(capsys: pytest.CaptureFixture[str]) -> None:
    assert await top("--control", "127.0.0.1:1", "--admin", "127.0.0.1:1", "--once") == 6
    error = capsys.readouterr().err
    assert "no control plane answers at 127.0.0.1:1: is `arlo serve` running" in error
    assert "no gateway answers at the admin address 127.0.0.1:1" in error


async def test_another_programs_port_is_named() -> None:
    async with MovingAdmin() as admin:
        with pytest.raises(ControlUnreachableError, match=r"127\.0\.0\.1"):
            await asyncio.to_thread(fetch_status, admin.address)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x.toml", "--control", "h:1"], "give CONFIG.toml or --control, not both"),
        (["--interval", "0"], "--interval must be from 0.1 to 60 seconds, not 0"),
        (["--control", "8004"], "--control must be HOST:PORT with a port from 1 to 65535: not '8004'"),
        (["--control", "127.0.0.1:0"], "that port is drawn when `arlo serve` starts"),
        (["--admin", "h:99999"], "--admin must be HOST:PORT"),
        ([], "standard output is not a terminal: give --once for one screen, or --json"),
    ],
)
def test_wrong_command_lines(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", *arguments]) == 2
    assert message in capsys.readouterr().err


async def test_addresses_come_from_the_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "serve.toml"
    async with cluster() as (address, _):
        config.write_text(
            f'[model]\nrepository = "m"\nslo_ms = 150\n[deployment]\nallocation = {{64 = 1}}\n'
            f'[control]\nhttp_address = "{address}"\n'
        )
        assert await top(str(config), "--once", "--json", "--interval", "0.1") == 0
    assert json.loads(capsys.readouterr().out)["control"]["model"] == "minilm"


# --- a live screen in a terminal ---


def read_until(terminal: int, pattern: bytes, timeout_s: float = 20.0) -> bytes:
    """What comes from the terminal, up to `pattern`."""
    seen = b""
    while not re.search(pattern, seen):
        assert select.select([terminal], [], [], timeout_s)[0], f"no {pattern!r} in {seen[-2000:]!r}"
        seen += os.read(terminal, 65536)
        assert len(seen) < 1_000_000, f"no {pattern!r} in {seen[-2000:]!r}"
    return seen


def live(address: str, press: bytes | signal.Signals) -> tuple[int, bytes]:
    """Run it in a terminal of 80 x 24, wait for rates and a change of size, then press; exit code, what was written."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    before = termios.tcgetattr(theirs)
    environment = os.environ | {"TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "arlo.cli", "top", "--control", address, "--interval", "0.2"]
    try:
        with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
            try:
                seen = read_until(ours, rb"290\.0")
                termios.tcsetwinsize(theirs, (40, 150))
                process.send_signal(signal.SIGWINCH)
                seen += read_until(ours, rb"retries")  # the narrow screen has no room for it
                if isinstance(press, bytes):
                    os.write(ours, press)
                else:
                    process.send_signal(press)
                seen += read_until(ours, rb"\x1b\[\?1049l")
                code = process.wait(10)
            finally:
                process.kill()
        assert termios.tcgetattr(theirs) == before, "the terminal is left as it was"
    finally:
        os.close(ours)
        os.close(theirs)
    return code, seen


@pytest.mark.parametrize(("press", "code"), [(b"q", 0), (signal.SIGINT, 130)])
async def test_live_until_q_or_ctrl_c(press: bytes | signal.Signals, code: int) -> None:
    async with cluster() as (address, _):
        got, seen = await asyncio.to_thread(live, address, press)
    assert got == code
    assert b"Traceback" not in seen
    assert seen.count(b"\x1b[?1049h") == seen.count(b"\x1b[?1049l") == 1
