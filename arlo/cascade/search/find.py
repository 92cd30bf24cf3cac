"""The whole search: from a study to operating points. Parameters are chosen on the select split and weights fitted on
the fit split. A point's reported figures come from the test split, read once, when everything is chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from arlo.cascade.decide import Bools, Floats, Ints
from arlo.cascade.guarantee import Risk, safe_threshold
from arlo.cascade.manifest import Guarantee, Point
from arlo.cascade.search import ensemble as mixing
from arlo.cascade.search import exact, ladder, points, skips
from arlo.cascade.search.points import Interval, paired
from arlo.cascade.search.table import Front, Table
from arlo.cascade.spec import Prune, Rule, Rules, hard
from arlo.cascade.study import Played, Study

Objective = Literal["mean", "p99", "energy"]
FIT, SELECT, TEST = range(3)
FEW_ROWS = 1000
PRICE_FLOOR = 0.02  # accuracy that the highest price may cost


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a search."""

    objective: Objective = "mean"
    accuracy: float | None = None  # also find a point of at least this accuracy
    slo_ms: float = np.inf  # of the mean, or p99 with that objective
    tolerance: float = 0.0  # of accuracy below the last stage alone
    bins: tuple[int, ...] = ()  # longest rows of length bins, for thresholds by length; none: one threshold
    plain: bool = False  # thresholds alone: nothing is pruned, mixed or skipped
    alpha_max: float = 0.0  # of rows that have no time for their runtime; below the point's alpha: no more words go
    most_removed: float = 0.5  # share of the importance that may go with them
    epsilon: float | None = None  # also find a point with this guarantee
    delta: float = 0.1
    risk: Risk = "disagreement"
    seed: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """The results of a search."""

    points: tuple[Point, ...]
    front: Front  # on the select split, without skips and ensembles
    warnings: tuple[str, ...]
    gains: dict[str, Interval]  # of each ensemble, on the select split


def find(study: Study, options: Options) -> Found:
    """The operating points of a study. ConfigError if no point meets a target."""
    select, warned = study.of(SELECT), _Warnings()
    if len(select.row) < FEW_ROWS:
        warned.add(f"the select split has {len(select.row)} rows: differences of a point or two are noise there")
    alpha = 0.0 if options.plain else _alpha(study, options)
    select = select.with_pruning(alpha)
    table = select.table()
    front = exact.search(table, seed=options.seed)
    made: list[Point] = []
    gains: dict[str, Interval] = {}
    alone = _Alone(study.of(SELECT), options)
    for name, at in _chosen((front, table), select, options, warned, alone):
        if isinstance(at, Rules):
            made.append(point(study, name, options, at))
            continue
        prices = _prices(front, table, at, select, options)
        rules = Rules(prices=prices, prune=Prune(alpha=alpha))
        if not options.plain and select.labels is not None:
            rules, gains = _mixed(study, rules, front.thresholds[at])
        if not options.plain and study.stages > 2 and not alpha:
            cuts = skips.by_benefit(table, front.thresholds[at], ladder.slope_at(front, at))
            rules = with_skips(select, rules, cuts, tolerance=options.tolerance)
        made.append(point(study, name, options, rules))
    if options.epsilon is not None:
        made.append(_safe(study, options, alpha, warned))
    for each in made:
        played = select.play(dataclasses.replace(each.all_rules, prune=Prune()))
        gain = paired(played.right, select.said[0].answer == select.truth)
        if gain.low <= 0 and each.reach[1] > 0:
            warned.add(f"point {each.name}: its accuracy above the first stage alone lies within noise")
        _judge(study, each, options, warned)
    return Found(tuple(made), front, tuple(warned.lines), gains)


def point(study: Study, name: str, options: Options, rules: Rules, guarantee: Guarantee | None = None) -> Point:
    """The manifest's point for these rules, with their results on the test split."""
    test = study.of(TEST)
    played = test.play(rules, seed=options.seed)
    accuracy = played.accuracy
    reach = played.ended.ran.mean(axis=0)
    return Point(
        name=name,
        search="exact",
        objective=options.objective,
        accuracy=None if test.labels is None else (accuracy.mean, accuracy.low, accuracy.high),
        agreement=played.agreement,
        reach=tuple(reach.tolist()),
        reach_by_bin=reach_by_bin(test, played, options.bins),
        mean_ms=float(played.ms.mean()),
        rules=rules.prices,
        start=rules.start,
        skip=rules.skip,
        prune=dataclasses.replace(rules.prune, alpha_max=options.alpha_max, most_removed=options.most_removed),
        ensemble=rules.ensemble,
        guarantee=guarantee,
    )


