"""Reports oddities of a flow before it is served: paths that are too long, variants that are never worth it,
profiles that do not rise."""

from __future__ import annotations

import dataclasses
import itertools

from arlo.catalog.flow import Flow, FlowVariant
from arlo.planning.flows import build
from arlo.planning.flows.steps import slo_below_latency


@dataclasses.dataclass(frozen=True, slots=True)
class PathLatency:
    """Latency from the entry to a leaf, at the smallest batches."""

    name: str  # stages
    least_ms: float  # of the quickest variants
    most_accurate_ms: float  # of the most accurate ones
    limit_ms: float
    feasible: int  # choices of variants that keep the limit at their smallest batch
    choices: int


@dataclasses.dataclass(frozen=True, slots=True)
class Findings:
    """The result of `check`."""

    problems: tuple[str, ...]  # reasons why nothing can be served
    warnings: tuple[str, ...]
    paths: tuple[PathLatency, ...]


def check(flow: Flow) -> Findings:
    """Check a loaded flow."""
    asked = build.problem(flow, demand=1.0, workers=1, utilisation=flow.known_utilisation)
    late = slo_below_latency(asked)
    warnings = [
        text for stage in range(len(flow.stages)) for text in (*_dominated(flow, stage), *_profiles(flow, stage))
    ]
    paths = tuple(_path(flow, stage) for stage in flow.order if not flow.children(stage))
    return Findings(tuple([late] if late else []), tuple(warnings), paths)


def _least_ms(flow: Flow, stage: int, variant: int) -> float:
    spec = flow.stages[stage].variants[variant]
    used = [i for i, share in enumerate(flow.stages[stage].bins(variant)) if share > 0]
    return max(spec.latency_ns(min(spec.batch_caps), i) for i in used) / 1e6


def _path(flow: Flow, leaf: int) -> PathLatency:
    line = flow.line(leaf)
    each = [[_least_ms(flow, stage, k) for k in range(len(flow.stages[stage].variants))] for stage in line]
    best = [max(range(len(flow.stages[s].variants)), key=lambda k, s=s: flow.stages[s].accuracy(k)) for s in line]  # type: ignore[misc]
    limit = (flow.slo_ms - flow.hops_ms(leaf)) / 2
    sums = [sum(choice) for choice in itertools.islice(itertools.product(*each), 100_000)]
    return PathLatency(
        name=">".join(flow.stages[stage].name for stage in line),
        least_ms=sum(map(min, each)),
        most_accurate_ms=sum(times[k] for times, k in zip(each, best, strict=True)),
        limit_ms=limit,
        feasible=sum(1 for spent in sums if spent <= limit),
        choices=len(sums),
    )


def _dominated(flow: Flow, stage: int) -> list[str]:
    """Variants that another one beats in everything: accuracy, time of a row, rows sent on, power."""
    spec = flow.stages[stage]
    found = []
    for k, variant in enumerate(spec.variants):
        for j, other in enumerate(spec.variants):
            if j == k or not _beats(flow, stage, j, k):
                continue
            if _beats(flow, stage, k, j) and k < j:
                continue  # equal: the first one stays
            found.append(
                f"stage {spec.name!r}: {variant.name!r} is dominated by {other.name!r}, which is no less accurate and"
                " no slower: leave it out"
            )
            break
    return found


def _beats(flow: Flow, stage: int, j: int, k: int) -> bool:
    spec = flow.stages[stage]
    one, other = spec.variants[j], spec.variants[k]
    if spec.accuracy(j) < spec.accuracy(k) or one.max_lengths[-1] < other.max_lengths[-1] or one.watts > other.watts:
        return False
    for edge in flow.out(stage):
        if flow.edges[edge].head is not None and flow.factor(edge, j) > flow.factor(edge, k):
            return False
    rows = sorted(set(one.table.batches()) | set(other.table.batches()))
    return all(_at(one, length, batch) <= _at(other, length, batch) for length in other.max_lengths for batch in rows)


def _at(variant: FlowVariant, length: int, rows: int) -> int:
    fits = next((i for i, end in enumerate(variant.max_lengths) if length <= end), len(variant.max_lengths) - 1)
    return variant.latency_ns(rows, fits)


def _profiles(flow: Flow, stage: int) -> list[str]:
    found = []
    for variant in flow.stages[stage].variants:
        where = f"stage {flow.stages[stage].name!r}, variant {variant.name!r}:"
        for length, batches in itertools.groupby(sorted(variant.table.points), key=lambda point: point[0]):
            for (_, a, t), (_, b, u) in itertools.pairwise(batches):
                if u < t:
                    found.append(f"{where} {b} rows of {length} tokens take less time than {a}: measure again")
                elif u / b > t / a * 1.02:
                    found.append(
                        f"{where} {b} rows of {length} tokens take longer for each row than {a}: batches up to"
                        f" {a} are enough"
                    )
        for rows in variant.table.batches():
            times = [variant.table.at_ns(end, rows) for end in variant.max_lengths]
            if any(b < a for a, b in itertools.pairwise(times)):
                found.append(f"{where} a longer runtime is quicker at {rows} rows: measure again")
        if any(b > a + 0.02 for a, b in itertools.pairwise(variant.accuracy)):
            found.append(f"{where} accuracy rises with length by more than two points: is that so?")
    return found
