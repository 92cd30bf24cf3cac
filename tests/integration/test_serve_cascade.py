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
from arlo.cli.top.source import fetch_status
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


async def test_another_point_is_chosen_while_rows_come(tmp_path: Path) -> None:
    manifest = written(tmp_path)
    said = [answers(stage.spec, recorded(stage.name)[0], np.full(RECORDS, 16)) for stage in manifest.stages]
    random = np.random.default_rng(5)

    async def use(served: Any, *words: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "arlo.cli", "config", "use", str(tmp_path / "serve.toml"), *words),
            *("--admin", served.ready["admin"]),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()

    async def follows(client: Any, point: str) -> None:
        records, lengths = random.integers(0, RECORDS, 32), random.integers(2, 65, 32)
        got = await ask(client, records.tolist(), lengths.tolist(), cascade_seed=3)
        wanted = walk(
            manifest.point(point).all_rules,
            [rows(each, records) for each in said],
            lengths,
            row=np.arange(32),
            seed=3,
        )
        assert got["cascade_stage"].tolist() == wanted.stage.tolist()

    default, other = manifest.point().name, next(p.name for p in manifest.points if p.name != manifest.point().name)
    async with serving(tmp_path) as served, triton.InferenceServerClient(served.ready["grpc"]) as client:
        stop = asyncio.Event()

        async def load() -> int:
            answered = 0
            while not stop.is_set():
                got = await ask(client, random.integers(0, RECORDS, 8).tolist(), [16] * 8)
                answered += len(got["cascade_stage"])
            return answered

        loads = [asyncio.create_task(load()) for _ in range(2)]
        await follows(client, default)
        for words, wanted in (((other,), other), (("--reset",), default), ((other,), other)):
            code, out = await use(served, *words)
            assert (code, out.strip()) == (0, f"{wanted} is in force")
            await follows(client, wanted)
        code, out = await use(served, "nonesuch")
        assert code == 2
        assert other in out, "it names those that there are"
        assert (await use(served))[0] == 2
        stop.set()
        assert sum(await asyncio.gather(*loads)) > 0
        served.process.send_signal(signal.SIGTERM)
        assert await served.wait() == 0
    async with serving(tmp_path) as served, triton.InferenceServerClient(served.ready["grpc"]) as client:
        await until(lambda: "cascade_point_chosen" in served.log.read_text(), "the point of before")
        await follows(client, other)
        served.process.send_signal(signal.SIGTERM)
        assert await served.wait() == 0


async def test_another_point_brings_another_plan(tmp_path: Path) -> None:
    """Of a point that sends every row on, workers are planned for before its rows have been counted."""
    manifest = written(tmp_path)
    points = tuple(
        dataclasses.replace(point, reach=reach)
        for point, reach in zip(manifest.points, ((1.0, 0.5, 0.3), (1.0, 1.0, 1.0)), strict=True)
    )
    dataclasses.replace(manifest, points=points).save(tmp_path)
    (tmp_path / "serve.toml").write_text(SERVE.replace("reallocate = false", "early = false"))
    async with serving(tmp_path) as served, triton.InferenceServerClient(served.ready["grpc"]) as client:
        for at in range(0, 400, 20):
            await ask(client, list(range(at % 200, at % 200 + 20)), [16] * 20)

        async def rates() -> list[float]:
            status = await asyncio.to_thread(fetch_status, served.ready["control"])
            return [sum(model.demand) for model in status.models]

        # All rows are counted when the rate of every stage falls, for none come.
        async with asyncio.timeout(60):
            before, counted = [0.0] * 3, await rates()
            while not all(0 < now < then for now, then in zip(counted, before, strict=True)):
                before, counted = counted, await rates()
                await asyncio.sleep(0.2)
        assert [plan["reason"] for plan in served.events("plan")] == ["start"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "arlo.cli", "config", "use", str(tmp_path / "serve.toml"), "safe"),
            *("--admin", served.ready["admin"]),
        )
        assert await process.wait() == 0
        await until(lambda: len(served.events("plan")) > 1, "a plan for the point")
        plan = served.events("plan")[1]
        assert plan["reason"] == "point"
        asked = list(plan["demand_by_model"].values())
        first, second, third = counted
        assert asked[1] == pytest.approx(asked[0] * second / first / 0.5, rel=0.35), "what it had, times 1 / 0.5"
        assert asked[2] == pytest.approx(asked[0] * third / first / 0.3, rel=0.35), "what it had, times 1 / 0.3"
        status = await asyncio.to_thread(fetch_status, served.ready["control"])
        assert status.cascade is not None
        assert (status.cascade.point, status.cascade.reach) == ("safe", [1.0, 1.0, 1.0])
        await ask(client, list(range(20)), [16] * 20)
        served.process.send_signal(signal.SIGTERM)
        assert await served.wait() == 0


async def test_workers_are_added_where_the_whole_way_is_too_slow(tmp_path: Path) -> None:
    """Three stages take 7 ms and more; of 3 ms no row of the last one is in time."""
    written(tmp_path)
    toml = SERVE.replace("slo_ms = 1000", "slo_ms = 3").replace("reallocate = false", "")
    scaling = '[scaling]\npolicy = "target"\nmin_workers = 4\nmax_workers = 5\n'
    (tmp_path / "serve.toml").write_text(toml + scaling)
    async with serving(tmp_path) as served, triton.InferenceServerClient(served.ready["grpc"]) as client:
        random = np.random.default_rng(7)

        async def asked() -> bool:
            # One row a request: several together would be bulk, which no SLO is of.
            await asyncio.gather(*(ask(client, [int(record)], [16]) for record in random.integers(0, RECORDS, 20)))
            return bool(served.events("scaling"))

        async with asyncio.timeout(60):
            while not await asked():
                pass
        first = served.events("scaling")[0]
        assert first["action"] == "add"
        assert "of the SLO of 3 ms" in first["reason"]
        await until(lambda: "scale_out" in [plan["reason"] for plan in served.events("plan")], "a plan", timeout_s=60)
        served.process.send_signal(signal.SIGTERM)
        assert await served.wait() == 0
    await nothing_left(served.mark)
