"""`arlo top`: rates between two samples, small charts, and the commands over a real control port and
admin server."""

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

from arlo import proto
from arlo.cli import main
from arlo.cli.top import charts
from arlo.cli.top.source import ControlUnreachableError, checked, fetch_status, seen_from_here
from arlo.cli.top.tables import exactly, number, percent
from arlo.cli.top.view import History, Sample, audited, document, health, worths
from arlo.control.gateway.messages import to_dict
from arlo.control.http.server import ControlHttp
from arlo.control.http.status import ControlStatus
from arlo.errors import ConfigError
from arlo.report.numbers import seconds
from tests.fakes.admin_server import AdminServer
from tests.fakes.control_status import (
    NOW_MS,
    control_status,
    gateway_deployment,
    gateway_stats,
    several_deployment,
    several_stats,
    several_status,
)
from tests.fakes.samples import after, cascade, one, pipeline, several

# --- the numbers ---


def values(rows: list[dict[str, Any]], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(row[key] for key in keys) for row in rows]


def test_rates_are_differences_over_the_gateways_own_time() -> None:
    now = after(one, 1, 3)["now"]
    (model,) = now["models"]
    assert (model["rows_per_s"], model["on_time_per_s"], model["padding"]) == (580 / 2, 577 / 2, 0.125)
    assert model["attainment"] == pytest.approx(577 / 580)
    assert (now["window_s"], now["lengths_window_s"], sum(now["rows_by_length"])) == (4, 4, 2 * 580)
    assert [row["share"] for row in now["lengths"]] == pytest.approx([400 / 580, 120 / 580, 48 / 580, 12 / 580])
    assert [row["demoted"] for row in now["lengths"]] == [0, pytest.approx(8 / 122), None, pytest.approx(0.8)]
    assert now["lengths"][0]["load"] == pytest.approx(96.4 / (2 * 130))
    moving, *rest = now["workers"]  # the one that is on the move first
    assert (moving["id"], moving["serves"], moving["step"]) == ("w3", "to 256", "loading 0.4 s")
    assert moving["batches_per_s"] is None
    (w2,) = [row for row in rest if row["id"] == "w2"]
    assert (w2["serves"], w2["batches_per_s"], w2["busy"]) == ("128", 61, pytest.approx(0.52))


def test_one_sample_gives_averages_since_the_gateways_start() -> None:
    now = after(one, 5)["now"]
    assert now["models"][0]["rows_per_s"] == pytest.approx(5 * 580 / now["window_s"])
    assert now["window_s"] == now["uptime_s"] > 3000
    assert now["lengths"][0]["share"] == pytest.approx(400 / 580)


def test_a_restarted_gateway_begins_again() -> None:
    history = History()
    history.add(one(50))
    for step in (51, 52):
        fresh = to_dict(gateway_stats(step=step, started_at_ms=NOW_MS))
        now = history.add(one(step, stats={"minilm": fresh}))["now"]
        if step == 51:
            assert now["window_s"] == pytest.approx(100)  # its new life; not compared with the old one
    assert now["models"][0]["rows_per_s"] == 290


def test_rates_cover_the_last_seconds_and_the_histogram_the_last_minute() -> None:
    history = History()
    for step in range(1, 80):
        now = history.add(one(step))["now"]
    assert (now["models"][0]["rows_per_s"], now["window_s"], now["lengths_window_s"]) == (290, 4, 60)
    assert len(now["p98_trend"]) == 79
    assert len(history.add(one(80, at_s=1e6))["now"]["p98_trend"]) == 1


def test_a_long_interval_and_a_gateway_that_was_away() -> None:
    history = History()
    history.add(one(1, at_s=0.0))
    assert history.add(one(31, at_s=60.0))["now"]["models"][0]["rows_per_s"] == 290
    assert history.add(one(32, at_s=62.0, stats={}))["health"] == "unreachable"
    assert history.add(one(33, at_s=64.0))["now"]["models"][0]["rows_per_s"] == 290


