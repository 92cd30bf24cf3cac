"""One model at several token counts on a real worker: a burst gets fewer tokens at once, what follows it gets all."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton

from arlo.client import AsyncClient
from arlo.clock import monotonic_s
from tests.fakes.gateway import Gateway, gateway_of
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.piped import (
    ACCURACY,
    NAME,
    ROWS,
    SAID,
    TOKENS,
    arrays_of,
    by_tokens,
    request_of,
    short,
)
from tests.integration.gateway.replayed import RECORDS

pytestmark = pytest.mark.integration

LENGTH = 40  # of a row: 16 ms for ROWS of them with all tokens, 4 with the fewest
SOON_S = 0.1
VARIANT = {tokens: variant for variant, tokens in TOKENS.items()}
RULES = {"policy": "late", "batching": "deadline"}


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=(200, 1500))
async def served(
    workers: Workers, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[Gateway]:
    """For a short SLO and for a long one."""
    deployment = by_tokens(workers, slo_ms=request.param)
    async with gateway_of(tmp_path_factory.mktemp("gateway"), deployment, dispatch=RULES) as gateway:
        yield gateway


@dataclasses.dataclass
class Stream:
    """Requests at the rates of its phases, each checked when it is answered: when it was sent, and what it got."""

    gateway: Gateway
    sent: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    tasks: list[asyncio.Task[None]] = dataclasses.field(default_factory=list)

    async def _ask(self, seed: int) -> None:
        records = np.random.default_rng(seed).integers(0, RECORDS, ROWS).tolist()
        rows, sent = [short(record, LENGTH) for record in records], monotonic_s()
        answer = await self.gateway.infer(request_of(rows, ("logits", "row", "tokens")), timeout=20)
        outputs = arrays_of(answer)
        assert outputs["row"].tolist() == list(range(ROWS))
        wanted = [SAID[VARIANT[count]][record] for count, record in zip(outputs["tokens"], records, strict=True)]
        np.testing.assert_array_equal(outputs["logits"], wanted)
        assert answer.parameters["tokens"].int64_param == outputs["tokens"].min()
        self.sent.append((sent, int(outputs["tokens"].min())))

    async def phase(self, rate: float, seconds: float) -> float:
        """Requests, `rate` a second; when the first one was due."""
        begun = monotonic_s()
        for number in range(round(rate * seconds)):
            await asyncio.sleep(max(0.0, begun + number / rate - monotonic_s()))
            self.tasks.append(asyncio.create_task(self._ask(len(self.tasks))))
        return begun

    def mean(self, since: float, until: float) -> float:
        """Of the tokens that requests got that were sent then."""
        return float(np.mean([count for at, count in self.sent if since <= at < until]))

    def first(self, after: float, *, merged: bool) -> float:
        """Seconds from `after` until a request was sent that got fewer tokens, or all."""
        return min((at - after for at, count in self.sent if at >= after and (count < 0) == merged), default=9.0)


async def test_a_burst_gets_fewer_tokens(served: Gateway) -> None:
    """920 rows a second where all tokens carry 500, in the middle of 100: tokens fall and rise, and no row is lost.

    How soon they do is measured (docs/adapt.md); here it is only that the phases are long enough for it."""
    stream = Stream(served)
    await stream.phase(12, 0.8)
    burst = await stream.phase(115, 0.8)
    over = await stream.phase(30, 0.8)
    await asyncio.gather(*stream.tasks)
    assert len(stream.sent) == len(stream.tasks)
    assert stream.mean(0, burst) > -2
    assert stream.mean(burst + 2 * SOON_S, over) < -4
    assert stream.mean(over + 4 * SOON_S, over + 9) > -2
    fell, rose = stream.first(burst, merged=True), stream.first(over, merged=False)
    print(f"tokens fell after {1000 * fell:.0f} ms and rose after {1000 * rose:.0f} ms")
    assert fell < 4 * SOON_S
    assert rose < 4 * SOON_S


async def test_other_clients_see_it(served: Gateway) -> None:
    ids = np.array([short(7, LENGTH)], np.int64)
    inputs = [triton.InferInput(name, ids.shape, "INT64") for name in ("input_ids", "attention_mask")]
    for each, values in zip(inputs, (ids, np.ones_like(ids)), strict=True):
        each.set_data_from_numpy(values)
    async with triton.InferenceServerClient(served.grpc) as client:
        wanted = [triton.InferRequestedOutput(name) for name in ("logits", "tokens")]
        answer = await client.infer(NAME, inputs, outputs=wanted)
    assert answer.as_numpy("tokens").tolist() == [0]
    assert answer.get_response().parameters["tokens"].int64_param == 0
    async with AsyncClient(served.grpc, model=NAME) as client:
        result = await client.infer(ids[0], outputs=["logits", "tokens"])
    assert int(result["tokens"]) == 0
    np.testing.assert_array_equal(np.ravel(result["logits"]), SAID["large"][7])


async def test_what_is_asked_for_is_answered(served: Gateway) -> None:
    """Rows that are worth nothing, bulk and rows that ask for accuracy, while there is room: all tokens."""
    for parameters in ({"utility": 0.0}, {"arlo_class": "bulk"}, {"min_accuracy": ACCURACY["large"]}):
        answer = await served.infer(request_of([short(3, LENGTH)], ("tokens",), **parameters), timeout=20)
        assert arrays_of(answer)["tokens"].tolist() == [0]


async def test_counts_are_of_all_variants_or_of_none(workers: Workers, served: Gateway) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="have tokens, or none: 'middle' differs from the first"):
        await served.call("Apply", deployment=by_tokens(workers, version=2, tokens={"large": 0, "small": -16}))
    apart = by_tokens(workers, version=2)
    del apart.bundles[0].runtimes[:2]
    with pytest.raises(grpc.aio.AioRpcError, match="hold all of them or none"):
        await served.call("Apply", deployment=apart)


@pytest.mark.parametrize(("rule", "tokens"), [("price", -16), ("printed", 0)])
async def test_more_tokens_must_be_worth_what_they_draw(
    workers: Workers, tmp_path: Path, rule: str, tokens: int
) -> None:
    """A row that nobody hurries: 15 points are worth less than 2 ms at a thousand a second; not to rules as printed."""
    deployment = by_tokens(workers, rule=rule)
    for variant in deployment.pipelines[0].stages[0].variants:
        variant.energy = 1000.0
    async with gateway_of(tmp_path, deployment, dispatch=RULES) as gateway:
        answer = await gateway.infer(request_of([short(3, LENGTH)], ("tokens",)), timeout=20)
        assert arrays_of(answer)["tokens"].tolist() == [tokens]


@pytest.mark.parametrize("rule", ["printed", "price"])
async def test_rules_change_under_load(workers: Workers, tmp_path: Path, rule: str) -> None:
    """Each rule serves, after another one and while rows wait: none is lost, and each says truly what it got."""
    before = "price" if rule != "price" else "printed"
    async with gateway_of(tmp_path, by_tokens(workers, rule=before), dispatch=RULES) as gateway:
        stream = Stream(gateway)
        await stream.phase(115, 0.3)
        await gateway.call("Apply", deployment=by_tokens(workers, rule=rule, version=2))
        await stream.phase(60, 0.5)
        await asyncio.gather(*stream.tasks)
        assert len(stream.sent) == len(stream.tasks)
        stats = await gateway.stats(NAME)
        assert sum(one.in_time + one.late for one in stats.worth) == ROWS * len(stream.tasks)
        assert stats.pipeline[0].answered == ROWS * len(stream.tasks)


async def test_what_is_worth_least_is_left_out(workers: Workers, tmp_path: Path) -> None:
    """Twice what the fewest tokens carry, nine of ten rows worth a tenth of the others: each request ends once, the
    dear ones far more often with an answer, and those that are given up are told why."""
    deployment = by_tokens(workers, default_timeout_ms=250)
    said: dict[float, list[str]] = {1.0: [], 0.1: []}

    async def ask(gateway: Gateway, utility: float, seed: int) -> None:
        records = np.random.default_rng(seed).integers(0, RECORDS, ROWS).tolist()
        try:
            await gateway.infer(
                request_of([short(record, LENGTH) for record in records], utility=utility), timeout=None
            )
            said[utility].append("")
        except grpc.aio.AioRpcError as error:
            said[utility].append(error.details() or "?")

    async with gateway_of(tmp_path, deployment, dispatch=RULES) as gateway:
        tasks, begun = [], monotonic_s()
        for number in range(600):
            await asyncio.sleep(max(0.0, begun + number / 500 - monotonic_s()))
            tasks.append(asyncio.create_task(ask(gateway, 1.0 if number % 10 == 0 else 0.1, number)))
        await asyncio.gather(*tasks)
        stats = await gateway.stats(NAME)
    assert len(said[1.0]) + len(said[0.1]) == 600
    answered = {utility: np.mean([not each for each in all_of]) for utility, all_of in said.items()}
    assert answered[1.0] > answered[0.1] + 0.2
    assert answered[0.1] < 0.8
    assert any("worth more" in each for each in said[0.1])
    worth = stats.worth[0]
    assert worth.in_time + worth.late + worth.evicted + worth.failed == 600 * ROWS
    assert worth.evicted > 0
    assert 0 < worth.earned < worth.offered
