"""Traces: a client's traceparent goes on to the worker, and spans go to a collector, or are lost and counted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from arlo.control.gateway.process import gateway_program
from tests.fakes.certificates import Authority
from tests.fakes.gateway import Gateway, gateway_of, write_config
from tests.fakes.odd_worker import OddWorker, good
from tests.fakes.processes import until
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import example, request_of

pytestmark = pytest.mark.integration

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BODY = {"model": "emu", "inputs": "a text"}


def address_of(server: asyncio.Server) -> str:
    return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()  # until the other end has gone
    writer.close()


class Collector:
    """Takes what is posted to it, by HTTP/1.1."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.paths: list[str] = []
        self.heads: list[str] = []
        self.spans: list[dict[str, Any]] = []
        self.status = b"200 OK"
        self.address = ""

    async def __aenter__(self) -> Collector:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.address = address_of(self._server)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
        document = json.loads(await reader.readexactly(size))
        self.paths.append(head.split(" ")[1])
        self.heads.append(head)
        for resource in document["resourceSpans"]:
            assert resource["resource"]["attributes"][0]["value"]["stringValue"] == "arlo-gateway"
            for scope in resource["scopeSpans"]:
                self.spans += scope["spans"]
        writer.write(b"HTTP/1.1 " + self.status + b"\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    def of(self, trace: str) -> dict[str, dict[str, Any]]:
        return {span["name"].split(" ")[0]: span for span in self.spans if span["traceId"] == trace}


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}


@contextlib.asynccontextmanager
async def traced(
    workers: Workers, tokenizer: Path, folder: Path, **tracing: Any
) -> AsyncIterator[tuple[Gateway, OddWorker, httpx.AsyncClient]]:
    async with OddWorker(good) as worker:
        deployment = workers.deployment("emu", [(0, 64)], endpoints=[worker.endpoint])
        deployment.model.tokenizer = tokenizer.read_bytes()
        async with gateway_of(folder, deployment, tracing=tracing) as gateway:
            async with httpx.AsyncClient(base_url=f"http://{gateway.api}", timeout=20) as client:
                yield gateway, worker, client