def test_an_instance_that_is_new_or_came_back_counts_from_zero() -> None:
    base = one(5)
    for item in base.stats["minilm"]["instances"]:
        if item["worker"] == "w0":
            item["started"] = 10**6
    base.stats["minilm"]["instances"] = [each for each in base.stats["minilm"]["instances"] if each["worker"] != "w1"]
    by_id = {row["id"]: row for row in document(one(6), base)["now"]["workers"]}
    assert by_id["w0"]["batches_per_s"] == by_id["w1"]["batches_per_s"] == 196 * 6 / 2
    assert by_id["w1"]["busy"] <= 1


def workers(stats: Any, control: ControlStatus | None = None) -> dict[str, dict[str, Any]]:
    shown = document(one(2, stats={"minilm": to_dict(stats)}, control=control or control_status()))
    return {row["id"]: row for row in shown["now"]["workers"]}


def test_two_instances_of_a_worker_in_the_middle_of_a_switch_are_one_row() -> None:
    stats = gateway_stats(step=2)
    stats.instances.add(id="w2-2", worker="w2", runtime="minilm_256", state="STATE_JOINING", in_flight=1, queued=4)
    row = workers(stats)["w2"]
    assert (row["serves"], row["in_flight"], row["queued"]) == ("128", 3, 4)


def test_workers_in_trouble_come_first() -> None:
    stats = gateway_stats(step=2)
    stats.instances[1].state, stats.instances[1].last_error = 4, "no route"  # STATE_EJECTED
    found = workers(stats)
    assert (found["w1"]["step"], found["w1"]["error"]) == ("ejected", "no route")
    assert list(found)[:2] == ["w1", "w3"]
    control = control_status()
    control.workers[0] = dataclasses.replace(control.workers[0], state="failed", error="exit code 1")
    found = workers(gateway_stats(step=2), control)
    assert (found["w0"]["step"].split()[0], found["w0"]["error"]) == ("failed", "exit code 1")


def test_without_a_control_plane_the_gateways_deployment_names_the_runtimes() -> None:
    now = after(one, 1, 2, control=None)["now"]
    assert values(now["models"], "name", "slo_ms") == [("minilm", 150)]
    assert values(now["lengths"], "runtime", "observed", "latency_ms")[0] == ("minilm_64", 2, 1.15)
    assert {row["step"] for row in now["workers"]} == {"active"}
    bare = after(one, 2, control=None, deployment={})
    assert values(bare["now"]["lengths"], "max_length") == [(64,), (128,), (256,), (512,)]
    assert bare["health"] == "empty"


def test_of_several_models_each_has_rates_of_its_own() -> None:
    now = after(several, 1, 3)["now"]
    assert values(now["models"], "name", "slo_ms", "rows_per_s", "waiting", "observed") == [
        ("embedder", 50, 290, 3, 2),
        ("reranker", 200, 35, 9, 1),
    ]
    assert [row["attainment"] for row in now["models"]] == [pytest.approx(577 / 580), 0.9]
    assert values(now["lengths"], "model", "max_length", "demand", "share") == [
        ("embedder", 64, 32, 0.5),
        ("embedder", 512, 7.5, 0.5),
        ("reranker", 256, 128, 0.5),
        ("reranker", 512, 7.5, 0.5),
    ]
    assert [row["serves"] for row in now["workers"]] == ["embedder", "embedder", "reranker"]
    alone = after(several, 1, 2, model="reranker")
    assert values(alone["now"]["models"], "name", "rows_per_s") == [("reranker", 35)]
    assert list(alone["stats"]) == ["reranker"]
    assert {row["model"] for row in alone["now"]["lengths"]} == {"reranker"}


