"""The gateway as a program: its HTTP port, its logs, its configuration, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from arlo.clock import monotonic_s
from arlo.control.gateway.process import gateway_program
from arlo.workers.ports import free_port
from tests.fakes.gateway import NOT_SERVING, SERVING, Gateway, grpc_health, write_config
from tests.fakes.processes import until
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import check, example, one_row, request_of

pytestmark = pytest.mark.integration


def get(gateway: Gateway, path: str) -> tuple[int, str]:
    """Status and body of a page of the HTTP port."""
    try:
        with urllib.request.urlopen(f"http://{gateway.http}{path}", timeout=10) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def value(families: dict[str, Any], name: str, **labels: str) -> float:
    labels["model"] = "emu"
    samples = [s for family in families.values() for s in family.samples if s.name == name and s.labels == labels]
    assert len(samples) == 1, f"{name}{labels}"
    return float(samples[0].value)


async def end(gateway: Gateway, *, timeout_s: float = 20) -> int:
    async with asyncio.timeout(timeout_s):
        return await gateway.process.wait()


async def read_all(stream: Any) -> None:
    while await stream.read() != grpc.aio.EOF:
        pass


# --- the HTTP port ----------------------------------------------------------------------------------------------------


@pytest.mark.sanitized
async def test_metrics(workers: Workers, start: Any) -> None:
    async with start(workers.deployment("emu", [(0, 64), (1, 512)], slo_ms=10_000)) as gateway:
        for length in (1, 64, 65):
            await gateway.infer(one_row(length))
        with pytest.raises(grpc.aio.AioRpcError):
            await gateway.infer(one_row(513))
        families = gateway.metrics()
    assert all(name.startswith("arlo_") for name in families)
    assert all(family.documentation for family in families.values())
    assert value(families, "arlo_rows_total", outcome="on_time") == 3
    assert value(families, "arlo_rows_total", outcome="rejected") == 1
    assert value(families, "arlo_rows_total", outcome="failed") == 0
    assert value(families, "arlo_level_dispatched_total", max_length="64") == 2
    assert value(families, "arlo_level_ideal_total", max_length="512") == 1
    assert value(families, "arlo_demotions_total", max_length="512") == 0
    assert value(families, "arlo_tokens_total") == 130
    assert value(families, "arlo_computed_tokens_total") == 640
    assert value(families, "arlo_deployment_version") == 1
    assert value(families, "arlo_queued") == value(families, "arlo_in_flight") == 0
    labels = {"instance": "w1.512", "worker": "w1", "runtime": "emu_len512"}
    assert value(families, "arlo_instance_up", **labels) == 1
    assert value(families, "arlo_instance_started_total", **labels) == 1
    assert value(families, "arlo_instance_busy_seconds_total", **labels) >= 0.003

    execute = families["arlo_execute_duration_seconds"]
    assert execute.type == "histogram"
    buckets = [(s.labels["le"], s.value) for s in execute.samples if s.name.endswith("_bucket")]
    assert [float(le) for le, _ in buckets] == sorted(float(le) for le, _ in buckets)
    assert [count for _, count in buckets] == sorted(count for _, count in buckets)
    assert buckets[-1] == ("+Inf", 3)
    assert value(families, "arlo_execute_duration_seconds_count") == 3
    assert 0.005 <= value(families, "arlo_execute_duration_seconds_sum") < 5
    assert dict(buckets)["0.00075"] == 0  # the emulated engine takes a millisecond


async def test_live_and_ready(workers: Workers, start: Any) -> None:
    async with start() as gateway:
        assert get(gateway, "/livez") == (200, "ok\n")
        assert get(gateway, "/readyz") == (503, "no active instance\n")
        assert await grpc_health(gateway) == NOT_SERVING
        await gateway.apply(workers.deployment("emu", [(0, 64)]))
        assert get(gateway, "/readyz") == (200, "ok\n")
        assert await grpc_health(gateway) == SERVING
        await gateway.call("Drain", instance="w0.64", timeout_ms=1000)
        assert get(gateway, "/readyz")[0] == 503
        assert get(gateway, "/livez") == (200, "ok\n")
        assert get(gateway, "/nowhere")[0] == 404


# --- how it ends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.sanitized
async def test_a_signal_lets_requests_finish_and_refuses_new_ones(
    workers: Workers, start: Any, number: signal.Signals
) -> None:
    async with start(workers.deployment("slow", [(0, 64)], inflight_limit=1)) as gateway:
        sent = [example(5, seed=seed) for seed in range(3)]
        calls = [asyncio.ensure_future(gateway.infer(request_of(each, model="slow"))) for each in sent]
        await gateway.stats_when(lambda stats: (stats.in_flight, stats.queued) == (1, 2), "one runs, two wait")
        os.kill(gateway.pid, number)
        await until(lambda: gateway.logged("gateway_draining"), "the signal was seen")
        await until(lambda: get(gateway, "/readyz")[0] == 503, "not ready any more", timeout_s=0.4)
        assert get(gateway, "/livez")[0] == 200
        code = grpc.StatusCode.OK
        while code == grpc.StatusCode.OK:  # the port closes after /readyz has said so
            code = await answered_on_a_new_connection(gateway.grpc)
        assert code == grpc.StatusCode.UNAVAILABLE
        for answer, each in zip(await asyncio.gather(*calls), sent, strict=True):
            check(answer, each, model="slow")
        assert await end(gateway) == 0
    assert gateway.logged("gateway_stopped")


async def answered_on_a_new_connection(address: str) -> grpc.StatusCode:
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=10)
        return await call.code()


async def ends_with_the_cause(stream: Any) -> None:
    """Not OK: a request may have been on its way, and would go unanswered."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await asyncio.wait_for(stream.read(), 5)
    assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "the gateway is stopping" in (raised.value.details() or "")