async def counted(gateway: Gateway) -> dict[str, float]:
    async with httpx.AsyncClient(timeout=20) as client:
        text = (await client.get(f"http://{gateway.http}/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("arlo_traces_total")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


async def test_without_a_collector_the_header_goes_on_as_it_came(
    workers: Workers, tokenizer: Path, tmp_path: Path
) -> None:
    async with traced(workers, tokenizer, tmp_path) as (gateway, worker, client):
        given = f"00-{TRACE}-{PARENT}-01"
        for header in (given, "", "00-nonsense", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01"):
            worker.metadata.clear()
            headers = {"traceparent": header} if header else {}
            assert (await client.post("/embed", json=BODY, headers=headers)).status_code == 200
            wanted = header if header == given else None
            assert worker.metadata[0].get("traceparent") == wanted
        worker.metadata.clear()
        await gateway.infer(request_of(example(3, outputs=("embedding",))), metadata=(("traceparent", given),))
        assert worker.metadata[0]["traceparent"] == given
        assert await counted(gateway) == {"sent": 0, "lost": 0}


async def test_spans_of_a_request(workers: Workers, tokenizer: Path, tmp_path: Path) -> None:
    async with Collector() as collector:
        tracing = {"otlp_endpoint": f"http://{collector.address}", "sample": 0.0}
        async with traced(workers, tokenizer, tmp_path, **tracing) as (gateway, worker, client):
            assert (await client.post("/embed", json=BODY)).status_code == 200
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
            assert (await client.post("/embed", json=BODY, headers=headers)).status_code == 200
            unsampled = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
            assert (await client.post("/embed", json=BODY, headers=unsampled)).status_code == 200
            assert worker.metadata[2]["traceparent"] == unsampled["traceparent"]
            await until(lambda: len(collector.spans) >= 4, "the spans")
            assert "traceparent" not in worker.metadata[0]
            spans = collector.of(TRACE)
            assert set(spans) == {"infer", "tokenise", "queue", "execute"}
            assert len(collector.spans) == 4
            assert collector.paths == ["/v1/traces"]
            whole = spans["infer"]
            assert (whole["parentSpanId"], whole["kind"]) == (PARENT, 2)
            assert attributes(whole)["arlo.request_id"] == "mine"
            assert attributes(whole)["arlo.model"] == "emu"
            assert {span["parentSpanId"] for name, span in spans.items() if name != "infer"} == {whole["spanId"]}
            assert worker.metadata[1]["traceparent"] == f"00-{TRACE}-{spans['execute']['spanId']}-01"
            executed = attributes(spans["execute"])
            assert int(executed["arlo.batch_rows"]) == 1
            assert int(executed["arlo.computed_tokens"]) == 64
            for span in spans.values():
                assert int(whole["startTimeUnixNano"]) <= int(span["startTimeUnixNano"])
                assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
                assert int(span["endTimeUnixNano"]) <= int(whole["endTimeUnixNano"])

            collector.spans.clear()
            wrong = {**BODY, "inputs": "word " * 100}
            refused = await client.post("/embed", json=wrong, headers=headers)
            assert refused.status_code == 422
            await until(lambda: collector.spans, "the span of a refusal")
            assert "more than the 64 tokens" in collector.of(TRACE)["infer"]["status"]["message"]

            families = await client.get(
                f"http://{gateway.http}/metrics", headers={"accept": "application/openmetrics-text"}
            )
            exemplars = [
                sample.exemplar
                for family in text_string_to_metric_families(families.text)
                for sample in family.samples
                if sample.exemplar is not None and sample.name == "arlo_request_duration_seconds_bucket"
            ]
            assert [exemplar.labels for exemplar in exemplars] == [{"trace_id": TRACE}]
            assert await counted(gateway) == {"sent": 2, "lost": 0}


async def test_a_share_begins_traces_of_its_own(workers: Workers, tokenizer: Path, tmp_path: Path) -> None:
    async with Collector() as collector:
        tracing = {"otlp_endpoint": f"http://{collector.address}", "sample": 1.0}
        async with traced(workers, tokenizer, tmp_path, **tracing) as (_, worker, client):
            for _ in range(3):
                assert (await client.post("/embed", json={**BODY, "inputs": ["a"] * 12})).status_code == 200
            await until(lambda: sum(span["kind"] == 2 for span in collector.spans) == 3, "three traces")
            traces = {span["traceId"] for span in collector.spans}
            assert len(traces) == 3
            assert {data["traceparent"].split("-")[1] for data in worker.metadata} == traces
            for trace in traces:
                names = [span["name"] for span in collector.spans if span["traceId"] == trace]
                assert names.count("execute") == 8, "further rows have none"
            ids = [span["spanId"] for span in collector.spans]
            assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("how", ["away", "refuses", "silent"])
async def test_a_collector_that_fails_costs_traces_only(
    workers: Workers, tokenizer: Path, tmp_path: Path, how: str
) -> None:
    async with Collector() as collector:
        collector.status = b"503 Service Unavailable"
        silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
        address = {
            "away": "127.0.0.1:1",
            "refuses": collector.address,
            "silent": address_of(silent),
        }[how]
        tracing = {"otlp_endpoint": f"http://{address}", "sample": 1.0, "queue": 16}
        async with traced(workers, tokenizer, tmp_path, **tracing) as (gateway, _, client):
            answers = await asyncio.gather(*(client.post("/embed", json=BODY) for _ in range(40)))
            assert {answer.status_code for answer in answers} == {200}

            async def lost() -> bool:
                return (await counted(gateway))["lost"] == 40

            await until(lost, "all are counted as lost")
            assert (await counted(gateway))["sent"] == 0
        silent.close()


@pytest.mark.parametrize("to", [("ENDPOINT", "/a/v1/traces"), ("TRACES_ENDPOINT", "/a")])
async def test_opentelemetrys_variables_name_the_collector(
    workers: Workers, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: tuple[str, str]
) -> None:
    variable, path = to
    async with Collector() as collector:
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{variable}", f"http://{collector.address}/a")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=one%20two, x-tenant=mine")
        async with traced(workers, tokenizer, tmp_path, sample=1.0) as (_, _, client):
            assert (await client.post("/embed", json=BODY)).status_code == 200
            await until(lambda: collector.spans, "a span")
            assert collector.paths[0] == path
            assert "api-key: one two\r\nx-tenant: mine\r\n" in collector.heads[0]


async def test_a_collector_behind_tls(
    workers: Workers, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its certificate is verified; one that asks for the gateway's own gets it."""
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*ours.issue("collector"))
    context.load_verify_locations(ours.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    certificate, key = ours.issue("gateway")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", str(certificate))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_KEY", str(key))
    async with Collector(context) as collector:
        for authority in (ours, theirs):
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", str(authority.ca))
            tracing = {"otlp_endpoint": f"https://{collector.address}", "sample": 1.0}
            folder = tmp_path / authority.ca.parent.name / "gateway"
            folder.mkdir()
            async with traced(workers, tokenizer, folder, **tracing) as (gateway, _, client):
                assert (await client.post("/embed", json=BODY)).status_code == 200

                async def over() -> bool:
                    return sum((await counted(gateway)).values()) == 1

                await until(over, "it is sent or lost")
                assert (await counted(gateway))["sent" if authority is ours else "lost"] == 1
    assert len(collector.heads) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ENDPOINT", "grpc://collector:4317"),
        ("TRACES_ENDPOINT", "http://"),
        ("HEADERS", "key"),
        ("HEADERS", "key=a%0d%0ab"),
        ("CERTIFICATE", "/nowhere.pem"),
    ],
)
async def test_wrong_variables_are_named_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:1")
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)
    command = [str(gateway_program()), "--config", str(write_config(tmp_path / "gateway.json"))]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False, timeout=60)
    said = done.stderr
    assert done.returncode == 2, said
    assert (value if name == "CERTIFICATE" else f"OTEL_EXPORTER_OTLP_{name}") in said