def test_several_models_of_one_of_the_two() -> None:
    now = after(several, 1, 2, control=None)["now"]
    assert values(now["models"], "name", "slo_ms", "desired", "observed", "rows_per_s") == [
        ("embedder", 50, None, 3, 290),
        ("reranker", 200, None, 3, 35),
    ]
    control_only = document(Sample(at_s=2, control=several_status(dedicated=False)))["now"]
    assert values(control_only["models"], "name", "observed", "rows_per_s") == [
        ("embedder", 3, None),
        ("reranker", 3, None),
    ]


def test_a_row_of_a_cascade_is_one_row_whatever_stages_it_runs_on() -> None:
    shown = after(cascade, 1, 3)
    now = shown["now"]
    assert values(now["models"], "name", "rows_per_s", "observed", "waiting", "in_flight") == [
        ("kinds", 290, None, 5, 5),  # they wait and run at the stages
        ("kinds.small", 290, 2, 1, 2),
        ("kinds.large", 35, 1, 4, 3),
    ]
    assert now["models"][1]["attainment"] is now["models"][1]["on_time_per_s"] is None
    assert {row["model"] for row in now["lengths"]} == {"kinds.small", "kinds.large"}
    (flow,) = now["flows"]
    assert flow["title"] == "stages of kinds: point ap, price 2, degraded 4.0%, agrees 98.8% (planned 97.2%)"
    assert values(flow["stages"], "rows_per_s", "reach", "planned", "went_on") == [
        (50, 1, 1, 0.4),
        (19, 0.38, 0.31, None),
    ]
    assert flow["stages"][0]["by"] == {"confident": 0.58, "deadline": 0.02, "load": 0.02}
    assert flow["stages"][1]["by"] == {"final": 1}
    assert [row["name"] for row in after(cascade, 2, model="kinds")["now"]["models"]] == list(shown["stats"])
    stage = after(cascade, 2, model="kinds.large")["now"]
    assert stage["flows"] == []
    assert {row["model"] for row in stage["lengths"]} == {"kinds.large"}


def test_shadow_rows_that_differ_too_often_are_an_alarm() -> None:
    sample = cascade(1)
    shadows = sample.stats["kinds"]["shadows"]
    shadows |= {"rows": 100, "disagreed": 9, "may_differ": 2.0, "alarm": True}
    (note,) = document(sample)["now"]["flows"][0]["notes"]
    assert note[1] == "red"
    assert note[0].startswith("DRIFT: shadow rows: 100, 9 of which the last stage answers otherwise (9.0%); 2.0% may")


def test_the_stages_of_a_pipeline_are_a_tree() -> None:
    (flow,) = after(pipeline, 1, 2)["now"]["flows"]
    assert flow["title"] == "stages of tree: accuracy scaling, served 100.0%, accuracy 84.2%, price 0.5"
    topic, tags = flow["stages"]
    assert (topic["stage"], topic["rows_per_s"], topic["dropped"]) == ("topic", 50, {"deadline": 0.02})
    assert topic["by"] == {"sure": pytest.approx(40 / 98), "quick": pytest.approx(58 / 98)}
    assert topic["accuracy"] == pytest.approx((40 * 0.95 + 58 * 0.85) / 98)
    assert (tags["stage"], tags["reach"], tags["ended"], tags["rerouted"]) == ("  tags", 1.2, 1, pytest.approx(1 / 6))
    assert flow["notes"][0] == ("plan of arlo: 0 rows/s on 3 workers", "")