def reach_by_bin(study: Study, played: Played, bins: Sequence[int]) -> tuple[tuple[float, ...], ...]:
    """Reach [bins][stages] of each length bin; a bin without rows takes the overall reach."""
    which = np.searchsorted(bins, study.length)
    whole = played.ended.ran.mean(axis=0)
    rows = [played.ended.ran[which == b] for b in range(len(bins))]
    return tuple(tuple((each.mean(axis=0) if len(each) else whole).tolist()) for each in rows)


def removable(study: Study, options: Options) -> tuple[list[int], list[tuple[int, float]]]:
    """Stages that pay on the select split, and the others with their benefits (HybridServe Algorithm 2)."""
    table = study.of(SELECT).table()
    return points.remove_stages(
        study.stages, table.only, lambda of: exact.search(of, seed=options.seed), tolerance=options.tolerance
    )


class _Warnings:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        if line not in self.lines:
            self.lines.append(line)


def _alpha(study: Study, options: Options) -> float:
    """The alpha whose AP is cheapest on the select split; 0 if pruning saves nothing."""
    select = study.of(SELECT)
    best, cheapest = 0.0, _ap_cost(select, options)
    for alpha in select.alphas():
        pruned = select.with_pruning(alpha)
        cost = _ap_cost(pruned, options)
        if cost < cheapest:
            best, cheapest = alpha, cost
    return best


def _ap_cost(study: Study, options: Options) -> float:
    table = study.table()
    front = exact.search(table, seed=options.seed)
    at = _ap(front, table, study, options)
    return np.inf if at is None else float(front.cost[at])


def _ap(front: Front, table: Table, study: Study, options: Options) -> int | None:
    """AP against the last stage on whole texts, even if that stage gets pruned ones."""
    giant = study.giant == study.truth
    return points.accuracy_point(front, table, giant=giant, tolerance=options.tolerance, seed=options.seed)


class _Alone:
    """Stages after the first, each answering whole texts alone: they compete with every point of the curve."""

    def __init__(self, select: Study, options: Options) -> None:
        self._stages = range(1, select.stages)
        giant = select.said[-1].answer == select.truth
        right = [each.answer == select.truth for each in select.said]
        self.accuracy = [float(each.mean()) for each in right]
        of = select.ms if options.objective == "p99" else select.cost
        self.cost = [float(np.quantile(ms, 0.99) if options.objective == "p99" else ms.mean()) for ms in of.T]
        self.as_last = [paired(each, giant, seed=options.seed).low >= -options.tolerance - 1e-12 for each in right]

    def below(self, cost: float, good: Callable[[int], bool]) -> Rules | None:
        """The cheapest single stage that passes `good`, if it costs less than `cost`; otherwise None."""
        found = [s for s in self._stages if good(s) and self.cost[s] < cost]
        return single_stage(len(self.cost), min(found, key=self.cost.__getitem__)) if found else None


def single_stage(stages: int, stage: int) -> Rules:
    """Every row begins and ends at one stage."""
    return Rules(prices=((hard(0.0),) * (stages - 1),), start=stage)


def _chosen(
    of: tuple[Front, Table], select: Study, options: Options, warned: _Warnings, alone: _Alone
) -> list[tuple[str, int | Rules]]:
    """Points by their place on the curve, or the rules of a single stage that costs less."""
    front, table = of
    tail = options.objective == "p99"
    spent = _tails(front, table) if tail else front.cost
    found = list[tuple[str, int | Rules]]()
    ap = _ap(front, table, select, options)
    known = ap is not None
    ap = len(front) - 1 if ap is None else ap
    if tail:
        ap += int(np.argmin(spent[ap:]))
    single = alone.below(float(spent[ap]) if known else np.inf, lambda s: alone.as_last[s])
    if not known and single is None:
        warned.add("no point is as accurate as the last stage alone with its whole interval: ap is the most accurate")
    found.append(("ap", ap if single is None else single))
    eo = points.efficient_point(front, table)
    at = ap if eo is None else eo
    better = alone.below(float(spent[at]), lambda s: alone.accuracy[s] >= front.accuracy[at])
    found.append(("eo", found[0][1] if eo is None else at if better is None else better))
    if options.accuracy is not None:
        wanted, most = options.accuracy, options.slo_ms if options.objective != "energy" else np.inf
        good = np.nonzero((front.accuracy >= wanted) & (spent <= most))[0]
        limit = float(spent[good[0]] if len(good) else np.nextafter(most, np.inf))
        single = alone.below(limit, lambda s: alone.accuracy[s] >= wanted)
        if single is not None or len(good):
            found.append(("target", int(good[0]) if single is None else single))
        else:
            warned.add(f"no point has an accuracy of {wanted:.2%} within {options.slo_ms:g} ms")
    return found


