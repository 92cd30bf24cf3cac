"""Second answers of a pipeline on real workers that replay records: mixed with the first, asked for when it pays, and
where they do not come, the first one counts. Words left out on the way."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from arlo.cascade.prune import Vocabulary, prune
from arlo.cascade.spec import Prune
from tests.fakes.gateway import SANITIZED, Gateway
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.piped import (
    BATCHES,
    NAME,
    SAID,
    SEP,
    arrays_of,
    pipeline_deployment,
    refused,
    request_of,
    short,
)
from tests.integration.gateway.replayed import CLS, RECORDS, recorded, softmax

pytestmark = pytest.mark.integration

STAGES = {"first": ("small",), "second": ("large",)}
EVERYWHERE = {"small": (0, 1), "large": (2, 3)}
OUTPUTS = ("first.logits", "first.row", "second.logits", "second.row", "route", "accuracy_expected", "reason")
ACCURACY = [0.7, 0.9]  # of the two ways


def edge(**fields: Any) -> dict[str, Any]:
    return {"from": 0, "to": 1, "factor": [0.5], "falls_back": True, **fields}


def follows(rule: str, at: Sequence[float] = (0.0, 1.0)) -> dict[str, Any]:
    """A guard that follows the load: gains are what a second model that is right at .9 adds to a calibrated
    probability."""
    return {"rule": rule, "gain": [{"score": list(at), "gain": [0.9, -0.1]}]}


def below(*thresholds: float, lengths: Sequence[int] = (1,)) -> dict[str, Any]:
    return {"below": [{"length": n, "value": t} for n, t in zip(lengths, thresholds, strict=True)]}


async def nothing_left(gateway: Gateway) -> None:
    for model in ("small", "large"):
        await gateway.stats_when(lambda s: s.queued == s.in_flight == 0, "nothing left", model=model)


def second(record: int) -> NDArray[np.float32]:
    return SAID["large"][record]


def check(answer: Any, records: Sequence[int], *, goes: Sequence[bool], weights: Sequence[float] = ()) -> None:
    """Every row is answered once, by the stage that it is to end at, with the answer that it is to have."""
    outputs = arrays_of(answer)
    at = {(s, row): i for s in ("first", "second") for i, row in enumerate(outputs[f"{s}.row"].tolist())}
    assert sorted(at) == sorted(("second" if go else "first", row) for row, go in enumerate(goes))
    for row, (record, go) in enumerate(zip(records, map(bool, goes), strict=True)):
        assert outputs["route"][row].endswith("large" if go else "small")
        np.testing.assert_allclose(outputs["accuracy_expected"][row], ACCURACY[go], rtol=1e-6)
        if not go:
            np.testing.assert_array_equal(outputs["first.logits"][at["first", row]], SAID["small"][record])
            continue
        got = outputs["second.logits"][at["second", row]]
        if not weights:
            np.testing.assert_array_equal(got, second(record))
            continue
        q = weights[0] * softmax(SAID["small"][record] / 1.5) + weights[1] * softmax(second(record))
        np.testing.assert_allclose(got, np.log(q / sum(weights)), rtol=2e-5)


def confidence(record: int, t: float = 1.5) -> float:
    return float(softmax(SAID["small"][record] / t).max())


async def test_answers_are_mixed_and_calibrated(workers: Workers, start: Any) -> None:
    """The guard judges at the stage's temperature, and the last answer is the weighted mean of both."""
    weights = [1.0, 3.0]
    deployment = pipeline_deployment(
        workers, EVERYWHERE, STAGES, [edge(guard=below(0.7), weights=weights)], accuracy=ACCURACY
    )
    calibrator = deployment.pipelines[0].stages[0].variants[0].calibrator
    calibrator.kind, calibrator.t = "temperature", 1.5
    records = list(range(60))
    async with start(deployment, dispatch=BATCHES) as gateway:
        answer = await gateway.infer(request_of([short(r) for r in records], OUTPUTS), timeout=20)
        goes = [confidence(r) < 0.7 for r in records]
        assert {*goes} == {True, False}
        assert any(goes[r] != (confidence(r, 1.0) < 0.7) for r in records), "the temperature tells"
        check(answer, records, goes=goes, weights=weights)
        assert answer.parameters["degraded"].int64_param == 0
        assert arrays_of(answer)["reason"].tolist() == [0] * 60

        deployment.version = 2
        guard = deployment.pipelines[0].edges[0].guard
        guard.score, guard.below[0].value = "margin", 0.4
        await gateway.apply(deployment)
        answer = await gateway.infer(request_of([short(r) for r in records], OUTPUTS), timeout=20)
        q = np.sort(softmax(SAID["small"][records] / 1.5), axis=1)
        check(answer, records, goes=list(q[:, -1] - q[:, -2] < 0.4), weights=weights)