@pytest.mark.parametrize(
    ("wanted", "levels", "state", "expected"),
    [
        ((64, 512), {64: 1, 512: 1}, "STATE_ACTIVE", "ready"),
        ((64, 512), {64: 0, 512: 1}, "STATE_ACTIVE", "failing"),
        ((512,), {64: 0, 512: 1}, "STATE_ACTIVE", "ready"),  # the control plane moved all of 64 elsewhere
        ((512,), {512: 1}, "STATE_EJECTED", "degraded"),
        ((), {}, "STATE_ACTIVE", "empty"),
    ],
)
def test_health(wanted: tuple[int, ...], levels: dict[int, int], state: str, expected: str) -> None:
    deployment, stats = proto.message("Deployment")(version=len(wanted)), proto.message("Stats")()
    for length in wanted:
        deployment.runtimes.add(name=f"len{length}", max_length=length)
    for length, instances in levels.items():
        stats.levels.add(max_length=length, instances=instances)
    stats.instances.add(id="w0.len512", state=state)
    assert health(Sample(at_s=0, deployment=to_dict(deployment), stats={"": to_dict(stats)})) == expected


def test_tenants_and_audits() -> None:
    stats = proto.message("Stats")()
    stats.worth.add(of="interactive", offered=20, earned=13, in_time=15, right=13, evicted=5)
    assert worths(to_dict(stats)) == [
        ("interactive: 13 right in time, 2 wrong, 0 late, 5 evicted, 0 failed; utility 13 of 20 (65.0%)", "")
    ]
    del stats.worth[:]
    stats.by_tenant.add(of="search", offered=10, earned=9, in_time=10, right=9, busy_s=1, price=1)
    stats.by_tenant.add(of="mail", offered=10, earned=4, in_time=5, right=4, evicted=5, busy_s=3, price=8)
    stats.by_tenant.add(of="", price=1)
    lines = [text for text, _ in worths(to_dict(stats))]
    assert [line.split(":")[0] for line in lines] == ["tenant search", "tenant mail"]
    assert lines[1].endswith("; 75% of the worker time, at 8 times the price")
    assert audited(to_dict(stats)["audit"]) == []
    stats.audit.rows, stats.audit.disagreed, stats.audit.may_differ, stats.audit.accuracy = 200, 30, 25.0, 180.0
    ((text, style),) = audited(to_dict(stats)["audit"])
    assert text.startswith("audit: 170 of 200 rows, expected accuracy 90.0%, are answered alike")
    assert (text.endswith("30 differ: at most 25.0 may"), style) == (True, "")
    stats.audit.alarm = True
    ((text, style),) = audited(to_dict(stats)["audit"])
    assert (text.endswith("30 differ: more often than their accuracies allow"), style) == (True, "red")


def test_a_plan_that_nothing_solved_predicts_nothing() -> None:
    status = control_status()
    status.plans = [dataclasses.replace(status.plans[0], solver="", predicted_mean_ms=0.0, note="as configured")]
    (plan,) = document(Sample(at_s=0, control=status))["now"]["plans"]
    assert (plan["mean_ms"], plan["solver"], plan["moved"], plan["note"]) == (None, None, 5, "as configured")


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
    assert [number(0.25), number(12345.6)] == ["0.2", "12,346"]
    assert [percent(0.125), percent(0.999), exactly(0.99999), exactly(1.0)] == ["12 %", ">99 %", ">99.99 %", "100.00 %"]


def test_a_bar_of_something_is_never_empty_and_never_too_high() -> None:
    assert charts.column(0, 10, 2, charts.BLOCKS) == "  "
    assert charts.column(1e-9, 10, 2, charts.BLOCKS) == " ▁"
    assert charts.column(5, 10, 2, charts.BLOCKS) == " █"
    assert charts.column(10, 10, 2, charts.BLOCKS) == "██"


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


async def status(*arguments: str) -> int:
    return await asyncio.to_thread(main, ["top", "--once", *arguments])


NOBODY = "127.0.0.1:1"


