"""What comes back is what the model computes, however the request is cut, padded, encoded and dispatched."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.fakes.gateway import Gateway, split_of
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.conftest import LENGTHS
from tests.integration.gateway.examples import (
    Example,
    check,
    example,
    one_row,
    request_of,
    rows_of,
)

pytestmark = pytest.mark.integration

OUTPUTS: tuple[tuple[str, ...], ...] = (
    (),
    ("embedding",),
    ("last_hidden_state",),
    ("embedding", "last_hidden_state"),
)


def mixed(count: int, *, seed: int, longest: int = LENGTHS[-1]) -> list[Example]:
    """Requests of every kind; each length from 1 to `longest` occurs when there are enough of them."""
    random = np.random.default_rng(seed)
    lengths = np.concatenate([np.arange(1, longest + 1), random.integers(1, longest + 1, 8 * count)]).tolist()
    examples = []
    for number in range(count):
        rows = 1 if random.random() < 0.7 else int(random.integers(2, 9))
        mask = random.random() < 0.8
        # Without a mask all tokens count, so all rows are of one length.
        chosen = [lengths.pop(0) for _ in range(rows)] if mask else [lengths.pop(0)] * rows
        wider = int(random.integers(0, 200)) if mask and random.random() < 0.5 else 0
        examples.append(
            Example(
                rows_of(chosen, seed=seed * 10_000 + number),
                max(chosen) + wider,
                mask=mask,
                typed=random.random() < 0.3,
                outputs=OUTPUTS[random.integers(len(OUTPUTS))],
                id=f"request {number}" if random.random() < 0.5 else "",
            )
        )
    return examples


async def answer_all(gateway: Gateway, examples: Sequence[Example], *, model: str = "emu", at_once: int = 32) -> None:
    """Send them, so many at a time, and check each answer."""
    waiting = iter(examples)

    async def work() -> None:
        for sent in waiting:
            check(await gateway.infer(request_of(sent, model=model), timeout=60), sent, model=model)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())


async def test_1000_mixed_requests(gateway: Gateway) -> None:
    examples = mixed(1000, seed=1)
    assert {length for sent in examples for length in sent.lengths} == set(range(1, LENGTHS[-1] + 1))
    before = await gateway.stats()
    await answer_all(gateway, examples)
    after = await gateway.stats()
    rows = sum(len(sent.rows) for sent in examples)
    assert after.outcomes.on_time + after.outcomes.late - before.outcomes.on_time - before.outcomes.late == rows
    assert after.outcomes.failed == before.outcomes.failed
    assert after.tokens - before.tokens == sum(sum(sent.lengths) for sent in examples)


async def test_dynamic_runtimes_are_not_padded(workers: Workers, start: Any) -> None:
    async with start(workers.deployment("dyn", [(0, 128), (1, 512)])) as gateway:
        await answer_all(gateway, mixed(100, seed=4), model="dyn")
        for length in (1, 100, 128, 129, 512):
            answer = await gateway.infer(one_row(length, model="dyn"))
            assert split_of(answer).computed_tokens == length


async def test_tritons_own_batching(workers: Workers, start: Any) -> None:
    """Rows padded to one level share a shape, so Triton puts them together; each still gets its own answer."""
    before = await workers.executions(0, "joined_len64")
    deployment = workers.deployment("joined", [(0, 64)], inflight_limit=32)
    async with start(deployment, dispatch={"batching": "one"}) as gateway:
        await answer_all(gateway, mixed(64, seed=5, longest=64), model="joined")
        rows = (await gateway.stats()).outcomes
    executions = await workers.executions(0, "joined_len64") - before
    assert executions < (rows.on_time + rows.late) / 2


async def test_the_largest_batch(gateway: Gateway) -> None:
    sent = example(*range(1, 65), outputs=("embedding",))
    check(await gateway.infer(request_of(sent)), sent)


async def test_the_id_comes_back(gateway: Gateway) -> None:
    sent = example(4, id="ünï-ço∂é 🙂")
    check(await gateway.infer(request_of(sent)), sent)


async def test_idle_every_row_goes_to_its_ideal_level(gateway: Gateway) -> None:
    for level, longest in enumerate(LENGTHS):
        shortest = 1 if level == 0 else LENGTHS[level - 1] + 1
        for length in (shortest, longest):
            split = split_of(await gateway.infer(one_row(length)))
            assert (split.level, split.computed_tokens, split.demoted) == (level, longest, 0), f"length {length}"
    split = split_of(await gateway.infer(request_of(example(1, 65, 129))))
    assert (split.level, split.computed_tokens, split.demoted) == (2, 64 + 128 + 256, 0)


async def test_waiting_counts_as_queue_time(workers: Workers, start: Any) -> None:
    async with start(workers.deployment("slow", [(0, 64)], inflight_limit=1)) as gateway:
        answers = await asyncio.gather(*(gateway.infer(one_row(5, model="slow")) for _ in range(3)))
    splits = sorted((split_of(answer) for answer in answers), key=lambda split: split.queue_us)
    for waited, split in enumerate(splits):
        assert split.queue_us >= waited * 240_000
        assert 250_000 <= split.execute_us <= split.total_us
    assert splits[0].queue_us < 200_000


async def test_demotion_under_load(workers: Workers, start: Any) -> None:
    """Short rows that can be on time overflow to the longer level; each level has one instance."""
    deployment = workers.deployment("slow", [(0, 64), (1, 128)], slo_ms=500, inflight_limit=1)
    assert [runtime.capacity for runtime in deployment.runtimes] == [2] * 2
    async with start(deployment, dispatch={"policy": "rs"}) as gateway:
        examples = [example(10, seed=seed) for seed in range(6)]
        answers = await asyncio.gather(*(gateway.infer(request_of(sent, model="slow")) for sent in examples))
        splits = [split_of(answer) for answer in answers]
        for answer, sent in zip(answers, examples, strict=True):
            check(answer, sent, model="slow")
        stats = await gateway.stats()
    demoted = [split for split in splits if split.demoted]
    assert {(split.level, split.computed_tokens) for split in splits if not split.demoted} == {(0, 64)}
    assert {(split.level, split.computed_tokens, split.demoted) for split in demoted} == {(1, 128, 1)}
    assert 1 <= len(demoted) <= 3
    assert [level.ideal for level in stats.levels] == [6, 0]
    assert [level.demoted for level in stats.levels] == [0, len(demoted)]
    assert stats.computed_tokens == sum(split.computed_tokens for split in splits)
    assert stats.tokens == 60
