"""Work of the gateway's own for a cascade: the sample of its traffic, and the last stage beside the first one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from arlo.cascade.manifest import CascadeManifest
from arlo.cli import main
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.replayed import (
    BATCHES,
    STAGES,
    Plan,
    arrays_of,
    ask,
    cascade_deployment,
    expected,
    recorded,
    write_cascade,
)

pytestmark = pytest.mark.integration


async def test_a_sample_of_the_traffic_makes_a_point(workers: Workers, start: Any, tmp_path: Path) -> None:
    """Rows that end early, and rows that go on to the end, with what each stage said; for `arlo fit --from`."""
    everywhere = {"small": (0, 1), "middle": (2,), "large": (3,)}
    deployment = cascade_deployment(workers, everywhere, shadow_share=1.0, shadow_max_busy=1.0)
    wanted = expected(range(400))
    async with start(deployment, dispatch=BATCHES) as gateway:
        for record in range(400):
            await ask(gateway, [record])
        await gateway.stats_when(lambda s: s.in_flight == s.queued == 0, "shadows are over", model="large")
        rows = (await gateway.call("GetSample", model="kinds")).rows
        by_first = {recorded("small")[0][record].tobytes(): record for record in range(400)}
        seen: dict[int, Any] = {
            by_first[np.array(row.said[0].logits, np.float32).tobytes()]: [said.stage for said in row.said]
            for row in rows
        }
        assert len(seen) == len(rows) > 200
        for row in rows:
            record = by_first[np.array(row.said[0].logits, np.float32).tobytes()]
            assert (row.length, row.share, row.pruned) == (16, 1.0, 0)
            assert row.at_ms > 1e12
            for said in row.said:
                np.testing.assert_array_equal(said.logits, recorded(STAGES[said.stage])[0][record])
            end = wanted.stage[record]
            assert seen[record] == [*range(end + 1), 2][: end + 2 if end < 2 else 3]
        stats = await gateway.stats("kinds")
        # All rows that ended early but those left out; of the others those that had room at each stage.
        assert sum(wanted.stage[record] == 0 for record in seen) == stats.stages[0].shadow_rows
        assert 0 < sum(wanted.stage[record] == 1 for record in seen) <= stats.stages[1].shadow_rows
        assert sum(wanted.stage[record] == 2 for record in seen) > 20
        # A client with wishes of its own is not in it.
        await ask(gateway, [1], cascade_max_stage=0)
        assert len((await gateway.call("GetSample", model="kinds")).rows) == len(rows)

        write_cascade(tmp_path)
        options = [str(tmp_path / "cascade.json"), "--from", gateway.admin, "--json"]
        assert await asyncio.to_thread(main, ["fit", *options]) == 0
        made = CascadeManifest.load(tmp_path).point("usual-refreshed")
        assert made.search == "refresh"
        assert made.agreement >= CascadeManifest.load(tmp_path).point("usual").agreement
        # Other stages: what was said of these is nothing to go by any more.
        two = cascade_deployment(workers, {"small": (0, 1), "large": (3,)}, {"two": Plan(((0.7,),))}, version=2)
        two.cascades[0].shadow_share = two.cascades[0].shadow_max_busy = 1.0
        await gateway.apply(two)
        for at in range(0, 40, 2):
            await ask(gateway, [at, at + 1])
        await gateway.stats_when(lambda s: s.in_flight == s.queued == 0, "shadows are over", model="large")
        rows = (await gateway.call("GetSample", model="kinds")).rows
        assert 0 < len(rows) <= 40
        assert {said.stage for row in rows for said in row.said} == {0, 1}
        assert await asyncio.to_thread(main, ["fit", *options]) != 0
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await gateway.call("GetSample", model="none")
        assert raised.value.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("start_at", [1, 2])
async def test_rows_that_begin_at_a_later_stage(workers: Workers, start: Any, start_at: int) -> None:
    """Unless the client wants none so late."""
    everywhere = {"small": (0, 1), "middle": (2,), "large": (3,)}
    deployment = cascade_deployment(workers, everywhere, {"usual": Plan(((0.0, 0.0),))})
    deployment.cascades[0].points[0].start = start_at
    async with start(deployment, dispatch=BATCHES) as gateway:
        for record in range(20):
            found = arrays_of(await ask(gateway, [record]))
            np.testing.assert_array_equal(found["logits"][0], recorded(STAGES[start_at])[0][record])
            early = arrays_of(await ask(gateway, [record], cascade_max_stage=0))
            np.testing.assert_array_equal(early["logits"][0], recorded("small")[0][record])
        stats = await gateway.stats("kinds")
        assert sum(stats.stages[start_at].exits) == 20
        deployment.cascades[0].points[0].start = 3
        deployment.version += 1
        with pytest.raises(grpc.aio.AioRpcError, match="start: there is no such stage"):
            await gateway.apply(deployment)


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cascade(tmp_path)
    before = json.loads((tmp_path / "cascade.json").read_text())
    for options, said in (
        (["--from", "127.0.0.1:1"], "no gateway answers at the admin address"),
        (["other.json", "--from", "127.0.0.1:1"], "takes one cascade.json"),
    ):
        assert main(["fit", str(tmp_path), *options]) != 0
        assert said in capsys.readouterr().err
    assert json.loads((tmp_path / "cascade.json").read_text()) == before


async def test_logits_come_in_the_order_of_the_cascades_labels(workers: Workers, start: Any) -> None:
    """A stage may have been trained with its labels in another order."""
    deployment = cascade_deployment(workers, {"small": (0, 1), "middle": (2,), "large": (3,)})
    deployment.cascades[0].stages[2].label_order.extend([2, 0, 3, 1])
    async with start(deployment, dispatch=BATCHES) as gateway:
        names = ("logits", "probabilities", "cascade_stage")
        answer = arrays_of(await ask(gateway, [3, 4, 5], outputs=names, cascade="last"))
        theirs = recorded("large")[0][[3, 4, 5]]
        wanted = np.empty_like(theirs)
        wanted[:, [2, 0, 3, 1]] = theirs
        assert answer["cascade_stage"].tolist() == [2, 2, 2]
        np.testing.assert_array_equal(answer["logits"], wanted)
        np.testing.assert_array_equal(answer["probabilities"].argmax(1), wanted.argmax(1))
        answer = arrays_of(await ask(gateway, [3, 4, 5], cascade="first"))
        np.testing.assert_array_equal(answer["logits"], recorded("small")[0][[3, 4, 5]])
