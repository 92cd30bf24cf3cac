"""`arlo serve` of a pipeline whose engines replay records, on real Triton workers: a flow file is all that it needs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from arlo.catalog.manifest import LatencyPoint
from arlo.workers.emulated.repository import EmulatedRuntime, runtime_name
from tests.fakes.processes import nothing_left
from tests.fakes.replayed import write_replayed_repository
from tests.fakes.serving import serving
from tests.integration.gateway.piped import arrays_of, short
from tests.integration.gateway.replayed import recorded, request_of_rows

pytestmark = [pytest.mark.integration, pytest.mark.long]

SERVE = """\
[pipeline]
flow = "flow.toml"
workers = [1, 1, 1]
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
[control]
http_address = "127.0.0.1:0"
"""


MOVING = """\
[flow]
name = "moving"
slo_ms = 1000
plan_period_s = 1
[[flow.stage]]
name = "topic"
variants = [{repository = "sure", accuracy = 0.95}, {repository = "quick", accuracy = 0.8}]
[[flow.stage]]
name = "tags"
variants = [{repository = "last", accuracy = 0.9}]
[[flow.edge]]
from = "topic"
to = "tags"
"""


def write_slow(folder: Path) -> None:
    """Engines that take one row at a time: a worker of `sure` does 20 rows a second."""
    for name, ms in (("sure", 50), ("quick", 5), ("last", 5)):
        runtime = EmulatedRuntime(
            name=runtime_name(name, 32),
            max_length=32,
            max_batch=1,
            dynamic=False,
            latency=(LatencyPoint(length=32, batch=1, latency_us=1000 * ms),),
        )
        write_replayed_repository(folder / name, model=name, runtimes=[runtime], logits=recorded("small")[0])


async def test_demand_moves_the_plan_to_faster_variants_and_back(tmp_path: Path) -> None:
    """Workers go from the accurate variant to the quick one and back while roots come, and none is lost."""
    write_slow(tmp_path)
    (tmp_path / "flow.toml").write_text(MOVING)
    (tmp_path / "serve.toml").write_text(SERVE.replace("[1, 1, 1]", "[2, 0, 1]"))
    answered: list[tuple[str, float]] = []
    async with serving(tmp_path) as served, grpc.aio.insecure_channel(served.ready["grpc"]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        asked: set[asyncio.Task[None]] = set()

        async def ask() -> None:
            outputs = arrays_of(
                await stub.ModelInfer(
                    request_of_rows("moving", [short(7)], ("row", "route", "accuracy_expected")), timeout=30
                )
            )
            assert outputs["row"].tolist() == [0]
            answered.append((outputs["route"][0], float(outputs["accuracy_expected"][0])))

        def plans(moved: bool | None = None) -> list[dict[str, Any]]:
            return [each for each in served.events("plan") if moved is None or each["moved"] is moved]

        async def until(rate: float, done: Callable[[], bool]) -> None:
            async with asyncio.timeout(30):
                while not done():
                    task = asyncio.create_task(ask())
                    asked.add(task)
                    await asyncio.sleep(1 / rate)

        def status() -> str:
            words = ("top", "--once", "--admin", served.ready["admin"], "--model", "moving")
            done = subprocess.run(
                [sys.executable, "-m", "arlo.cli", *words], check=True, capture_output=True, text=True
            )
            return done.stdout

        await until(20, lambda: len(served.events("flow_plan")) > 2)
        assert {route for route, _ in answered} == {"moving.topic.sure>moving.tags.last"}
        await until(70, lambda: any(each["after"] == [1, 1, 1] for each in plans(moved=True)))
        before = len(answered)
        await until(70, lambda: sum("quick" in route for route, _ in answered[before:]) > 20)
        plan = served.events("flow_plan")[-1]
        assert plan["step"] == "accuracy"
        assert 0.8 * 0.9 < plan["accuracy"] < 0.95 * 0.9
        assert plan["utilisation"] == 0.8
        told = await asyncio.to_thread(status)
        assert "plan of arlo" in told
        assert ", utilisation 0.8" in told
        await until(20, lambda: plans(moved=True)[-1]["after"] == [2, 0, 1])
        before = len(answered)
        await until(20, lambda: all("sure" in route for route, _ in answered[before:]) and len(answered) > before + 20)
        await asyncio.gather(*asked)
        assert len(answered) == len(asked)
        served.process.terminate()
        assert await served.wait() == 0
        await nothing_left(served.mark)
