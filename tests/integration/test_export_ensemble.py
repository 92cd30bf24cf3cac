"""`benchmarks.flows.export`: a flow as a BLS model and as an ensemble on a real Triton; answers as `arlo serve`'s."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from arlo.errors import ConfigError
from arlo.workers.ports import free_port
from arlo.workers.triton.alone import LoneTriton
from benchmarks.flows.export import export, main
from tests.fakes.flows import EXPORTED as FLOW
from tests.fakes.flows import EXPORTED_NAME as NAME
from tests.fakes.processes import nothing_left
from tests.fakes.serving import serving
from tests.integration.gateway.piped import arrays_of, long, short
from tests.integration.gateway.replayed import write_stages

pytestmark = [pytest.mark.integration, pytest.mark.long]

SERVE = """\
[pipeline]
flow = "flow.toml"
workers = [0, 1, 1]
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
[control]
http_address = "127.0.0.1:0"
"""
# Whole in `topic`, up to three pieces in `tags`: each names its own record there.
ROWS = [short(3), *(long([10 * i + 1, 10 * i + 2, 10 * i + 3], 16) for i in range(12)), short(7, 12)]


def request_of(model: str, rows: Sequence[Sequence[int]] = ROWS) -> Any:
    """Rows, padded to one length."""
    longest = max(map(len, rows))
    ids = np.array([[*row, *[0] * (longest - len(row))] for row in rows], np.int64)
    mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in rows], np.int64)
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in (("input_ids", ids), ("attention_mask", mask)):
        request.inputs.add(name=name, datatype="INT64", shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return request


def same(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    assert theirs.keys() == ours.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(theirs[name], array, err_msg=name)


async def test_a_plain_triton_gives_the_answers_of_arlo(tmp_path: Path) -> None:
    write_stages(tmp_path, apart=True)
    (tmp_path / "flow.toml").write_text(FLOW)
    (tmp_path / "serve.toml").write_text(SERVE)
    async with serving(tmp_path) as served, grpc.aio.insecure_channel(served.ready["grpc"]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        ours = arrays_of(await stub.ModelInfer(request_of(NAME), timeout=30))
        served.process.terminate()
        assert await served.wait() == 0
        await nothing_left(served.mark)
    assert len(ours["topic.row"]) > 1
    assert len(ours["tags.row"]) > len(set(ours["tags.row"].tolist()))  # rows that went on in pieces
    made = export(tmp_path / "flow.toml", tmp_path / "exported", {"topic": "middle"}, instances=1)
    assert made["variants"] == {"topic": "middle", "tags": "large"}
    server = LoneTriton(
        tmp_path / "exported", grpc_port=free_port("127.0.0.1"), http_port=None, log=tmp_path / "triton.log"
    )
    async with (
        server as triton,
        grpc.aio.insecure_channel(triton.endpoint) as channel,
    ):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        same(arrays_of(await stub.ModelInfer(request_of(made["bls"]), timeout=30)), ours)
        # An ensemble hands a request's rows on as one batch, which has to be one that the runtime takes.
        alone = [arrays_of(await stub.ModelInfer(request_of(made["ensemble"], [row]), timeout=30)) for row in ROWS]
        for number, answer in enumerate(alone):
            for name in ("topic.row", "tags.row"):
                answer[name] = answer[name] + number
        same({name: np.concatenate([answer[name] for answer in alone]) for name in ours}, ours)
        bad = request_of(made["bls"])
        bad.raw_input_contents[1] = bytes(len(bad.raw_input_contents[1]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ModelInfer(bad, timeout=30)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "no token" in str(caught.value.details())


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_stages(tmp_path, apart=True)
    flow, out = tmp_path / "flow.toml", tmp_path / "exported"
    flow.write_text(FLOW)
    assert main([str(flow), "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["variants"] == {"topic": "middle", "tags": "large"}
    with pytest.raises(ConfigError, match="is there already"):
        export(flow, out)
    for chosen, says in (({"topic": "none"}, "no variant"), ({"other": "small"}, "no stage")):
        with pytest.raises(ConfigError, match=says):
            export(flow, tmp_path / "other", chosen)
    flow = tmp_path / "spans.toml"
    flow.write_text(FLOW.replace('kind = "chunks", window = 18, stride = 16', 'kind = "spans"'))
    with pytest.raises(ConfigError, match="spans"):
        export(flow, tmp_path / "other")
    assert not (tmp_path / "other").exists()
