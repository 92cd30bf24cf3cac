"""A request of many rows is refused on arrival by what Scheduler.forecast() says, or answered by its deadline."""

from __future__ import annotations

from random import Random

import pytest

from tests.property.world import MS, SECOND, Level, Row, World

FLEETS = [
    [Level(512, 1, 10 * MS)],
    [Level(512, 4, 10 * MS)],
    [Level(64, 2, 2 * MS), Level(256, 1, 6 * MS), Level(512, 2, 11 * MS)],
    [Level(128, 1, 1 * MS), Level(512, 1, 8 * MS)],
]
MARGIN = 0.95  # the gateway's rows wait for so much of their time (Call::waiting_deadline)
SLO = 150 * MS


def arrive(world: World, lengths: list[int], now: int, deadline: int) -> list[Row]:
    """As the gateway does. Empty: it is refused."""
    _, behind = world.scheduler.forecast(lengths, now)
    assert behind is not None
    if behind > MARGIN * (deadline - now):
        return []
    rows = [Row(now, length) for length in lengths]
    world.scheduler.hold()
    for row in rows:
        tag = len(world.rows)
        world.rows.append(row)
        _, handle, actions = world.scheduler.arrive(tag, row.length, now, deadline, bulk=True)
        assert handle is not None
        world.handles[tag] = handle
        world.take(actions, now)
    world.take(world.scheduler.release(now), now)
    return rows


@pytest.mark.parametrize("policy", ["late", "eft", "rs", "infaas"])
@pytest.mark.parametrize("fleet", range(len(FLEETS)))
@pytest.mark.parametrize("seed", range(4))
def test_refused_at_once_or_answered(policy: str, fleet: int, seed: int) -> None:
    """At three times of what the workers can do, of requests whose deadlines are near, and with nothing beside them."""
    levels, random = FLEETS[fleet], Random(seed)
    world = World(levels, policy, slo=SLO, max_queued=1 << 20)
    longest = levels[-1].max_length
    rps = sum(SECOND / level.took * level.workers for level in levels)
    now, refused = 0, 0
    answered: list[tuple[list[Row], int]] = []
    while now < 30 * SECOND:
        lengths = [random.randint(1, longest) for _ in range(random.choice([20, 200, 1000]))]
        now += round(random.expovariate(1 / (len(lengths) / rps / 3)) * SECOND)
        while world.ends and world.ends[0][0] <= now:
            world.finish()
        world.take(world.scheduler.expire(now), now)
        deadline = now + round(random.choice([0.5, 2, 10]) * SECOND)
        if rows := arrive(world, lengths, now, deadline):
            answered.append((rows, deadline))
        else:
            refused += 1
    while world.ends:
        world.finish()
    assert refused > 5
    assert len(answered) > 5
    for rows, deadline in answered:
        assert all(row.ended is not None and row.ended <= deadline and row.outcome != "expired" for row in rows)


@pytest.mark.parametrize("fleet", range(len(FLEETS)))
def test_idle_workers_need_about_what_is_predicted(fleet: int) -> None:
    random = Random(1)
    world = World(FLEETS[fleet], "late", slo=SLO, max_queued=1 << 20)
    lengths = [random.randint(1, FLEETS[fleet][-1].max_length) for _ in range(1000)]
    alone, behind = world.scheduler.forecast(lengths, 0)
    assert alone is not None
    assert behind is not None
    assert alone <= behind
    arrive(world, lengths, 0, 1000 * SECOND)
    world.run([])
    took = max(row.ended or 0 for row in world.rows)
    assert 0.8 * took <= behind <= 1.25 * took


def test_rows_that_no_instance_fits_have_no_forecast() -> None:
    world = World(FLEETS[0], "late")
    assert world.scheduler.forecast([5, 513], 0) == (None, None)