async def test_rules_of_cascades_are_rules_of_edges(workers: Workers, start: Any) -> None:
    """Thresholds by length, and the soft rule: by chance, the less sure the more likely."""
    records, lengths = list(range(60)), [16, 40] * 30
    rows = [short(record, length) for record, length in zip(records, lengths, strict=True)]
    guard = below(0.5, 0.8, lengths=(20, 64))
    deployment = pipeline_deployment(workers, EVERYWHERE, STAGES, [edge(guard=guard)], accuracy=ACCURACY)
    async with start(deployment, dispatch=BATCHES) as gateway:
        answer = await gateway.infer(request_of(rows, OUTPUTS), timeout=20)
        goes = [confidence(r, 1.0) < (0.5 if n == 16 else 0.8) for r, n in zip(records, lengths, strict=True)]
        assert {*goes[::2]} == {*goes[1::2]} == {True, False}
        check(answer, records, goes=goes)

        deployment.version = 2
        guard = deployment.pipelines[0].edges[0].guard
        del guard.below[:]
        guard.rule, guard.c, guard.k = "soft", 0.4, 10.0
        await gateway.apply(deployment)
        went: list[tuple[float, bool]] = []
        for at in range(0, 600, 60):
            records = list(range(at, at + 60))
            outputs = arrays_of(await gateway.infer(request_of([short(r) for r in records], OUTPUTS), timeout=20))
            on = set(outputs["second.row"].tolist())
            went += [(confidence(r, 1.0), row in on) for row, r in enumerate(records)]
        assert all(on for sure, on in went if sure <= 0.4)
        chances = [1 / (1 + np.exp(10 * ((sure - 0.4) / 0.6 - 0.5))) for sure, _ in went if sure > 0.4]
        spread = sum(p * (1 - p) for p in chances) ** 0.5
        assert abs(sum(on for sure, on in went if sure > 0.4) - sum(chances)) < 5 * spread


async def test_rows_go_on_if_it_pays(workers: Workers, start: Any) -> None:
    """At no price all that gain go on, at a high one none, and between them by the plan's price."""
    deployment = pipeline_deployment(workers, EVERYWHERE, STAGES, [edge(guard=follows("planned"))], accuracy=ACCURACY)
    records = list(range(40))
    async with start(deployment, dispatch=BATCHES) as gateway:
        for version, price in enumerate((0.0, 100.0, 200.0, 1e6), start=2):
            deployment.version, deployment.pipelines[0].plan.price = version, price
            await gateway.apply(deployment)
            answer = await gateway.infer(request_of([short(r) for r in records], OUTPUTS), timeout=20)
            # 1 ms of a worker; the core holds prices to .005 and 4 roots' worth, of .75 ms each.
            cost = min(max(price, 0.005 / 0.00075), 4 / 0.00075) * 0.001
            check(answer, records, goes=[0.9 - confidence(r, 1.0) > cost for r in records])
        assert cost > 1, "at the last price nothing pays"

        deployment.version = 10
        deployment.pipelines[0].edges.add(**{"from": 0, "to": -1, "guard": follows("planned")})
        deployment.pipelines[0].edges[0].ClearField("guard")
        deployment.pipelines[0].plan.price = 100.0
        await gateway.apply(deployment)
        answer = await gateway.infer(request_of([short(r) for r in records], OUTPUTS), timeout=20)
        check(answer, records, goes=[0.9 - confidence(r, 1.0) > 0.1 for r in records])


async def test_the_more_waits_the_fewer_go_on(workers: Workers, start: Any) -> None:
    """By the price in force: one at a time most go on; under a burst of thousands few do, and all are answered."""
    deployment = pipeline_deployment(
        workers,
        {"small": (0, 1), "large": (2,)},
        STAGES,
        [edge(guard=follows("price"))],
        accuracy=ACCURACY,
        slo_ms=400,
        plan={"price": 10.0},
    )
    async with start(deployment, dispatch=BATCHES) as gateway:

        async def share(records: Sequence[int]) -> tuple[int, int]:
            answer = await gateway.infer(request_of([short(r) for r in records], OUTPUTS), timeout=20)
            outputs = arrays_of(answer)
            assert len(outputs["first.row"]) + len(outputs["second.row"]) == len(records)
            return len(outputs["second.row"]), len(records)

        calm = [await share([record]) for record in range(40)]
        random = np.random.default_rng(1)
        burst = await asyncio.gather(*(share(random.integers(0, RECORDS, 40).tolist()) for _ in range(60)))
        of = [sum(on for on, _ in each) / sum(all_ for _, all_ in each) for each in (calm, burst)]
        assert of[0] > 0.7
        assert of[1] < 0.5 * of[0]
        await nothing_left(gateway)
        stats = await gateway.stats(NAME)
        assert stats.outcomes.failed == stats.outcomes.expired == stats.outcomes.rejected == 0


