"""A cascade on real workers that replay records: each row ends where the rules say, exactly once, whatever happens."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from typing import Any

import grpc
import numpy as np
import pytest
import scipy.stats
from tritonclient.grpc import service_pb2

from tests.fakes.odd_worker import OddWorker
from tests.fakes.processes import until
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.replayed import (
    BATCHES,
    EVERYWHERE,
    REASONS,
    RECORDS,
    STAGES,
    Expected,
    Plan,
    arrays_of,
    ask,
    cascade_deployment,
    expected,
    parameters_of,
    recorded,
    refused,
    request_of,
    said_otherwise,
    softmax,
)

pytestmark = pytest.mark.integration


def check(answer: Any, wanted: Expected) -> None:
    outputs = arrays_of(answer)
    assert outputs["cascade_stage"].tolist() == wanted.stage.tolist()
    assert [REASONS[reason] for reason in outputs["cascade_reason"]] == wanted.reason
    np.testing.assert_array_equal(outputs["logits"], wanted.logits)
    np.testing.assert_allclose(outputs["cascade_confidence"], wanted.confidence, rtol=1e-6)
    np.testing.assert_allclose(outputs["probabilities"], softmax(wanted.logits), rtol=1e-5)


@pytest.mark.sanitized
async def test_rows_end_where_the_rules_say(workers: Workers, start: Any) -> None:
    """Clients side by side, requests of 1 to 32 rows of mixed lengths: stage, reason, confidence and answer of each."""
    random = np.random.default_rng(1)
    async with start(cascade_deployment(workers, EVERYWHERE), dispatch=BATCHES) as gateway:

        async def client() -> int:
            rows = 0
            for _ in range(40):
                records = random.integers(0, RECORDS, random.integers(1, 33)).tolist()
                lengths = random.integers(2, 65, len(records)).tolist()
                check(await ask(gateway, records, lengths), expected(records))
                rows += len(records)
            return rows

        rows = sum(await asyncio.gather(*(client() for _ in range(4))))
        stats = await gateway.stats("kinds")
        assert stats.outcomes.on_time + stats.outcomes.late == rows
        visits = [stage.visits for stage in stats.stages]
        assert visits[0] == rows
        assert sum(sum(stage.exits) for stage in stats.stages) == rows
        assert [sum(stage.confidence) for stage in stats.stages] == visits
        assert list(stats.stages[0].escalations) == [0, visits[1], 0]
        assert (await gateway.stats("large")).stage
        assert sum((await gateway.stats("large")).arrivals_by_length) == visits[2]


async def test_clients_see_one_model(workers: Workers, start: Any) -> None:
    async with start(cascade_deployment(workers, EVERYWHERE), dispatch=BATCHES) as gateway:
        index = await gateway.stub.RepositoryIndex(service_pb2.RepositoryIndexRequest())
        assert [model.name for model in index.models] == ["kinds"]
        metadata = await gateway.stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="kinds"))
        assert [t.name for t in metadata.outputs if t.name.startswith("cascade_")] == [
            "cascade_stage",
            "cascade_confidence",
            "cascade_reason",
        ]
        request = request_of([1])
        request.model_name = "small"
        error = await refused(gateway.infer(request))
        assert (error.code(), error.details()) == (
            grpc.StatusCode.NOT_FOUND,
            "unknown model 'small'; this gateway serves 'kinds'",
        )
        assert (await gateway.stats("kinds")).outcomes.rejected == 1  # and no stage has heard of it
        assert (await gateway.stats("small")).outcomes.rejected == 0
        plain = await ask(gateway, [1, 2], outputs=())
        assert [tensor.name for tensor in plain.outputs] == ["logits"]
        said = parameters_of(await ask(gateway, list(range(20))))
        assert said["stage"] == 2
        assert 0 < said["escalated"] < 20
        assert said["degraded"] == said["pruned_tokens"] == 0
        assert said["stage_2_execute_us"] >= 4000
        assert said["execute_us"] >= said["stage_2_execute_us"]


async def test_clients_choose(workers: Workers, start: Any) -> None:
    plans = {"usual": Plan(), "eager": Plan(((1.0001, 1.0001),)), "lax": Plan(((0.0, 0.0),))}
    records = list(range(64))
    async with start(cascade_deployment(workers, EVERYWHERE, plans), dispatch=BATCHES) as gateway:
        check(await ask(gateway, records, cascade="eager"), expected(records, (2, 2)))
        check(await ask(gateway, records, cascade="lax"), expected(records, (0, 0)))
        check(await ask(gateway, records, cascade_min_confidence=0.5), expected(records, (0.5, 0.5)))
        for wish in ({"cascade": "first"}, {"cascade_max_stage": 0}):
            outputs = arrays_of(await ask(gateway, records, **wish))
            assert set(outputs["cascade_stage"]) == {0}
            assert {REASONS[r] for r in outputs["cascade_reason"]} == {"confident", "client_limit"}
        last = arrays_of(await ask(gateway, records, cascade="last"))
        np.testing.assert_array_equal(last["logits"], recorded("large")[0][records])
        for wish, said in (
            ({"cascade": "none"}, "'none' is none of 'usual', 'eager', 'lax', 'first', 'last'"),
            ({"cascade": 1}, "must be a string_param"),
            ({"cascade_min_confidence": 1.5}, "double_param of 0 to 1"),
            ({"cascade_min_confidence": float("nan")}, "double_param of 0 to 1"),
            ({"cascade_max_stage": 3}, "above the last stage, 2"),
            ({"cascade_max_stage": -1}, "from 0"),
            ({"cascade": "last", "cascade_max_stage": 1}, "'last' is stage 2, which is above 1"),
            ({"cascade_depth": 1}, "unknown parameter 'cascade_depth'"),
        ):
            error = await refused(ask(gateway, records, **wish))
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert said in str(error.details())


async def test_skips_and_ensembles(workers: Workers, start: Any) -> None:
    records = list(range(200))
    plans = {"skips": Plan(skip=((0.45,),)), "mixes": Plan(ensemble="calibrated")}
    async with start(cascade_deployment(workers, EVERYWHERE, plans), dispatch=BATCHES) as gateway:
        said = [recorded(stage)[0][records] for stage in STAGES]
        sure = [softmax(logits).max(-1) for logits in said]
        stages = arrays_of(await ask(gateway, records[:64], cascade="skips"))["cascade_stage"]
        wanted = [0 if a >= 0.7 else 2 if a < 0.45 or b < 0.6 else 1 for a, b in zip(sure[0], sure[1], strict=True)]
        assert stages.tolist() == wanted[:64]
        mixed = arrays_of(await ask(gateway, records[:64], cascade="mixes"))
        ends = expected(records[:64]).stage
        for i, end in enumerate(ends):
            mean = np.mean([softmax(said[s][i]) for s in range(end + 1)], axis=0)
            np.testing.assert_allclose(mixed["probabilities"][i], mean, rtol=1e-5)
            np.testing.assert_allclose(softmax(mixed["logits"][i]), mean, rtol=1e-4)


async def test_without_a_later_stage_rows_end_with_what_they_have(workers: Workers, start: Any) -> None:
    both = {"small": (0, 1), "middle": (), "large": ()}
    records = list(range(64))
    async with start(dispatch=BATCHES) as gateway:
        await gateway.call("Apply", deployment=cascade_deployment(workers, both))
        await gateway.stats_when(lambda stats: all(i.state == 2 for i in stats.instances), "active", model="small")
        outputs = arrays_of(await ask(gateway, records))
        reasons = Counter(REASONS[r] for r in outputs["cascade_reason"])
        assert set(reasons) == {"confident", "stage_absent"}
        assert set(outputs["cascade_stage"]) == {0}
        # A stage is passed over, too.
        deployment = cascade_deployment(workers, {"small": (0, 1), "middle": (), "large": (3,)}, version=2)
        await gateway.apply(deployment)
        outputs = arrays_of(await ask(gateway, records))
        assert set(outputs["cascade_stage"]) == {0, 2}
        # And the first one.
        await gateway.apply(cascade_deployment(workers, {"small": (), "middle": (2,), "large": (3,)}, version=3))
        assert set(arrays_of(await ask(gateway, records))["cascade_stage"]) == {1, 2}


@pytest.mark.sanitized
async def test_deadlines_end_rows_with_what_they_have(workers: Workers, start: Any) -> None:
    """One last-stage worker, and more rows than it can run in the time: all are answered, some degraded."""
    plans = {"all": Plan(((1.0001, 1.0001),))}
    where = {"small": (0, 1), "middle": (), "large": (3,)}
    # So long before its deadline, as neither this client nor the first stage are quick on a busy machine; what the last
    # stage has to do takes twice the second that is left to it, on any machine.
    deployment = cascade_deployment(workers, where, plans, answer_margin_ms=5000)
    async with start(deployment, dispatch=BATCHES) as gateway:
        requests = [request_of(list(range(i, i + 32))) for _ in range(3) for i in range(0, 640, 32)]
        answers = await asyncio.gather(*(gateway.infer(request, timeout=6) for request in requests))
        reasons = Counter(REASONS[r] for answer in answers for r in arrays_of(answer)["cascade_reason"])
        assert reasons["final"] > 0
        assert reasons["deadline"] > 0
        assert sum(reasons.values()) == 1920
        degraded = sum(parameters_of(answer)["degraded"] for answer in answers)
        assert degraded == reasons["deadline"] + reasons["stage_absent"]


async def test_the_price_follows_the_load(workers: Workers, start: Any) -> None:
    """More rows want the last stage than it can run: the rules let more of them out, until there is room again."""
    prices = [[t, t] for t in np.linspace(0.9, 0.0, 16)]
    deployment = cascade_deployment(
        workers, {"small": (0, 1), "middle": (), "large": (3,)}, {"usual": Plan(prices)}, slo_ms=100, auto_price=True
    )
    async with start(deployment, dispatch=BATCHES) as gateway:
        reasons: Counter[str] = Counter()

        async def client(seed: int) -> None:
            random = np.random.default_rng(seed)
            while asyncio.get_running_loop().time() < until:
                answer = await ask(gateway, random.integers(0, RECORDS, 16).tolist(), [60] * 16)
                reasons.update(REASONS[r] for r in arrays_of(answer)["cascade_reason"])

        until = asyncio.get_running_loop().time() + 2
        await asyncio.gather(*(client(seed) for seed in range(32)))
        assert reasons["load"] > 0
        assert reasons["final"] > 0
        await gateway.stats_when(lambda stats: stats.price == 0, "the price is 0 again", model="kinds")


@pytest.mark.parametrize("lost", ["middle", "large"])
async def test_a_killed_stage_fails_no_row(workers: Workers, start: Any, lost: str) -> None:
    """kill -9 of the only worker of a stage under load: every row is answered once, and the stage comes back."""
    async with start(cascade_deployment(workers, EVERYWHERE), dispatch=BATCHES) as gateway:
        stop = asyncio.Event()
        reasons: Counter[str] = Counter()
        rows = 0

        async def client(seed: int) -> None:
            nonlocal rows
            random = np.random.default_rng(seed)
            while not stop.is_set():
                records = random.integers(0, RECORDS, 8).tolist()
                outputs = arrays_of(await ask(gateway, records))
                rows += len(records)
                reasons.update(REASONS[r] for r in outputs["cascade_reason"])
                for record, stage, logits in zip(records, outputs["cascade_stage"], outputs["logits"], strict=True):
                    np.testing.assert_array_equal(logits, recorded(STAGES[stage])[0][record])

        clients = [asyncio.create_task(client(seed)) for seed in range(4)]
        await asyncio.sleep(0.5)
        os.kill(await workers.pid({"middle": 2, "large": 3}[lost]), signal.SIGKILL)
        await gateway.stats_when(lambda s: sum(i.state == 4 for i in s.instances) == 1, "ejected", model="kinds")
        await asyncio.sleep(0.5)
        await workers.whole()
        await gateway.stats_when(lambda s: all(i.state == 2 for i in s.instances), "back", model="kinds")
        before = reasons["final"]
        await until(lambda: reasons["final"] > before, "rows that end at the last stage again")
        stop.set()
        await asyncio.gather(*clients)
        if lost == "large":
            assert reasons["stage_absent"] > 0
        stats = await gateway.stats("kinds")
        assert stats.outcomes.on_time + stats.outcomes.late == rows
        assert sum(sum(stage.exits) for stage in stats.stages) == rows
        for at, stage in enumerate(stats.stages):
            came = rows if at == 0 else sum(other.escalations[at] for other in stats.stages)
            back = sum(stage.exits) + sum(stage.escalations) - stage.visits  # ended with its answer after they went on
            assert back >= 0
            assert back == 0 or lost != "large" or back <= sum(stage.exits[REASONS.index("deadline") :])
            assert stage.visits <= came
        assert stats.outcomes.failed == stats.outcomes.expired == stats.outcomes.rejected == 0


@pytest.mark.parametrize("stage", STAGES)
async def test_a_worker_that_answers_with_other_labels_has_failed(workers: Workers, start: Any, stage: str) -> None:
    """Beside a good worker of its stage it costs nothing. As the only one, a row ends with the answer that it has, or
    with an error that names the cause."""
    records = list(range(48))
    wanted = expected(records)
    async with OddWorker(said_otherwise(lambda logits: logits[:, :-1])) as odd:
        both = cascade_deployment(workers, {**EVERYWHERE, stage: (0, 1)})
        alone = cascade_deployment(workers, {**EVERYWHERE, stage: (0,)})
        for deployment in (both, alone):
            place = next(i for i in deployment.instances if i.id.endswith(f".{stage}"))
            place.id, place.worker, place.endpoint = f"odd.{stage}", "odd", odd.endpoint
        async with start(both, dispatch=BATCHES) as gateway:
            for _ in range(4):
                check(await ask(gateway, records), wanted)
            assert odd.requests
        async with start(alone, dispatch=BATCHES) as gateway:
            if stage == STAGES[0]:
                error = await refused(ask(gateway, records))
                assert error.code() == grpc.StatusCode.INTERNAL
                assert "output 'logits' has [3] for each row, not [4]" in str(error.details())
                return
            outputs = arrays_of(await ask(gateway, records))
            number = STAGES.index(stage)
            for record, want, got, reason in zip(
                records, wanted.stage, outputs["cascade_stage"], outputs["cascade_reason"], strict=True
            ):
                assert got == min(want, number - 1), record
                assert (REASONS[reason] in ("stage_failed", "stage_absent")) == (want >= number)
            assert REASONS.index("stage_failed") in outputs["cascade_reason"]


async def test_another_operating_point_moves_no_instance(workers: Workers, start: Any) -> None:
    plans = {"usual": Plan(), "lax": Plan(((0.0, 0.0),))}
    async with start(cascade_deployment(workers, EVERYWHERE, plans), dispatch=BATCHES) as gateway:
        records = list(range(64))
        check(await ask(gateway, records), expected(records))
        other = cascade_deployment(workers, EVERYWHERE, plans, version=2)
        other.cascades[0].point = "lax"
        reply = await gateway.apply(other)
        assert (list(reply.joining), list(reply.draining)) == ([], [])
        answer = await ask(gateway, records)
        check(answer, expected(records, (0, 0)))
        assert parameters_of(answer)["cascade_version"] == 2


async def test_a_stream_tells_what_there_is_so_far(workers: Workers, start: Any) -> None:
    """Each row that goes on: what the stage said, at once; then the answer."""
    async with start(cascade_deployment(workers, EVERYWHERE), dispatch=BATCHES) as gateway:
        requests = {}
        for at in range(0, 60, 3):
            request = request_of([at, at + 1, at + 2], [16, 40, 64])
            request.id = str(at)
            request.parameters["cascade_partial"].bool_param = True
            requests[request.id] = request
        error = await refused(gateway.infer(requests["0"]))
        assert (error.code(), error.details()) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "parameter cascade_partial: partial answers are sent on streams only",
        )
        stream = gateway.stub.ModelStreamInfer()
        for request in requests.values():
            await stream.write(request)
        await stream.done_writing()
        so_far: dict[int, list[int]] = {}
        answered = []
        async for message in stream:
            assert not message.error_message
            answer = message.infer_response
            first = int(answer.id)
            if answer.parameters["cascade_final"].bool_param:
                check(answer, expected(range(first, first + 3)))
                answered.append(first)
                continue
            assert first not in answered
            record = first + answer.parameters["cascade_row"].int64_param
            outputs = arrays_of(answer)
            stage = int(outputs["cascade_stage"][0])
            so_far.setdefault(record, []).append(stage)
            assert outputs["cascade_reason"].tolist() == [-1]
            np.testing.assert_array_equal(outputs["logits"][0], recorded(STAGES[stage])[0][record])
        assert sorted(answered) == list(range(0, 60, 3))
        ends = expected(range(60)).stage
        assert so_far == {record: list(range(ends[record])) for record in range(60) if ends[record] > 0}


def check_metrics(gateway: Any, stats: Any, wanted: Any) -> None:
    """What the metrics say of these rows; nothing is said of those that are not there."""
    samples = {
        (sample.name, *(value for name, value in sorted(sample.labels.items()) if name != "model")): sample.value
        for family in gateway.metrics().values()
        for sample in family.samples
        if sample.labels.get("model") == "kinds"
    }
    assert samples["arlo_cascade_expected_accuracy",] == 0.875
    for number, stage in enumerate(STAGES):
        beyond = sum(end > number for end in wanted.stage)
        for to, name in enumerate(STAGES):
            there = samples.get(("arlo_cascade_escalations_total", stage, name))
            assert there == (beyond if to == number + 1 and beyond else None)
        count = len([end for end in wanted.stage if end >= number])
        assert samples["arlo_cascade_confidence_count", stage] == count
        assert samples["arlo_cascade_confidence_bucket", "+Inf", stage] == count
        assert 0.25 * count < samples["arlo_cascade_confidence_sum", stage] <= count
        # The bins are those of the statistics.
        assert samples["arlo_cascade_confidence_bucket", "0.5", stage] == sum(stats.stages[number].confidence[:10])
    differ = stats.shadows.disagreed / stats.shadows.rows
    early = sum(reason == "confident" for reason in wanted.reason) / len(wanted.reason)
    assert samples["arlo_cascade_agreement",] == pytest.approx(1 - early * differ)
    interval = scipy.stats.binomtest(stats.shadows.disagreed, stats.shadows.rows).proportion_ci(0.95, "wilson")
    assert samples["arlo_cascade_agreement_low",] == pytest.approx(1 - early * interval.high, abs=1e-4)


async def test_shadow_rows_tell_when_early_answers_are_others(workers: Workers, start: Any) -> None:
    """Every confident early exit runs on the last stage too; clients see nothing of it."""
    shadows = {"shadow_share": 1.0, "shadow_max_busy": 1.0}
    records = list(range(300))
    wanted = expected(records)
    early = [i for i, reason in enumerate(wanted.reason) if reason == "confident"]
    last = recorded("large")[0].argmax(-1)
    differ = [wanted.logits[i].argmax() != last[i] for i in early]
    async with start(
        cascade_deployment(workers, EVERYWHERE, {"usual": Plan(accuracy=0.875)}, drift_epsilon=0.01, **shadows),
        dispatch=BATCHES,
    ) as gateway:
        for at in range(0, len(records), 4):  # one request after the other: so few are open that none is left out
            check(await ask(gateway, records[at : at + 4]), expected(records[at : at + 4]))

        def all_over(stats: Any) -> bool:
            said = stats.shadows
            return bool(said.rows + said.skipped + said.failed == len(early))

        stats = await gateway.stats_when(all_over, "shadows", model="kinds")
        assert stats.shadows.failed == 0
        assert stats.shadows.rows == sum(stage.shadow_rows for stage in stats.stages) > len(early) / 2
        if stats.shadows.skipped == 0:
            assert stats.shadows.disagreed == sum(differ)
            for number, stage in enumerate(stats.stages):
                assert stage.shadow_rows == sum(wanted.stage[i] == number for i in early)
        assert stats.shadows.alarm
        await asyncio.to_thread(check_metrics, gateway, stats, wanted)
        assert stats.outcomes.on_time + stats.outcomes.late == len(records)
        large = await gateway.stats("large")
        assert sum(large.arrivals_by_length) == stats.stages[2].visits
        assert large.outcomes.on_time == large.bulk == 0

        await ask(gateway, records[:32], cascade="usual")  # a client's wish: not what was searched
        assert (await gateway.stats("kinds")).shadows.rows == stats.shadows.rows

        calm = cascade_deployment(workers, EVERYWHERE, version=2, drift_epsilon=0.9, **shadows)
        await gateway.call("Apply", deployment=calm)  # other rules: the test begins anew
        assert not (await gateway.stats("kinds")).shadows.alarm
        await ask(gateway, records[:32])
        stats = await gateway.stats_when(lambda s: s.shadows.rows > 0, "shadows", model="kinds")
        assert not stats.shadows.alarm
        await ask(gateway, records[:64])  # leaves while some are at the last stage


@pytest.mark.sanitized
async def test_what_cannot_be_a_cascade_is_refused(workers: Workers, start: Any) -> None:
    async with start() as gateway:

        async def said(**changes: Any) -> str:
            deployment = cascade_deployment(workers, EVERYWHERE)
            cascade = deployment.cascades[0]
            for path, value in changes.items():
                target = cascade
                *parents, last = path.split("__")
                for part in parents:
                    target = target[int(part)] if part.isdigit() else getattr(target, part)
                if isinstance(value, list):
                    del getattr(target, last)[:]
                    getattr(target, last).extend(value)
                else:
                    setattr(target, last, value)
            error = await refused(gateway.call("Apply", deployment=deployment))
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
            return str(error.details())

        assert "point 'other' is not one of its points" in await said(point="other")
        assert "stage 'none' is no model" in await said(stages__0__model="none")
        assert "is a stage twice" in await said(stages__0__model="large")
        assert "no output 'scores' of FP32" in await said(logits="scores")
        assert "or that of another model" in await said(name="small")
        assert "calibrator.t" in await said(stages__1__calibrator__t=0.0)
        assert "rules[0][0].below" in await said(points__0__prices__0__rules__0__below__0__value=1.5)
        assert "score: 'best' is none of max, margin" in await said(stages__0__score="best")
        assert "slo_ms" in await said(slo_ms=0)
        assert "must be shares" in await said(shadow_share=1.5)
        assert "must be shares" in await said(drift_epsilon=float("nan"))
        assert "'logits' does not have a number for each of its 3 labels" in await said(labels=["a", "b", "c"])


@pytest.mark.sanitized
async def test_whatever_happens_rows_are_answered_once_and_rightly(workers: Workers, start: Any) -> None:
    """Deadlines of milliseconds, clients that leave, points and stages that come and go, a cascade that is gone for a
    moment: what is answered is what the stage that it names said, and the books add up."""
    plans = {
        "prunes": Plan([[t, t] for t in (0.9, 0.6, 0.3)], alpha=0.7, alpha_max=3.0),
        "usual": Plan(),
        "skips": Plan(skip=((0.45,),)),
    }
    placements = [
        EVERYWHERE,
        {"small": (0,), "middle": (), "large": (3,)},
        {"small": (), "middle": (1, 2), "large": ()},
        {"small": (0, 1), "middle": (2,), "large": (2, 3)},
    ]
    random = np.random.default_rng(17)
    stop = asyncio.Event()
    answered: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    asked = 0
    shadows = {"shadow_share": 0.5, "shadow_max_busy": 1.0, "drift_epsilon": 0.1}

    async with start(
        cascade_deployment(workers, EVERYWHERE, plans, auto_price=True, **shadows), dispatch=BATCHES
    ) as gateway:

        async def once() -> None:
            nonlocal asked
            records = random.integers(0, RECORDS, random.integers(1, 17)).tolist()
            lengths = random.integers(2, 65, len(records)).tolist()
            wishes = [{}, {"cascade": "skips"}, {"cascade": "last"}, {"cascade_max_stage": 1}][random.integers(4)]
            asked += len(records)
            call = gateway.infer(request_of(records, lengths, **wishes), timeout=float(random.choice([0.002, 0.05, 5])))
            try:
                if random.random() < 0.1:
                    async with asyncio.timeout(0.003):
                        answer = await call
                else:
                    answer = await call
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                refusals[error.code().name if isinstance(error, grpc.aio.AioRpcError) else "left"] += len(records)
                return
            outputs = arrays_of(answer)
            for record, stage, reason, logits in zip(
                records, outputs["cascade_stage"], outputs["cascade_reason"], outputs["logits"], strict=True
            ):
                np.testing.assert_array_equal(logits, recorded(STAGES[stage])[0][record])
                answered[REASONS[reason]] += 1

        async def client() -> None:
            while not stop.is_set():
                await once()

        clients = [asyncio.create_task(client()) for _ in range(8)]
        for version in range(2, 14):
            await asyncio.sleep(0.15)
            deployment = cascade_deployment(
                workers, placements[version % 4], plans, version=version, auto_price=version % 2 == 0, **shadows
            )
            deployment.cascades[0].point = list(plans)[version % 3]
            if version % 5 == 0:
                del deployment.cascades[:]
            await gateway.call("Apply", deployment=deployment)
        await gateway.call("Apply", deployment=cascade_deployment(workers, EVERYWHERE, plans, version=20, **shadows))
        await asyncio.sleep(0.3)
        stop.set()
        await asyncio.gather(*clients)
        for stage in STAGES:
            await gateway.stats_when(lambda s: s.in_flight == 0 and s.queued == 0, "rest", model=stage)
        stats = await gateway.stats("kinds")
        outcomes = stats.outcomes
        assert sum(sum(stage.exits) for stage in stats.stages) >= outcomes.on_time + outcomes.late
        ended = (outcomes.rejected, outcomes.expired, outcomes.cancelled, outcomes.failed)
        assert sum(stats.arrivals_by_length) <= outcomes.on_time + outcomes.late + sum(ended)  # some had no rows yet
        assert outcomes.on_time + outcomes.late >= sum(answered.values())  # a client may have left before its answer
        assert sum(answered.values()) > 100
        assert set(refusals) <= {
            "DEADLINE_EXCEEDED",
            "CANCELLED",
            "UNAVAILABLE",
            "NOT_FOUND",
            "RESOURCE_EXHAUSTED",
            "left",
        }
        assert sum(answered.values()) + sum(refusals.values()) == asked
        check(await ask(gateway, list(range(32)), cascade="usual"), expected(list(range(32))))