@pytest.mark.sanitized
async def test_what_comes_on_a_stream_while_the_gateway_stops_is_refused(workers: Workers, start: Any) -> None:
    """A request written after the signal was neither answered nor refused, and the stream ended with OK."""
    async with start(workers.deployment("slow", [(0, 64)], inflight_limit=1)) as gateway:
        stream = gateway.stub.ModelStreamInfer()
        for seed in range(3):
            await stream.write(one_row(5, model="slow", seed=seed))
        await gateway.stats_when(lambda stats: stats.in_flight + stats.queued == 3, "all have come")
        idle = gateway.stub.ModelStreamInfer()
        await idle.write(one_row(5, model="emu"))  # unknown here: answered at once, so the stream is known to be open
        assert (await idle.read()).error_message.startswith("[NOT_FOUND]")
        os.kill(gateway.pid, signal.SIGTERM)
        await ends_with_the_cause(idle)
        late = example(5, seed=9, id="late")
        await stream.write(request_of(late, model="slow"))
        answers = [await asyncio.wait_for(stream.read(), 5) for _ in range(4)]
        refused = [answer for answer in answers if answer.error_message]
        assert [answer.infer_response.id for answer in refused] == ["late"]
        assert refused[0].error_message == "[UNAVAILABLE] the gateway is stopping: send the request elsewhere"
        await ends_with_the_cause(stream)
        assert await end(gateway) == 0


@pytest.mark.sanitized
async def test_it_says_that_it_stops_before_it_does(workers: Workers, start: Any) -> None:
    async with start(workers.deployment("emu", [(0, 64)]), drain_delay_ms=1500) as gateway:
        assert (get(gateway, "/readyz")[0], await grpc_health(gateway)) == (200, SERVING)
        stream = gateway.stub.ModelStreamInfer()
        os.kill(gateway.pid, signal.SIGTERM)
        await until(lambda: get(gateway, "/readyz")[0] == 503, "not ready any more", timeout_s=1)
        assert await grpc_health(gateway) == NOT_SERVING
        async with grpc.aio.insecure_channel(gateway.grpc) as channel:  # a new connection too
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            check(await stub.ModelInfer(request_of(example(3))), example(3))
        await stream.write(one_row(3))
        assert (await stream.read()).error_message == ""
        await ends_with_the_cause(stream)
        assert await end(gateway) == 0


async def test_the_drain_time_out_ends_what_takes_too_long(workers: Workers, start: Any) -> None:
    deployment = workers.deployment("slow", [(0, 64)], inflight_limit=1)
    async with start(deployment, drain_timeout_ms=400) as gateway:
        calls = [asyncio.ensure_future(gateway.infer(one_row(5, model="slow"))) for _ in range(8)]
        stream = gateway.stub.ModelStreamInfer()
        await stream.write(one_row(5, model="slow"))
        await gateway.stats_when(lambda stats: stats.in_flight + stats.queued == 9, "all have come")
        sent_s = monotonic_s()
        os.kill(gateway.pid, signal.SIGTERM)
        assert await end(gateway) == 0
        assert 0.3 <= monotonic_s() - sent_s < 1.5
        results = await asyncio.gather(*calls, return_exceptions=True)
        errors = [result for result in results if isinstance(result, grpc.aio.AioRpcError)]
        assert 5 <= len(errors) <= 7
        assert {error.code() for error in errors} <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
        with pytest.raises(grpc.aio.AioRpcError):
            await read_all(stream)