async def test_the_first_answer_counts_where_no_second_comes(workers: Workers, start: Any) -> None:
    """The second stage has no workers, then has them: no row fails, and the client is told; who wants more than
    the first answer is refused."""
    bare = pipeline_deployment(workers, {"small": (0, 1), "large": ()}, STAGES, [edge()], accuracy=ACCURACY)
    records = list(range(10))
    async with start(bare, dispatch=BATCHES) as gateway:
        answer = await gateway.infer(request_of([short(r) for r in records], OUTPUTS), timeout=20)
        check(answer, records, goes=[False] * 10)
        assert answer.parameters["degraded"].int64_param == 10
        assert set(arrays_of(answer)["reason"].tolist()) == {3}  # overload: no variant is there
        why = await refused(gateway.infer(request_of([short(1)], OUTPUTS, min_accuracy=0.8), timeout=5))
        assert why[0] in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

        told = pipeline_deployment(
            workers, {"small": (0, 1), "large": ()}, STAGES, [edge()], accuracy=ACCURACY, version=2
        )
        told.pipelines[0].stages[0].told = True
        await gateway.apply(told)
        answer = await gateway.infer(request_of([short(r) for r in records], OUTPUTS), timeout=20)
        check(answer, records, goes=[False] * 10)  # and none is said twice

        whole = pipeline_deployment(workers, EVERYWHERE, STAGES, [edge()], accuracy=ACCURACY, version=3)
        await gateway.apply(whole)
        answer = await gateway.infer(request_of([short(r) for r in records], OUTPUTS, min_accuracy=0.8), timeout=20)
        check(answer, records, goes=[True] * 10)
        await nothing_left(gateway)


@pytest.mark.skipif(SANITIZED, reason="with stand-ins there is no worker to kill")
async def test_a_killed_worker_of_the_second_stage(workers: Workers, start: Any) -> None:
    """kill -9 of the only one under load: every row is answered, by the first stage meanwhile."""
    deployment = pipeline_deployment(
        workers,
        {"small": (0, 1), "large": (2,)},
        STAGES,
        [edge(weights=[1.0, 1.0])],
        accuracy=ACCURACY,
        slo_ms=2000,
    )
    async with start(deployment, dispatch=BATCHES) as gateway:
        seen = {"first": 0, "second": 0}
        stop = asyncio.Event()

        async def client(seed: int) -> int:
            random, rows = np.random.default_rng(seed), 0
            while not stop.is_set():
                records = random.integers(0, RECORDS, 8).tolist()
                answer = await gateway.infer(request_of([short(r) for r in records], OUTPUTS), timeout=20)
                outputs = arrays_of(answer)
                both = outputs["first.row"].tolist() + outputs["second.row"].tolist()
                assert sorted(both) == list(range(8))
                for name in seen:
                    seen[name] += len(outputs[f"{name}.row"])
                rows += 8
            return rows

        async def more(name: str) -> None:
            wanted = seen[name] + 40
            while seen[name] < wanted and not any(task.done() for task in tasks):
                await asyncio.sleep(0.01)

        tasks = [asyncio.create_task(client(seed)) for seed in range(3)]

        async def killed() -> None:
            """Again when it is back before the rows' time is over: then they wait for it."""
            dead = None
            while not fallen_back.done():
                pid = (await workers.pool.workers())[2].pid
                if pid not in (None, dead):
                    os.kill(pid, signal.SIGKILL)
                    dead = pid
                await asyncio.sleep(0.01)

        await more("second")
        fallen_back = asyncio.create_task(more("first"))
        await killed()
        await workers.whole()
        await gateway.stats_when(lambda s: all(i.state == 2 for i in s.instances), "back", model=NAME)
        await more("second")
        stop.set()
        rows = sum(await asyncio.gather(*tasks))
        assert sum(seen.values()) == rows
        stats = await gateway.stats(NAME)
        assert stats.outcomes.on_time + stats.outcomes.late == rows
        assert stats.outcomes.failed == stats.outcomes.expired == stats.outcomes.rejected == 0
        await nothing_left(gateway)


