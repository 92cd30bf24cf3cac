"""Flows whose branches join: what a file may say, plans, and that simulations come to the same."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest

from arlo.catalog.flow import Flow
from arlo.catalog.flow_file import parse_flow
from arlo.errors import ConfigError
from arlo.planning.flows.live import FlowTraffic, StageCounts, VariantCounts
from arlo.simulator.flows import scenario_of
from arlo.simulator.report.result import Result
from arlo.simulator.run import run
from arlo.simulator.scenario.scenario import Listed
from benchmarks.papers.loki.planners import PLANNERS, PlannerName, plan_as
from tests.fakes.flow_evaluate import evaluate


def stage(name: str, *variants: tuple[float, float]) -> str:
    """A stage; its variants by accuracy and ms of a row."""
    each = ", ".join(
        f'{{name = "{name}{k}", accuracy = {accuracy}, max_batch = 4, latency = [[1, {ms}], [4, {2 * ms}]]}}'
        for k, (accuracy, ms) in enumerate(variants)
    )
    return f'[[flow.stage]]\nname = "{name}"\nvariant = [{each}]\n'


def edge(tail: str, head: str, more: str = "") -> str:
    return f'[[flow.edge]]\nfrom = "{tail}"\nto = "{head}"\n{more}\n'


FLOW = '[flow]\nname = "joins"\nslo_ms = 400\n'
FORK = edge("a", "b", "expand = {factor = 6}") + edge("a", "c", "expand = {factor = 2}")
JOIN = edge("b", "j", 'join = "a"') + edge("c", "j", 'join = "a"')
STAGES = stage("j", (0.95, 4), (0.9, 2)) + stage("a", (0.9, 5), (0.99, 8)) + stage("b", (0.9, 2)) + stage("c", (0.8, 2))


def read(text: str) -> Flow:
    return parse_flow(text, base=Path())


@pytest.fixture
def flow() -> Flow:
    return read(FLOW + STAGES + FORK + JOIN)


def test_a_row_for_all_that_comes(flow: Flow) -> None:
    names = [flow.stages[i].name for i in flow.order]
    assert names == ["a", "b", "c", "j"], "the head comes after all that leads to it"
    assert [flow.factor(i, 0) for i in range(4)] == pytest.approx([6, 2, 1 / 6, 0])
    assert [flow.of_tree(i) for i in range(4)] == [True, True, True, False]
    assert flow.multiplicity(flow.index["j"], (1, 0, 0)) == pytest.approx(1)
    # The second edge is the tree's where it stands first.
    other = read(FLOW + STAGES + FORK + edge("c", "j", 'join = "a"') + edge("b", "j", 'join = "a"'))
    assert [other.factor(i, 0) for i in (2, 3)] == pytest.approx([1 / 2, 0])
    assert [other.edges[i].tail for i in other.in_order] == ["a", "a", "c", "b"]


def test_joins_of_joins() -> None:
    """Pieces of pieces; and behind the outer join one more stage."""
    text = FLOW + "".join(stage(name, (0.9, 1)) for name in "abcdef")
    text += edge("a", "b", "expand = {factor = 4}") + edge("b", "c", "expand = {factor = 3}")
    text += edge("c", "d", 'join = "b"') + edge("d", "e", 'join = "a"') + edge("e", "f")
    flow = read(text)
    assert [flow.factor(i, 0) for i in range(5)] == pytest.approx([4, 3, 1 / 3, 1 / 4, 1])
    with pytest.raises(ConfigError, match="must be a stage that all rows of 'd' come of, not 'c'; it is one of: a, b"):
        read(text.replace(edge("d", "e", 'join = "a"'), edge("d", "e", 'join = "c"')))


@pytest.mark.parametrize(
    ("edges", "what"),
    [
        (JOIN.replace('join = "a"', "", 1), "several lead to a stage only where all of them join"),
        (JOIN.replace('join = "a"', 'join = "b"', 1), "several lead to a stage only where all of them join"),
        (JOIN.replace('"a"', '"b"'), "edge b>j: join must be a stage that all rows of 'b' come of, not 'b'"),
        (JOIN.replace('"a"', '"z"'), "edge b>j: join names no stage: 'z'"),
        (JOIN.replace('"a"', '"j"'), "edge b>j: join must be a stage that all rows of 'b' come of, not 'j'"),
        (JOIN + edge("c", "exit", "when = {share = 0.5}"), "only the tail of the first edge to 'j' may have other"),
        (edge("b", "j", 'join = "a"\nexpand = {factor = 2}'), "join takes all that comes"),
        (edge("b", "j", 'join = "a"\nwhen = {share = 0.5}'), "join takes all that comes"),
        (edge("b", "j", 'join = "a"\nanswer = {ensemble = "last"}'), "join takes all that comes"),
        (edge("b", "exit", 'join = "a"\nwhen = {share = 0.5}') + edge("b", "j"), "join takes all that comes"),
        (edge("b", "j", "join = 1"), "join must be"),
    ],
)
def test_what_is_wrong_is_named(edges: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        read(FLOW + STAGES + FORK + edges)


def test_edges_that_are_all_wrong_are_named_too() -> None:
    """Joins of joins that cannot be are no loop, whatever the order in the file."""
    stages = FLOW + "".join(stage(name, (0.9, 1)) for name in "abcde")
    for edges, what in (
        (
            edge("c", "d", 'join = "a"') + edge("a", "b", 'join = "c"') + edge("b", "c") + edge("d", "e"),
            "edge a>b: join",
        ),
        (
            edge("c", "d", 'join = "a"') + edge("a", "b") + edge("b", "c", 'join = "z"') + edge("d", "e"),
            "edge b>c: join",
        ),
        (
            edge("c", "d", 'join = "e"') + edge("a", "b") + edge("b", "c", 'join = "e"') + edge("a", "e"),
            "edge b>c: join",
        ),
    ):
        with pytest.raises(ConfigError, match=what):
            read(stages + edges)


def test_sixteen_stages_that_all_join_are_counted_at_once() -> None:
    names = [f"s{i}" for i in range(16)]
    text = FLOW + "".join(stage(name, (0.9, 1), (0.8, 1)) for name in names) + edge("s0", "s1", "expand = {factor = 3}")
    text += "".join(edge(tail, head, 'join = "s0"') for tail, head in itertools.pairwise(names[1:]))
    flow = read(text)
    assert [flow.factor(i, 1) for i in range(15)] == pytest.approx([3, 1 / 3, *[1] * 13])


def test_what_is_joined_has_one_answer() -> None:
    fork = FORK.replace("expand = {factor = 6}", 'answer = {ensemble = "last"}')
    with pytest.raises(ConfigError, match="what is joined cannot have an edge with an answer on its way"):
        read(FLOW + STAGES + fork + JOIN)


@pytest.mark.parametrize("planner", PLANNERS)
def test_plans_count_one_row_and_what_it_is_made_of(flow: Flow, planner: PlannerName) -> None:
    plan = plan_as(flow, planner, demand=50, workers=12)
    load = {name: sum(p.load for p in plan.pools if flow.stages[p.stage].name == name) for name in ("a", "b", "c", "j")}
    assert load == pytest.approx({"a": 50, "b": 300, "c": 100, "j": 50}, rel=1e-6)
    assert plan.accuracy == pytest.approx(0.99 * (0.9 + 0.8) / 2 * 0.95, abs=1e-9)
    assert evaluate(plan).accuracy == pytest.approx(plan.accuracy, abs=1e-9)
    assert not evaluate(plan).problems


def by_stage(result: Result) -> dict[str, int]:
    found: dict[str, int] = collections.Counter()
    for name, count in result.figures.more["visits"].items():
        found[name.split(":")[0]] += count
    return dict(found)


def test_simulations_come_to_the_same(flow: Flow) -> None:
    arrived = (np.arange(1000) * 2e7).astype(np.int64)
    result = run(scenario_of(flow, Listed(arrived), workers=12, bundle="all"))
    assert result.kept == 1
    assert result.figures.accuracy == pytest.approx(0.99 * (0.9 + 0.8) / 2 * 0.95, abs=1e-6)
    visits = by_stage(result)
    assert visits == {"a": 1000, "b": 6000, "c": 2000, "j": 1000}


def test_what_is_dropped_is_missing_and_nothing_waits_for_it(flow: Flow) -> None:
    """Twice the load that the workers carry: all roots end, and a row is made of what is left."""
    partial = dataclasses.replace(flow, on_drop="partial", slo_ms=60)
    arrived = (np.arange(3000) * 1e6).astype(np.int64)
    result = run(scenario_of(partial, Listed(arrived), workers=4, bundle="all"))
    assert result.requests == 3000
    assert result.kept < 0.7
    visits = by_stage(result)
    assert 0 < visits["j"] < visits["a"]
    assert visits["b"] < 6 * visits["a"]


def test_counts_of_what_joins_are_of_all_variants() -> None:
    """A row is made of those of several variants, and counted with the first."""
    text = FLOW + stage("a", (0.9, 5)) + stage("b", (0.9, 2), (0.8, 1)) + stage("j", (0.9, 2))
    flow = read(text + edge("a", "b", "expand = {factor = 6}") + edge("b", "j", 'join = "a"'))
    traffic = FlowTraffic(flow)
    for t in range(200):
        rows = 3000 * t
        first = VariantCounts(rows // 3, 0, (rows // 10,))  # ten of them a row, whichever variant they had
        other = VariantCounts(2 * rows // 3, 0, (0,))
        traffic.add(
            float(t),
            0.0,
            [
                StageCounts(rows // 10, (VariantCounts(rows // 10, 0, (rows,)),)),
                StageCounts(rows, (first, other)),
                StageCounts(rows // 10, (VariantCounts(rows // 10, rows // 10, ()),)),
            ],
        )
    factors = traffic.seen().factors
    assert factors[0, 0] == pytest.approx(10, rel=0.05)
    assert factors[1, 0] == pytest.approx(factors[1, 1], rel=1e-9)
    assert factors[1, 0] == pytest.approx(0.1, rel=0.1)