@pytest.mark.sanitized
async def test_a_second_signal_ends_at_once(workers: Workers, start: Any) -> None:
    async with start(workers.deployment("slow", [(0, 64)], inflight_limit=1)) as gateway:
        calls = [asyncio.ensure_future(gateway.infer(one_row(5, model="slow"))) for _ in range(8)]
        await gateway.stats_when(lambda stats: stats.in_flight + stats.queued == 8, "all have come")
        os.kill(gateway.pid, signal.SIGTERM)
        await until(lambda: gateway.logged("gateway_draining"), "the first one was seen")
        os.kill(gateway.pid, signal.SIGTERM)
        assert await end(gateway, timeout_s=1.5) == 130
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert any(isinstance(result, grpc.aio.AioRpcError) for result in results)


async def test_it_ends_whatever_its_surroundings_do(workers: Workers, start: Any) -> None:
    """A worker that hangs, one that never was, a watcher, idle connections, a request that waits for an instance."""
    pid = await workers.pid(3)
    endpoints = [*workers.endpoints[:2], f"127.0.0.1:{free_port('127.0.0.1')}", workers.endpoints[3]]
    deployment = workers.deployment("emu", [(0, 64), (2, 512), (3, 128)], endpoints=endpoints)
    async with start(drain_timeout_ms=500, unavailable_grace_ms=60_000) as gateway:
        await gateway.call("Apply", deployment=deployment)
        await gateway.stats_when(lambda stats: stats.levels[1].instances == 1, "128 is active")
        os.kill(pid, signal.SIGSTOP)
        try:
            calls = [asyncio.ensure_future(gateway.infer(one_row(length))) for length in (100, 500)]
            watch, gone = gateway.watch(interval_ms=60_000), gateway.watch(interval_ms=60_000)
            await asyncio.gather(watch.read(), gone.read())
            gone.cancel()
            await gateway.stats_when(lambda stats: (stats.in_flight, stats.parked) == (1, 1), "both have come")
            os.kill(gateway.pid, signal.SIGTERM)
            sent_s = monotonic_s()
            assert await end(gateway) == 0
            assert monotonic_s() - sent_s < 3
        finally:
            os.kill(pid, signal.SIGCONT)
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, grpc.aio.AioRpcError) for result in results)
        with contextlib.suppress(grpc.aio.AioRpcError):
            assert await watch.read() == grpc.aio.EOF