async def test_words_are_left_out_on_the_way(workers: Workers, start: Any) -> None:
    """As in cascades: by the importance that the first stage tells, to a shorter runtime of the second one."""
    pruned = {"from": 0, "to": 1, "factor": [1.0]}
    deployment = pipeline_deployment(workers, EVERYWHERE, STAGES, [pruned], accuracy=ACCURACY)
    rule = deployment.pipelines[0].edges[0].prune
    rule.output, rule.alpha, rule.to_level, rule.min_words = "importance", 0.8, True, 4
    rule.levels.extend((32, 64))
    rule.vocabulary.special.extend((CLS, SEP))
    lengths = [16, 40, 60, 33]
    rows = [short(record, length) for record, length in enumerate(lengths)]
    async with start(deployment, dispatch=BATCHES) as gateway:
        answer = await gateway.infer(request_of(rows, ("logits", "row")), timeout=20)
        outputs = arrays_of(answer)
        assert outputs["row"].tolist() == [0, 1, 2, 3]
        np.testing.assert_array_equal(outputs["logits"], SAID["large"][:4])
        stats = await gateway.stats("large")
        kept = []
        for record, row in enumerate(rows):
            importance = recorded("small")[1][record][: len(row)]
            words = Vocabulary(special=(CLS, SEP))
            found = prune(
                Prune(alpha=0.8, to_level=True, min_words=4), words, np.asarray(row), importance, levels=(32, 64)
            )
            kept.append(len(row) if found is None else len(found))
        assert kept[0] == 16
        assert min(kept[1], kept[3]) <= 32, "some became short enough"
        by_length = stats.arrivals_by_length
        assert sum(n * count for n, count in enumerate(by_length)) == sum(kept)


async def test_what_makes_no_sense(workers: Workers, start: Any) -> None:
    async with start() as gateway:
        for change, what in (
            ({"guard": follows("sometimes")}, "none of hard, soft, price, planned"),
            ({"guard": {"rule": "price"}}, "a gain for each variant"),
            ({"guard": follows("price", (0.5, 0.2))}, "ascending scores"),
            ({"guard": {**follows("price"), "at_least": 0.5}}, "of the rule hard"),
            ({"guard": {"rule": "soft", "c": 1.5, "k": 10.0}}, "guard.c: must be in"),
            ({"guard": {"score": "luck"}}, "none of max, margin, entropy"),
            ({"guard": {"score": "output"}}, "those of cascades"),
            ({"weights": [1.0]}, "two numbers"),
            ({"weights": [0.0, 0.0]}, "two numbers"),
            ({"chunks": {"window": 8, "stride": 2}}, "as one row"),
            ({"prune": {"output": "importance"}}, "alpha must be above 0"),
            ({"prune": {"output": "logits", "alpha": 1.0}}, "FP32 for each token"),
        ):
            one = pipeline_deployment(workers, EVERYWHERE, STAGES, [edge(**change)], accuracy=ACCURACY)
            why = await refused(gateway.call("Apply", deployment=one))
            assert why[0] == grpc.StatusCode.INVALID_ARGUMENT
            assert what in why[1], change


async def test_what_cannot_join(workers: Workers, start: Any) -> None:
    """Token ids are no rows to be joined, whatever an edge says beside; and what is joined is of a stage before."""
    stages = {"first": ("small",), "second": ("middle",), "third": ("large",)}
    as_it_is = "rows that join go on as they are"
    async with start() as gateway:
        for join, change, what in (
            (0, {}, "takes token ids, and has no tokenizer for text"),
            (0, {"prune": {"output": "importance", "alpha": 1.0}}, as_it_is),
            (0, {"expand": {"kind": "spans", "output": "importance", "max": 9}}, as_it_is),
            (0, {"expand": {"kind": "top_k", "output": "logits", "max": 9}}, as_it_is),
            (0, {"chunks": {"window": 8, "stride": 2}}, as_it_is),
            (0, {"falls_back": True}, "falls_back: not on the way of rows that join"),
            (1, {}, "join: must be a stage before the edge's tail"),
            (3, {}, "joins rows of a stage that is not there"),
            (2**32 - 1, {}, "joins rows of a stage that is not there"),
            (0, {"to": -1, "factor": []}, "or at an exit"),
        ):
            edges = [
                {"from": 0, "to": 1, "factor": [2.0]},
                {"from": 1, "to": 2, "factor": [0.5], "join": join, **change},
            ]
            one = pipeline_deployment(workers, dict.fromkeys(("small", "middle", "large"), (0,)), stages, edges)
            why = await refused(gateway.call("Apply", deployment=one))
            assert why[0] == grpc.StatusCode.INVALID_ARGUMENT
            assert what in why[1], change
