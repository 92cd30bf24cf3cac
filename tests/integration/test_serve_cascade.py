"""`arlo serve` of a cascade whose engines replay records, on real Triton workers: what is served is what was found
offline, row by row, and a stage that is lost costs no answer."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from numpy.typing import NDArray

from arlo.cascade.decide import Answers, answers, walk
from arlo.cascade.manifest import CascadeManifest
from arlo.client import AsyncClient, Classification
from tests.fakes.processes import marked, nothing_left, until
from tests.fakes.serving import serving
from tests.integration.gateway.replayed import RECORDS, STAGES, recorded, rows_of, write_cascade

pytestmark = [pytest.mark.integration, pytest.mark.long]

SERVE = """\
[cascade]
manifest = "cascade.json"
slo_ms = 1000
workers = [2, 1, 1]
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
[control]
http_address = "127.0.0.1:0"
reallocate = false
"""


def written(folder: Path) -> CascadeManifest:
    """Repositories, cascade.json and serve.toml in a folder."""
    manifest = write_cascade(folder)
    (folder / "serve.toml").write_text(SERVE)
    return manifest


async def ask(client: Any, records: Sequence[int], lengths: Sequence[int], **parameters: Any) -> dict[str, Any]:
    rows = rows_of(records, lengths)
    ids = np.zeros((len(rows), max(lengths)), np.int64)
    mask = np.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    inputs = []
    for name, array in (("input_ids", ids), ("attention_mask", mask)):
        tensor = triton.InferInput(name, array.shape, "INT64")
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    names = ("logits", "cascade_stage", "cascade_confidence", "cascade_reason")
    outputs = [triton.InferRequestedOutput(name) for name in names]
    answer = await client.infer("kinds", inputs, outputs=outputs, parameters=parameters)
    return {name: answer.as_numpy(name) for name in names}


def rows(said: Answers, records: NDArray[np.int64]) -> Answers:
    """Of these records, in this order."""
    return Answers(**{field.name: getattr(said, field.name)[records] for field in dataclasses.fields(said)})


async def test_what_is_served_is_what_was_found(tmp_path: Path) -> None:
    manifest = written(tmp_path)
    said = [answers(stage.spec, recorded(stage.name)[0], np.full(RECORDS, 16)) for stage in manifest.stages]
    random = np.random.default_rng(3)
    async with serving(tmp_path) as served:
        assert served.ready["model"] == served.ready["cascade"] == "kinds"
        pids = sorted(pid for pid, run in marked(served.mark).items() if run.split()[0].endswith("tritonserver"))
        async with triton.InferenceServerClient(served.ready["grpc"]) as client:
            metadata = await client.get_model_metadata("kinds")
            async with AsyncClient(served.ready["grpc"], model="kinds") as sdk:
                records = list(range(40))
                found = await sdk.classify([row.tolist() for row in rows_of(records, [16] * 40)], batch_rows=16)
                ends = [each.stage for each in found]
                assert set(ends) == {0, 1, 2}
                tops = [
                    int(recorded(STAGES[end])[0][record].argmax()) for record, end in zip(records, ends, strict=True)
                ]
                assert [each.label for each in found] == [f"label{top}" for top in tops]
                assert all(each.reason in ("confident", "final") and not each.degraded for each in found)
                partial: dict[int, list[int | None]] = {}
                ended: dict[int, Any] = {}
                async for position, said_so_far in sdk.classify_stream(
                    row.tolist() for row in rows_of(records, [16] * 40)
                ):
                    assert isinstance(said_so_far, Classification)
                    if said_so_far.final:
                        ended[position] = said_so_far
                    else:
                        partial.setdefault(position, []).append(said_so_far.stage)
                assert sorted(ended) == records
                assert partial == {i: list(range(each.stage)) for i, each in ended.items() if each.stage}
            assert [tensor.name for tensor in metadata.inputs] == ["input_ids", "attention_mask"]

            async def compare() -> int:
                total = 0
                for _ in range(60):
                    count = int(random.integers(1, 33))
                    records = random.integers(0, RECORDS, count)
                    lengths = random.integers(2, 65, count)
                    seed = int(random.integers(1 << 40))
                    wanted = walk(
                        manifest.point().all_rules,
                        [rows(each, records) for each in said],
                        lengths,
                        row=np.arange(count),
                        seed=seed,
                    )
                    got = await ask(client, records.tolist(), lengths.tolist(), cascade_seed=seed)
                    assert got["cascade_stage"].tolist() == wanted.stage.tolist()
                    assert got["cascade_reason"].tolist() == wanted.reason.tolist()
                    np.testing.assert_allclose(got["cascade_confidence"], wanted.confidence, rtol=1e-6)
                    assert got["logits"].argmax(1).tolist() == wanted.answer.tolist()
                    total += count
                return total

            assert sum(await asyncio.gather(*(compare() for _ in range(4)))) > 2000

            # The only worker of the last stage dies under load.
            stop = asyncio.Event()
            reasons: list[int] = []

            async def load() -> None:
                while not stop.is_set():
                    got = await ask(client, random.integers(0, RECORDS, 8).tolist(), [16] * 8)
                    reasons.extend(got["cascade_reason"].tolist())

            loads = [asyncio.create_task(load()) for _ in range(3)]
            await asyncio.sleep(0.5)
            os.kill(pids[-1], signal.SIGKILL)
            await until(lambda: 5 in reasons, "a row that ends without the last stage")
            seen = len(reasons)
            await until(lambda: 1 in reasons[seen + 500 :], "the last stage is back", timeout_s=60)
            stop.set()
            await asyncio.gather(*loads)
        served.process.send_signal(signal.SIGTERM)
        assert await served.wait() == 0
    await nothing_left(served.mark)


async def test_drift_raises_the_operating_point(tmp_path: Path) -> None:
    """The records of the stages have nothing in common, whatever cascade.json says."""
    written(tmp_path)
    more = 'shadow_share = 1.0\ndrift = "raise"'
    toml = SERVE.replace("slo_ms", f"{more}\nslo_ms", 1)
    (tmp_path / "serve.toml").write_text(toml)
    async with serving(tmp_path) as served, triton.InferenceServerClient(served.ready["grpc"]) as client:

        async def events() -> str:
            for at in range(0, 100, 5):
                await ask(client, list(range(at, at + 5)), [16] * 5)
            return served.log.read_text()

        said = ""
        for _ in range(20):
            said = await events()
            if "no_safer_point" in said:
                break
        assert said.count('"cascade_drift"') == 2  # of the one point, then of the other
        assert '"cascade_point_raised"' in said
        status = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "arlo.cli", "top", "--once", "--admin", served.ready["admin"]),
            *("--control", served.ready["control"]),
            stdout=asyncio.subprocess.PIPE,
        )
        out = (await status.communicate())[0].decode()
        assert "point safe" in out
        assert "DRIFT: shadow rows" in out
        served.process.send_signal(signal.SIGTERM)
        assert await served.wait() == 0