# --- configuration ----------------------------------------------------------------------------------------------------


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The program, which must end by itself."""
    command = [str(gateway_program()), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_rows": None}, "field 'max_rows' is missing"),
    ({"tls": None}, "field 'tls' is missing"),
    ({"health": {"timeout_ms": None}}, "field 'health.timeout_ms' is missing"),
    ({"max_rowz": 3}, "max_rowz"),
    ({"dispatch": {"colour": 3}}, "colour"),
    ({"tls": 7}, "tls"),
    ({"max_rows": "many"}, "max_rows"),
    ({"max_rows": -1}, "max_rows"),
    ({"max_rows": 0}, "max_rows must be above 0"),
    ({"max_attempts": 0}, "max_attempts must be above 0"),
    ({"max_message_bytes": 10}, "max_message_bytes must be 1024 to 2147483647"),
    ({"max_message_bytes": 1 << 40}, "max_message_bytes must be 1024 to 2147483647"),
    ({"drain_timeout_ms": 0}, "drain_timeout_ms must be above 0"),
    ({"health": {"failures": 0}}, "health.interval_ms, timeout_ms, failures, retry_interval_ms and silence_ms must"),
    ({"grpc_address": ""}, "grpc_address is empty"),
    ({"http_address": "127.0.0.1"}, "it is not host:port"),
    ({"admin_address": "nowhere.invalid:0"}, "admin_address 'nowhere.invalid:0' cannot be served"),
    ({"log_level": "loud"}, "log_level 'loud' is not one of debug, info, warning, error"),
    ({"dispatch": {"policy": "best"}}, "best"),
    ({"dispatch": {"lambda": -1}}, "lambda"),
    ({"dispatch": {"alpha": 2}}, "alpha"),
    ({"dispatch": {"max_peek": 0}}, "max_peek"),
    ({"tls": {"certificate_file": "/c.pem"}}, "tls.certificate_file and tls.key_file must be given together"),
    ({"tls": {"client_ca_file": "/c.pem"}}, "tls.client_ca_file needs tls.certificate_file and tls.key_file"),
    ({"tls": {"certificate_file": "/no/c.pem", "key_file": "/no/k.pem"}}, "cannot read '/no/"),
    ({"bearer_token_file": "/no/token"}, "cannot read '/no/token'"),
    ({"bearer_token_file": "/dev/null"}, "'/dev/null' holds no token"),
    ({"bearer_token_file": __file__, "bulk_token_file": __file__}, "hold the same token"),
]


@pytest.mark.parametrize(("changes", "reason"), WRONG, ids=[json.dumps(changes) for changes, _ in WRONG])
def test_a_wrong_configuration_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    ready = tmp_path / "ready.json"
    done = run("--config", str(write_config(tmp_path / "gateway.json", ready_file=str(ready), **changes)))
    assert (done.returncode, done.stdout) == (2, "")
    assert "arlo-gateway: error: " in done.stderr
    assert reason in done.stderr
    assert not ready.exists()


@pytest.mark.parametrize(("text", "reason"), [("{", "not JSON"), ("[]", "it is not a JSON object"), ("", "not JSON")])
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "gateway.json"
    path.write_text(text)
    done = run("--config", str(path))
    assert done.returncode == 2
    assert f"{path}: {reason}" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "usage: arlo-gateway --config FILE"),
        (("--colour",), 2, "unknown argument '--colour'"),
        (("--config",), 2, "unknown argument '--config'"),
        (("--config", "/no/such.json"), 2, "cannot read '/no/such.json'"),
        (("--help",), 0, "usage: arlo-gateway --config FILE"),
    ],
)
def test_arguments(arguments: Sequence[str], code: int, said: str) -> None:
    done = run(*arguments)
    assert done.returncode == code
    assert said in done.stdout + done.stderr


def test_check_only(tmp_path: Path) -> None:
    assert run("--config", str(write_config(tmp_path / "good.json")), "--check").returncode == 0
    bad = run("--config", str(write_config(tmp_path / "bad.json", max_rows=0)), "--check")
    assert (bad.returncode, "max_rows must be above 0" in bad.stderr) == (2, True)


@pytest.mark.parametrize("port", ["grpc", "http", "admin"])
async def test_a_port_in_use(gateway: Gateway, tmp_path: Path, port: str) -> None:
    address = getattr(gateway, port)
    config = write_config(tmp_path / "gateway.json", **{f"{port}_address": address})
    done = await asyncio.to_thread(run, "--config", str(config))
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if line.startswith("arlo-gateway: error: ")]
    assert len(said) == 1
    assert f"{port}_address '{address}'" in said[0]
    assert "in use" in said[0]
    check(await gateway.infer(request_of(example(100))), example(100))  # the first one is not disturbed


# --- logs -------------------------------------------------------------------------------------------------------------


async def test_every_line_of_the_log_is_json(workers: Workers, start: Any) -> None:
    async with start(workers.deployment("emu", [(0, 64), (1, 512)])) as gateway:
        await gateway.infer(one_row(5))
        with pytest.raises(grpc.aio.AioRpcError):
            await gateway.infer(one_row(600))
        await gateway.apply(workers.deployment("emu", [(1, 512)], version=2))
        os.kill(gateway.pid, signal.SIGTERM)
        assert await end(gateway) == 0
    lines = [json.loads(line) for line in gateway.log.read_text().splitlines()]
    for line in lines:
        assert line["component"] == "gateway"
        assert line["level"] in ("debug", "info", "warning", "error")
        assert line["ts"] > 1_600_000_000
    events = [line["event"] for line in lines]
    wanted = ["gateway_started", "deployment_applied", "instance_joined", "instance_joined", "deployment_applied"]
    assert [event for event in events if event != "instance_drained"] == [
        *wanted,
        "gateway_draining",
        "gateway_stopped",
    ]
    assert lines[0]["grpc"] == gateway.grpc
    assert {line["instance"] for line in lines if line["event"] == "instance_joined"} == {"w0.64", "w1.512"}


async def test_the_log_level_holds_back_what_is_below_it(workers: Workers, start: Any) -> None:
    async with start(workers.deployment("emu", [(0, 64)]), log_level="warning") as gateway:
        await gateway.infer(one_row(5))
        os.kill(gateway.pid, signal.SIGTERM)
        assert await end(gateway) == 0
        assert gateway.log.read_text() == ""
