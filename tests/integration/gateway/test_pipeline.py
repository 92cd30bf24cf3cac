"""Pipelines on real workers that replay records: every row is answered once, by the ways that its answers say."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import grpc
import numpy as np
import pytest

from arlo.client import AsyncClient
from tests.fakes.gateway import Gateway
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.piped import (
    BATCHES,
    NAME,
    SAID,
    WISHED,
    arrays_of,
    cascade_like,
    check_cascade_like,
    long,
    pipeline_deployment,
    refused,
    request_of,
    short,
)
from tests.integration.gateway.replayed import RECORDS

pytestmark = pytest.mark.integration

EVERYWHERE = {"small": (0, 1), "middle": (2,), "large": (3,)}
PIECES = {"window": 32, "stride": 30}


async def ask(gateway: Gateway, records: list[int], timeout: float = 20, **parameters: Any) -> list[str]:
    rows = [short(record) for record in records]
    answer = await gateway.infer(request_of(rows, WISHED, **parameters), timeout=timeout)
    return check_cascade_like(answer, records)


def check_metrics(gateway: Gateway, stages: Any) -> None:
    """What the metrics say of variants and children is what Stats says."""
    said = {
        (sample.name, *sorted((key, value) for key, value in sample.labels.items() if key != "model")): sample.value
        for family in gateway.metrics().values()
        for sample in family.samples
        if "stage" in sample.labels
    }
    for stage in stages:
        of_stage = ("stage", stage.stage)
        for variant in stage.variants:
            of = (of_stage, ("variant", variant.name))
            assert said["arlo_pipeline_variant_answered_total", *of] == variant.answered
            assert said["arlo_pipeline_price", *of] >= 0
    first = ("stage", stages[0].stage)
    made = sum(sum(variant.made) for variant in stages[0].variants)
    assert said["arlo_pipeline_children_sum", first] == made == stages[0].children_sum
    assert said["arlo_pipeline_children_count", first] == stages[0].answered
    below = {
        float(dict(key[1:])["le"]): count
        for key, count in said.items()
        if key[0] == "arlo_pipeline_children_bucket" and first in key
    }
    assert (below[0], below[float("inf")]) == (stages[0].children[0], stages[0].answered)


@pytest.mark.sanitized
async def test_rows_take_their_edges(workers: Workers, start: Any) -> None:
    """Clients side by side: the way, the answer and the expected accuracy of each row, and the counts of the stages."""
    async with start(cascade_like(workers, EVERYWHERE), dispatch=BATCHES) as gateway:
        rows = rerouted = 0

        async def client(seed: int) -> None:
            nonlocal rows, rerouted
            random = np.random.default_rng(seed)
            for _ in range(20):
                records = random.integers(0, RECORDS, random.integers(1, 17)).tolist()
                wished = (*WISHED, "dropped_rows", "rerouted")
                answer = await gateway.infer(request_of([short(record) for record in records], wished), timeout=20)
                check_cascade_like(answer, records)
                outputs = arrays_of(answer)
                assert outputs["dropped_rows"].tolist() == [0] * len(records)
                rerouted += outputs["rerouted"].sum()
                rows += len(records)

        await asyncio.gather(*map(client, range(4)))
        stats = await gateway.stats(NAME)
        assert stats.outcomes.on_time + stats.outcomes.late == rows
        topic, tags = stats.pipeline
        assert (topic.stage, tags.stage) == ("topic", "tags")
        assert topic.visits == topic.answered == rows
        assert tags.visits == tags.answered == tags.ends == rows - topic.ends
        assert sum(topic.dropped) == sum(tags.dropped) == 0
        assert topic.rerouted + tags.rerouted == rerouted
        assert (topic.arrived, tags.arrived) == (rows, tags.visits)
        assert [sum(one.answered for one in stage.variants) for stage in (topic, tags)] == [rows, tags.answered]
        assert sum(one.ended for one in topic.variants) == topic.ends
        assert [list(one.made) for one in topic.variants] == [[one.answered - one.ended] for one in topic.variants]
        assert len(topic.price) == 2
        await asyncio.to_thread(check_metrics, gateway, stats.pipeline)
        inner = [await gateway.stats(model) for model in ("small", "middle", "large")]
        assert [one.stage for one in inner] == [True] * 3
        assert sum(one.outcomes.on_time + one.outcomes.late for one in inner) == topic.visits + tags.visits

        assert set(await ask(gateway, [1, 2, 3], min_accuracy=0.85)) <= {"middle", "middle>large"}
        why = await refused(ask(gateway, [1], min_accuracy=0.99))
        assert why[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "min_accuracy" in why[1]
        assert set(await ask(gateway, [1, 2, 3], min_accuracy="0.85")) <= {"middle", "middle>large"}, "a text of one"
        for wrong in (-1.0, "-1", "much", "", "1x", "nan", "inf"):
            why = await refused(ask(gateway, [1], utility=wrong))
            assert why == (
                grpc.StatusCode.INVALID_ARGUMENT,
                "parameter 'utility' must be a double_param: utility 0 to 1e9, min_accuracy 0 to 1; pin and tenant a "
                "string_param",
            )
        for variant in ("small", "middle"):
            assert set(await ask(gateway, list(range(8)), pin=variant)) <= {variant, f"{variant}>large"}
        assert set(await ask(gateway, list(range(8)), pin="middle>large")) <= {"middle", "middle>large"}
        for pin, what in (("nobody", "none of the variants: small middle large"), ("small>middle", "two variants of")):
            why = await refused(ask(gateway, [1], pin=pin))
            assert why[0] == grpc.StatusCode.INVALID_ARGUMENT
            assert what in why[1]
        plain = await gateway.infer(request_of([short(1)]))
        assert [tensor.name for tensor in plain.outputs] == ["topic.logits", "topic.row", "tags.logits", "tags.row"]
        assert plain.id == "one"
        assert (await refused(gateway.infer(request_of([short(1)], ("importance",)))))[0] == (
            grpc.StatusCode.INVALID_ARGUMENT
        )


async def test_pieces_of_a_row(workers: Workers, start: Any) -> None:
    """A long row enters in pieces, whose answers are listed, or become their mean; too many pieces are refused."""
    rows = [long([5, 6, 7], 30), short(8), long([9, 10], 30)]
    listed = pipeline_deployment(workers, {"small": (0, 1)}, {"all": ("small",)}, chunks=PIECES, max_children=8)
    async with start(listed, dispatch=BATCHES) as gateway:
        answer = await gateway.infer(request_of(rows, ("logits", "row", "children")), timeout=20)
        outputs = arrays_of(answer)
        assert outputs["row"].tolist() == [0, 0, 0, 1, 2, 2]
        assert outputs["children"].tolist() == [3, 1, 2]
        np.testing.assert_array_equal(outputs["logits"], SAID["small"][5:11])
        why = await refused(gateway.infer(request_of([long(list(range(9)), 30)])))
        assert why[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "max_children (8)" in why[1]

        mean = pipeline_deployment(workers, {"small": (0, 1)}, {"all": ("small",)}, chunks=PIECES, pool=True, version=2)
        await gateway.apply(mean)
        outputs = arrays_of(await gateway.infer(request_of(rows), timeout=20))
        assert list(outputs) == ["logits"]
        wanted = [SAID["small"][part].mean(0) for part in (slice(5, 8), slice(8, 9), slice(9, 11))]
        np.testing.assert_allclose(outputs["logits"], wanted, rtol=1e-6)


async def test_a_stage_makes_several_rows(workers: Workers, start: Any) -> None:
    """What the first stage answered goes on in pieces, in the order of the row; limits of rows and of bytes."""
    stages = {"first": ("small", "middle"), "parts": ("large",)}
    edge = {"from": 0, "to": 1, "factor": [2.0, 2.0], "chunks": {"window": 22, "stride": 20}}
    rows = [long([5, 6, 7], 20), short(8), long([9, 10], 20)]
    deployment = pipeline_deployment(workers, EVERYWHERE, stages, [edge])
    async with start(deployment, dispatch=BATCHES) as gateway:
        answer = await gateway.infer(request_of(rows, ("logits", "row", "children", "route")), timeout=20)
        outputs = arrays_of(answer)
        assert outputs["row"].tolist() == [0, 0, 0, 1, 2, 2]
        np.testing.assert_array_equal(outputs["logits"], SAID["large"][5:11])
        assert [route.count("large") for route in outputs["route"]] == [3, 1, 2]
        first, parts = (await gateway.stats(NAME)).pipeline
        assert parts.ends == parts.arrived == sum(sum(one.made) for one in first.variants) == 6
        assert first.arrived == 3
        assert list(first.children[:4]) == [0, 1, 1, 1]  # 1, 2 and 3 rows of one
        assert (sum(first.children), first.children_sum) == (3, 6)
        assert (parts.children[0], sum(parts.children)) == (6, 6)
        async with AsyncClient(gateway.grpc, model=NAME) as client:
            result = await client.infer_batch([np.array(row, np.int64) for row in rows], outputs=["logits"])
            for said, wanted in zip(result.answers("logits"), (range(5, 8), (8,), (9, 10)), strict=True):
                np.testing.assert_array_equal(said, SAID["large"][list(wanted)])
            with pytest.raises(ValueError, match="6 answers of 3 rows"):
                result.rows("logits")
            one = await client.infer(np.array(rows[2], np.int64), outputs=["logits"])
            np.testing.assert_array_equal(one["logits"], SAID["large"][9:11])
            one = await client.infer(np.array(rows[1], np.int64))  # an answer, as of any model
            np.testing.assert_array_equal(one["logits"], SAID["large"][8])
            np.testing.assert_array_equal(one.answers("logits")[0], SAID["large"][8:9])

        for version, (limits, what) in enumerate(
            (({"max_children": 2}, "max_children (2)"), ({"max_bytes": 600}, "max_bytes (600)")), start=2
        ):
            await gateway.apply(pipeline_deployment(workers, EVERYWHERE, stages, [edge], version=version, **limits))
            why = await refused(gateway.infer(request_of(rows[:1])))
            assert why[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert what in why[1]
        await nothing_left(gateway)


async def test_rows_to_come_are_counted(workers: Workers, start: Any) -> None:
    """Each row becomes 20: only so many enter as make what the queue behind may hold; one alone always does."""
    stages = {"first": ("small",), "parts": ("large",)}
    for limit, least, most in ((100, 4, 16), (10, 1, 1)):
        edge = {"from": 0, "to": 1, "factor": [20.0], "chunks": {"window": 5, "stride": 3}}
        deployment = pipeline_deployment(workers, EVERYWHERE, stages, [edge], slo_ms=20_000)
        async with start(deployment, dispatch={**BATCHES, "max_queued": limit}) as gateway:
            asked = [gateway.infer(request_of([long(range(20), 3)], ("row",)), timeout=20) for _ in range(40)]
            ended = await asyncio.gather(*asked, return_exceptions=True)
            good = [arrays_of(each)["row"].tolist() for each in ended if not isinstance(each, BaseException)]
            refused_ = [each for each in ended if isinstance(each, grpc.aio.AioRpcError)]
            assert len(good) + len(refused_) == 40
            assert least <= len(good) <= most, Counter(each.details() for each in refused_)
            assert all(each == [0] * 20 for each in good)
            assert {each.code() for each in refused_} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            await gateway.infer(request_of([long(range(20), 3)], ("row",)), timeout=20)
            await nothing_left(gateway)


async def nothing_left(gateway: Gateway) -> None:
    """No row waits or runs any more, of any model."""
    for model in ("small", "middle", "large"):
        await gateway.stats_when(lambda s: s.queued == s.in_flight == 0, "nothing left", model=model)


@pytest.mark.sanitized
async def test_clients_that_leave_and_deadlines(workers: Workers, start: Any) -> None:
    """What a client has left is given up at all stages; what cannot be in time is refused, and the rest answered."""
    async with start(cascade_like(workers, EVERYWHERE, slo_ms=100), dispatch=BATCHES) as gateway:
        calls = [gateway.infer(request_of([short(r) for r in range(i, i + 60)])) for i in range(20)]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await gateway.stats_when(lambda s: s.pipeline and s.pipeline[0].visits >= 400, "under way", model=NAME)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await nothing_left(gateway)

        async def hurried(record: int) -> str:
            by_parameter = record % 2 == 0  # then it is the gateway alone that gives up
            rows = [short(record)] * 16
            request = request_of(rows, WISHED, timeout=30_000) if by_parameter else request_of(rows, WISHED)
            try:
                await gateway.infer(request, timeout=20 if by_parameter else 0.03)
            except grpc.aio.AioRpcError as error:
                return str(error.code().name)
            return "OK"

        said = await asyncio.gather(*map(hurried, range(60)))
        assert set(said) <= {"OK", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
        assert said.count("OK") < 60
        await nothing_left(gateway)

        def all_ended(stats: Any) -> bool:  # a request whose client is gone already may come late
            o = stats.outcomes
            ended = o.on_time + o.late + o.rejected + o.expired + o.cancelled + o.failed
            return bool(ended == sum(stats.arrivals_by_length))

        stats = await gateway.stats_when(all_ended, "every row has ended once", model=NAME)
        await nothing_left(gateway)
        assert sum(sum(stage.dropped) for stage in stats.pipeline) > 0
        await ask(gateway, [1, 2, 3])


async def test_a_variant_that_draws_more_than_it_gains(workers: Workers, start: Any) -> None:
    """There is room for both, and the more accurate one is taken; but for what its energy is worth. Then no client
    that does not ask for it gets it, and another deployment changes that at once."""
    plain, dear = (cascade_like(workers, EVERYWHERE, version=version) for version in (1, 2))
    dear.pipelines[0].stages[0].variants[1].energy = 1000.0
    async with start(plain, dispatch=BATCHES) as gateway:
        before = [(await ask(gateway, [record]))[0] for record in range(8)]
        assert any(way.startswith("middle") for way in before)
        await gateway.call("Apply", deployment=dear)
        for record in range(8):
            (way,) = await ask(gateway, [record])
            assert way.startswith("small")
        (way,) = await ask(gateway, [1], min_accuracy=0.85)
        assert way.startswith("middle")
        stats = await gateway.stats(NAME)
        assert all(price < 1000 for price in stats.pipeline[0].price), "that of capacity"
        for wrong in (-1.0, float("nan"), float("inf")):
            dear.pipelines[0].stages[0].variants[1].energy = wrong
            dear.version += 1
            why = await refused(gateway.call("Apply", deployment=dear))
            assert why[0] == grpc.StatusCode.INVALID_ARGUMENT
            assert "energy of at least 0" in why[1]


async def test_what_is_no_pipeline(workers: Workers, start: Any) -> None:
    async with start() as gateway:
        for change, what in (
            ({"router": "luck"}, "router: 'luck' is none of price, plan, maf"),
            ({"max_children": 0}, "must be above 0"),
            ({"chunks": {"window": 8, "stride": 7}}, "stride of 1 to window - 2"),
            ({"pool": True}, "a mean is of one stage's answers"),
        ):
            why = await refused(gateway.call("Apply", deployment=cascade_like(workers, EVERYWHERE, **change)))
            assert why[0] == grpc.StatusCode.INVALID_ARGUMENT
            assert what in why[1]


@pytest.mark.sanitized
async def test_a_part_that_is_given_up(workers: Workers, start: Any) -> None:
    """A stage without workers: the row ends with what the other branch says, or with a fault, as on_drop has it."""
    stages = {"first": ("small",), "here": ("middle",), "nowhere": ("large",)}
    edges = [{"from": 0, "to": 1, "factor": [1.0]}, {"from": 0, "to": 2, "factor": [1.0]}]
    placement = {"small": (0, 1), "middle": (2,), "large": ()}
    wished = ("here.logits", "here.row", "nowhere.row", "children", "reason", "dropped_rows", "rerouted", "route")
    partial = pipeline_deployment(workers, placement, stages, edges, partial=True)
    async with start(partial, dispatch=BATCHES, unavailable_grace_ms=200) as gateway:
        answer = await gateway.infer(request_of([short(5), short(6)], wished), timeout=20)
        outputs = arrays_of(answer)
        np.testing.assert_array_equal(outputs["here.logits"], SAID["middle"][5:7])
        assert outputs["here.row"].tolist() == [0, 1]
        assert outputs["nowhere.row"].shape == (0,)
        assert outputs["children"].tolist() == [1, 1]
        assert set(outputs["reason"].tolist()) <= {2, 5}  # deadline, failed
        assert outputs["dropped_rows"].tolist() == [1, 1]
        assert outputs["rerouted"].tolist() == [0, 0]
        assert outputs["route"] == ["small>middle"] * 2
        assert answer.parameters["degraded"].int64_param == 2

        await gateway.apply(pipeline_deployment(workers, placement, stages, edges, version=2))
        why = await refused(gateway.infer(request_of([short(5), short(6)], wished)))
        assert why[0] in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        await nothing_left(gateway)
        stats = await gateway.stats(NAME)
        assert sum(stats.pipeline[2].dropped) == 3  # the first of the second request ends both its rows