def _tails(front: Front, table: Table) -> Floats:
    return np.array([np.quantile(table.at(table.exits(t))[1], 0.99) for t in front.thresholds])


def _prices(front: Front, table: Table, at: int, select: Study, options: Options) -> tuple[tuple[Rule, ...], ...]:
    """The point's rules and those of higher prices; by length where bins are asked for and it costs less."""
    floor = float(front.accuracy[at]) - PRICE_FLOOR
    if options.bins:
        binned = ladder.merge(table, select.length, options.bins, lambda of: exact.search(of, seed=options.seed))
        good = np.nonzero(binned.accuracy >= front.accuracy[at] - 1e-12)[0]
        if len(good) and binned.cost[good[0]] < front.cost[at]:
            steps = ladder.ladder(binned, int(good[0]), floor=floor)
            return tuple(ladder.as_rules(each, binned.bins) for each in steps)
    return tuple(ladder.as_rules(each) for each in ladder.ladder(front, at, floor=floor))


def _mixed(study: Study, rules: Rules, thresholds: Floats) -> tuple[Rules, dict[str, Interval]]:
    parts = [study.of(split).with_pruning(rules.prune.alpha) for split in (FIT, SELECT)]
    fit, select = ((each.said, each.truth) for each in parts)
    found, gains = mixing.choose(fit, select, thresholds)
    return dataclasses.replace(rules, ensemble=found), gains


def with_skips(select: Study, rules: Rules, cuts: tuple[tuple[float, ...], ...], *, tolerance: float) -> Rules:
    """The rules with these skips, if they cost less on the select split and lose nothing beyond noise."""
    skipping = dataclasses.replace(rules, skip=cuts)
    before, after = select.play(rules), select.play(skipping)
    cost = [float(mixing.spent(each.ended.ran, select.cost).mean()) for each in (before, after)]
    fine = paired(after.right, before.right).low >= -tolerance - 1e-12 or after.right.mean() >= before.right.mean()
    return skipping if cost[1] < cost[0] and fine else rules


def answers_at(study: Study, alpha: float = 0.0) -> Callable[[float], tuple[Ints, Bools]]:
    """With one threshold for all stages: answers [rows], and which rows end before the last stage."""
    pruned = study.with_pruning(alpha)
    table = pruned.table()
    said = np.stack([each.answer for each in pruned.said], axis=1)

    def at(t: float) -> tuple[Ints, Bools]:
        exits = table.exits(np.full(table.stages - 1, t))
        return said[np.arange(table.rows), exits], exits < table.stages - 1

    return at


def _safe(study: Study, options: Options, alpha: float, warned: _Warnings) -> Point:
    """The point `safe`: one threshold for all stages, as low as the guarantee allows (section 8.3 of the design: fixed
    sequence of tests, on the select split)."""
    assert options.epsilon is not None
    select = study.of(SELECT)
    t = safe_threshold(
        answers_at(select, alpha),
        select.giant,
        select.labels,
        epsilon=options.epsilon,
        delta=options.delta,
        risk=options.risk,
    )
    if t >= 1:
        warned.add(
            f"no threshold keeps {options.risk} within {options.epsilon:g}: at the point safe the last stage answers"
        )
    if t >= 1:
        rules = single_stage(study.stages, study.stages - 1)
    else:
        rules = Rules(prices=((hard(t),) * (study.stages - 1),), prune=Prune(alpha=alpha))
    promise = Guarantee(risk=options.risk, epsilon=options.epsilon, delta=options.delta, rows=len(select.row))
    return point(study, "safe", options, rules, promise)


def _judge(study: Study, made: Point, options: Options, warned: _Warnings) -> None:
    """Warn where a point does not pay, or misses the target on the test split."""
    last = float(study.of(TEST).ms[:, -1].mean())
    single = made.rules[0][made.start :]
    if made.start == study.stages - 1 or all(rule == hard(0.0) for rule in single):
        stage = study.cascade.stages[made.start].name
        warned.add(f"point {made.name}: a cascade does not pay; stage {stage} answers alone")
    elif made.mean_ms >= last:
        warned.add(f"point {made.name} takes {made.mean_ms:.3g} ms, the last stage alone {last:.3g}: it does not pay")
    accuracy = made.agreement if made.accuracy is None else made.accuracy[0]
    if made.name == "target" and accuracy < (options.accuracy or 0.0):
        warned.add(
            f"point {made.name}: {options.accuracy:.2%} is asked for and met on the select split; on the test split it "
            f"is {accuracy:.2%}: ask for more, or record more texts"
        )