async def test_status_prints_one_screen_without_control_codes(capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster() as (address, _):
        assert await status("--control", address, "--interval", "0.1") == 0
    screen = capsys.readouterr().out
    assert "\x1b" not in screen
    assert screen.startswith("failing  control plane replacing  policy eft  deployment 12")
    assert re.search(r"^minilm +150 ms +4 +290\.0 +99\.48 %", screen, re.MULTILINE)
    assert "w4: killed by signal 9" in screen
    assert max(map(len, screen.splitlines())) <= 80


async def test_status_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster() as (address, admin):
        assert await status("--control", address, "--json", "--interval", "0.1") == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["control"] == control_status(gateway_admin=admin.address).to_json()
    assert shown["stats"]["minilm"]["policy"] == "eft"
    assert shown["now"]["models"][0]["rows_per_s"] == 290
    assert (shown["control_error"], shown["gateway_error"]) == (None, None)


async def test_several_models_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    async with ModelsAdmin() as admin:
        admin.deployment = several_deployment()
        assert await status("--admin", admin.address, "--json", "--interval", "0.1") == 0
        shown = json.loads(capsys.readouterr().out)
        assert await status("--admin", admin.address, "--model", "reranker") == 0
        alone = capsys.readouterr().out
    assert values(shown["now"]["models"], "name", "rows_per_s") == [("embedder", 290), ("reranker", 35)]
    assert list(shown["stats"]) == ["embedder", "reranker"]
    assert "no control plane" not in alone  # with --admin alone it is not asked
    assert "embedder " not in alone
    assert "reranker" in alone


async def test_one_of_the_two_is_enough_for_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster() as (address, admin):
        assert await status("--control", NOBODY, "--admin", admin.address) == 0
        only_gateway = capsys.readouterr().out
        assert await status("--control", address, "--admin", NOBODY) == 6
        only_control = capsys.readouterr().out
    assert f"no control plane answers at {NOBODY}" in only_gateway
    assert "outcomes since the gateway's start" in only_gateway
    assert f"no gateway answers at the admin address {NOBODY}" in only_control
    assert only_control.startswith("unreachable  control plane replacing")
    assert "plans: next in 34 s" in only_control


async def test_neither_is_exit_code_6(capsys: pytest.CaptureFixture[str]) -> None:
    assert await status("--control", NOBODY, "--admin", NOBODY) == 6
    error = capsys.readouterr().err
    assert f"no control plane answers at {NOBODY}: is `arlo serve` running" in error
    assert f"no gateway answers at the admin address {NOBODY}" in error


async def test_another_programs_port_is_named() -> None:
    async with MovingAdmin() as admin:
        with pytest.raises(ControlUnreachableError, match=r"127\.0\.0\.1"):
            await asyncio.to_thread(fetch_status, admin.address)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x.toml", "--control", "h:1"], "give CONFIG.toml or --control, not both"),
        (["--interval", "0"], "--interval must be at least 0.1, at most 60, not 0"),
        (["--control", "8004"], "--control must be HOST:PORT with a port from 1 to 65535: not '8004'"),
        (["--control", "127.0.0.1:0"], "that port is drawn when `arlo serve` starts"),
        (["--admin", "h:99999"], "--admin must be HOST:PORT"),
        (["x.toml", "--admin", "h:1"], "give CONFIG.toml or --admin, not both"),
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
        assert await status(str(config), "--json") == 0
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


def live(address: str) -> tuple[int, bytes]:
    """Run it in a terminal of 80 x 24, wait for rates and a change of size; exit code, what was written."""
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
                seen += read_until(ours, rb"on time/s")  # the narrow screen has no room for it
                process.send_signal(signal.SIGINT)
                seen += read_until(ours, rb"\x1b\[\?1049l")
                code = process.wait(10)
            finally:
                process.kill()
        assert termios.tcgetattr(theirs) == before, "the terminal is left as it was"
    finally:
        os.close(ours)
        os.close(theirs)
    return code, seen


async def test_live_until_ctrl_c() -> None:
    async with cluster() as (address, _):
        got, seen = await asyncio.to_thread(live, address)
    assert got == 130
    assert b"Traceback" not in seen
    assert seen.count(b"\x1b[?1049h") == seen.count(b"\x1b[?1049l") == 1
