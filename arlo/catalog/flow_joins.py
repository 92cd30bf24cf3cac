"""The edges of a flow that join (docs/flows.md): the allowed ones, and the number of rows that they make. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from arlo.errors import need

if TYPE_CHECKING:
    from arlo.catalog.flow import Flow


def check(flow: Flow) -> None:
    """Reject an impossible join with a ConfigError. The rules for flows without joins were checked before."""
    for edge in flow.edges:
        need(
            edge.join in {"", *flow.index},
            f"edge {edge.name}: join names no stage: {edge.join!r}; known: {', '.join(flow.index)}",
        )
    for stage in flow.order:  # by tail: the stages before it were checked
        for i in flow.out(stage):
            if flow.edges[i].join:
                _check(flow, i)


def _check(flow: Flow, number: int) -> None:
    edge = flow.edges[number]
    assert edge.head is not None
    where, tail = f"edge {edge.name}: join", flow.index[edge.tail]
    before = _comes_of(flow, tail)
    need(
        flow.index[edge.join] in before,
        f"{where} must be a stage that all rows of {edge.tail!r} come of, not {edge.join!r}; it is one of: "
        + (", ".join(flow.stages[i].name for i in before) or "none, for it is the entry"),
    )
    first = flow.of_tree(number)
    need(
        first or len(flow.out(tail)) == 1,
        f"edge {edge.name}: only the tail of the first edge to {edge.head!r} may have other edges",
    )
    between = [flow.parent_edge[i] for i in flow.line(tail)]
    inside = between[flow.line(tail).index(flow.index[edge.join]) + 1 :]
    for each in inside:
        need(
            each is None or not flow.edges[each].falls_back,
            f"edge {edge.name}: what is joined cannot have an edge with an answer on its way",
        )


def _comes_of(flow: Flow, stage: int) -> tuple[int, ...]:
    """The stages, from the entry on, where each row of this stage has one ancestor; a joined row has its fork's."""
    by = flow.parent_edge[stage]
    if by is None:
        return ()
    edge = flow.edges[by]
    before = flow.index[edge.join or edge.tail]
    return (*_comes_of(flow, before), before)


def factors(flow: Flow) -> dict[int, float]:
    """The rows of the head per row that comes by a joining edge, for each such edge: one for each row of the fork that
    has any. The first edge counts them all."""
    found: dict[int, float] = {}
    for stage in flow.order:
        name = flow.stages[stage].name
        come = {i: _parts(flow, i, found) for i, e in enumerate(flow.edges) if e.head == name and e.join}
        whole = min(math.fsum(come.values()), 1.0)
        for i, rows in come.items():
            found[i] = whole / rows if rows > 0 and flow.of_tree(i) else 0.0
    return found


def _parts(flow: Flow, edge: int, joined: Mapping[int, float]) -> float:
    """The rows that reach a joining edge from one row of the fork: means over the variants. `joined`: the factors of
    joining edges before it."""
    found = flow.edges[edge]
    line = flow.line(flow.index[found.tail])
    rows = 1.0
    for stage in line[line.index(flow.index[found.join]) + 1 :]:
        by = flow.parent_edge[stage]
        assert by is not None
        count = len(flow.stages[flow.index[flow.edges[by].tail]].variants)
        rows *= joined[by] if by in joined else math.fsum(flow.factor(by, k) for k in range(count)) / count
    tail = flow.stages[line[-1]].variants
    return rows * (1 - math.fsum(flow.exit_share(line[-1], k) for k in range(len(tail))) / len(tail))
