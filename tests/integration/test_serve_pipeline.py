"""`arlo serve` of a pipeline whose engines replay records, on real Triton workers: a flow file is all that it needs."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.fakes.processes import nothing_left
from tests.fakes.serving import serving
from tests.integration.gateway.piped import NAME, WISHED, check_cascade_like, request_of, short
from tests.integration.gateway.replayed import write_stages

pytestmark = [pytest.mark.integration, pytest.mark.long]

FLOW = f"""\
[flow]
name = "{NAME}"
slo_ms = 1000
[[flow.stage]]
name = "topic"
variants = [{{repository = "small", accuracy = 0.8}}, {{repository = "middle", accuracy = 0.9}}]
[[flow.stage]]
name = "tags"
variants = [{{repository = "large", accuracy = 0.95}}]
[[flow.edge]]
from = "topic"
to = "exit"
when = {{score = "calibrated_max", at_least = 0.7, share = 0.5}}
[[flow.edge]]
from = "topic"
to = "tags"
"""
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


async def test_a_flow_is_served(tmp_path: Path) -> None:
    write_stages(tmp_path, apart=True)
    (tmp_path / "flow.toml").write_text(FLOW)
    (tmp_path / "serve.toml").write_text(SERVE)
    async with serving(tmp_path) as served:
        assert served.ready["model"] == served.ready["pipeline"] == NAME
        records = list(range(40))
        async with grpc.aio.insecure_channel(served.ready["grpc"]) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            answer = await stub.ModelInfer(request_of([short(r) for r in records], WISHED), timeout=20)
        inner = f"{NAME}.topic.", f"{NAME}.tags."
        check_cascade_like(answer, records, prefixes=inner)
        status = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "arlo.cli", "status", "--admin", served.ready["admin"], "--model", NAME, "--json"),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await status.communicate()
        assert status.returncode == 0
        said = json.loads(out)
        assert '"stage": "tags"' in json.dumps(said)
        served.process.terminate()
        assert await served.wait() == 0
        await nothing_left(served.mark)
