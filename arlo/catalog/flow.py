"""A flow as data: a rooted tree of stages that answers as one model (Loki, HPDC'24, section 2.1 and Table 1). Unlike in
the paper, branches may join: then the first edge to a stage belongs to the tree.

A row enters at the *entry* stage. Each stage has variants: ways to do its task, with different accuracy and latency. An
*edge* turns a stage's answer for one row into zero or more rows of the next stage, or into an *exit*. Their mean number
is the edge's factor: Loki's multiplicative factor, a cascade's share of rows that go on, 1 for a chain.

Constructing a value checks it; a ConfigError names the field. `arlo.catalog.flow_file` reads files. Pure.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from arlo.catalog import flow_joins
from arlo.catalog.latency import LatencyTable, ms_in_ns
from arlo.errors import need

RouterName = Literal["price", "plan", "maf"]
DropName = Literal["slack", "reroute", "per_task", "last", "none"]
OnDrop = Literal["fail", "partial"]
ExpandKind = Literal["same", "spans", "prune", "chunks", "top_k", "tensor"]
Distribution = Literal["constant", "ceil", "poisson", "empirical", "trace"]
Combine = Literal["product", "last", "weighted"]
Fire = Literal["all", "first"]
ScoreName = Literal["calibrated_max", "margin", "entropy"]
Follows = Literal["planned", "price"]
Utilisation = float | Literal["window"]

MAX_STAGES = 16
MAX_VARIANTS = 32  # per stage
MAX_CHILDREN = 1 << 16  # rows that one row may become on an edge
MAX_COUNT = 10**6  # rows of one row, in simulation
MAX_WATTS = 100_000  # per worker
MAX_JOULE = 1_000  # right answers
UTILISATION = 0.8  # the default
EXIT = "exit"  # how an edge names the end of a journey

Prefix = tuple[int, ...]  # variants (by index) from the entry to a stage, which is given separately


def _one_of(value: str, kind: object, name: str) -> None:
    need(value in get_args(kind), f"{name} must be one of {', '.join(get_args(kind))}, not {value!r}")


def _positive(value: float, name: str) -> None:
    need(math.isfinite(value) and value > 0, f"{name} must be above 0, not {value}")


def _share(value: float, name: str) -> None:
    need(math.isfinite(value) and 0 <= value <= 1, f"{name} must be from 0 to 1, not {value}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlowVariant:
    """One way to do a stage's task."""

    name: str
    accuracy: tuple[float, ...]  # for each max_length's length bin, in [0, 1]; one number: the same for all bins
    table: LatencyTable  # of a whole batch: (length, rows) -> ns
    max_lengths: tuple[int, ...] = (1,)  # ascending: one runtime each; 1 if rows have no length (images)
    max_batch: int = 1
    batches: tuple[int, ...] = ()  # batch caps that a planner may choose from; empty: the measured ones
    memory_mb: int = 0  # on a worker, all runtimes together; 0: not known
    load_ms: float = 0.0  # until a worker has loaded it; 0: not known
    repository: str = ""  # folder of the compiled model; empty: numbers only, for simulation and planning
    tokens: int | None = None  # that each layer adds, or, below 0, merges away (OTAS); None: not by tokens
    watts: float = 0.0  # drawn by a worker beyond idle while it executes a batch; 0: not known
    temperature: float = 1.0  # divides its logits, so that probabilities are right as often as they claim
    bins: tuple[int, ...] = ()  # ends of length bins in tokens, ascending, the last open above; empty: one for all
    bin_accuracy: tuple[float, ...] = ()  # per bin, if no tasks share it; in [0, 1]
    task_accuracy: tuple[tuple[str, tuple[float, ...]], ...] = ()  # per task that shares it: the accuracy in each bin

    def __post_init__(self) -> None:
        where = f"variant {self.name!r}:"
        need(bool(self.name), "a variant needs a name")
        need(len(self.accuracy) in {1, len(self.max_lengths)}, f"{where} accuracy needs 1 number, or 1 per max_length")
        for value in self.accuracy:
            _share(value, f"{where} accuracy")
        need(not self.bins or _ascend(self.bins), f"{where} bins must ascend from 1")
        known = [("bin_accuracy", self.bin_accuracy)] if self.bins and not self.task_accuracy else []
        need(bool(known) or not self.bin_accuracy, f"{where} bin_accuracy needs bins, and no task_accuracy beside it")
        for name, values in (*known, *((f"task_accuracy of {task!r}", one) for task, one in self.task_accuracy)):
            need(len(values) == max(len(self.bins), 1), f"{where} {name} needs a number for each of its bins")
            for value in values:
                _share(value, f"{where} {name}")
        need(_ascend(self.max_lengths), f"{where} max_lengths must ascend from 1")
        need(self.max_batch >= 1, f"{where} max_batch must be at least 1")
        _positive(self.temperature, f"{where} temperature")
        need(0 <= self.watts <= MAX_WATTS, f"{where} watts must be 0 to {MAX_WATTS}, not {self.watts}")
        need(bool(self.table.points), f"{where} latency needs at least one point")
        need(all(ns > 0 for _, _, ns in self.table.points), f"{where} latency must be above 0 everywhere")
        need(self.memory_mb >= 0, f"{where} memory_mb must be at least 0")
        need(self.load_ms >= 0, f"{where} load_ms must be at least 0")
        inside = all(1 <= rows <= self.max_batch for rows in self.batches)
        need(inside, f"{where} batches must lie from 1 to max_batch ({self.max_batch})")

    def mean_accuracy(self, shares: Sequence[float]) -> float:
        """The mean accuracy over rows, `shares` [max_lengths] of which lie in each length bin."""
        return _mean(self.accuracy, tuple(shares))

    def latency_ns(self, rows: int, runtime: int = 0) -> int:
        """The latency of a batch on a runtime, padded to its max_length."""
        return self.table.at_ns(self.max_lengths[runtime], rows)

    @property
    def batch_caps(self) -> tuple[int, ...]:
        """Batch caps to choose from, ascending: at least one."""
        if self.batches:
            return tuple(sorted(set(self.batches)))
        return tuple(rows for rows in self.table.batches() if rows <= self.max_batch) or (self.max_batch,)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlowBatch:
    """Which rows of a stage are executed together."""

    max: int = 64  # rows

    def __post_init__(self) -> None:
        need(self.max >= 1, "batch.max must be at least 1")


def _ascend(ends: Sequence[int]) -> bool:
    return bool(ends) and ends[0] >= 1 and all(b > a for a, b in itertools.pairwise(ends))


# Plans look these up for every path of variants.
@functools.lru_cache(maxsize=1024)
def _mean(accuracy: tuple[float, ...], shares: tuple[float, ...]) -> float:
    of = accuracy if len(accuracy) > 1 else accuracy * len(shares)
    return min(math.fsum(share * value for share, value in zip(shares, of, strict=False)), 1.0)


@functools.lru_cache(maxsize=1024)
def _bins(lengths: tuple[tuple[int, float], ...], ends: tuple[int, ...]) -> tuple[float, ...]:
    found = [0.0] * len(ends)
    total = sum(share for _, share in lengths)
    for length, share in lengths:
        found[next(i for i, end in enumerate(ends) if length <= end)] += share / total
    return tuple(found) if lengths else (1.0, *found[1:])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlowStage:
    """A task at one place of a flow."""

    name: str
    variants: tuple[FlowVariant, ...]
    entry: bool = False
    batch: FlowBatch = FlowBatch()
    lengths: tuple[tuple[int, float], ...] = ()  # (tokens, share) of the rows that come here; empty: the shortest bin
    told: bool = False  # clients may also ask for its answers to rows that go on
    fire: Fire = "all"  # which of the edges whose guards hold a row takes; a row that takes an exit takes no other

    def __post_init__(self) -> None:
        where = f"stage {self.name!r}:"
        need(bool(self.name) and self.name != EXIT, f"a stage needs a name, and it cannot be {EXIT!r}")
        need(1 <= len(self.variants) <= MAX_VARIANTS, f"{where} variants must be 1 to {MAX_VARIANTS}")
        names = [variant.name for variant in self.variants]
        need(len(set(names)) == len(names), f"{where} two variants have one name")
        _one_of(self.fire, Fire, f"{where} fire")
        if self.lengths:
            need(all(length >= 1 and share >= 0 for length, share in self.lengths), f"{where} lengths: [tokens, share]")
            need(sum(share for _, share in self.lengths) > 0, f"{where} lengths have no share above 0")
            longest = max(length for length, share in self.lengths if share > 0)
            for variant in self.variants:
                need(
                    longest <= variant.max_lengths[-1],
                    f"{where} rows of {longest} tokens do not fit variant {variant.name!r}, which ends at"
                    f" {variant.max_lengths[-1]}",
                )

    def bins(self, variant: int) -> tuple[float, ...]:
        """Share [max_lengths] of the stage's rows in each length bin of a variant."""
        return _bins(self.lengths, self.variants[variant].max_lengths)

    def accuracy(self, variant: int) -> float:
        """The mean accuracy of a variant over the rows that reach this stage."""
        return self.variants[variant].mean_accuracy(self.bins(variant))

    def least_ns(self, variant: int) -> int:
        """Time of one row on the quickest runtime that rows of this stage use."""
        each = self.variants[variant]
        return min(each.latency_ns(1, i) for i, share in enumerate(self.bins(variant)) if share > 0)

    def work_ns(self, variant: int) -> float:
        """Worker time of a row in batches of the size where a row costs least."""
        each, shares = self.variants[variant], self.bins(variant)
        return min(
            math.fsum(share * each.latency_ns(rows, i) for i, share in enumerate(shares)) / rows
            for rows in each.batch_caps
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The rows that take an edge; all of them if there is neither score nor label."""

    score: ScoreName | Literal[""] = ""  # of the tail's probabilities
    at_least: float | Follows | None = None
    below: float | Follows | None = None
    label_in: tuple[str, ...] = ()
    share: tuple[float, ...] = ()  # of rows that take the edge, by variant of the tail; empty: the rest after the exits

    def __post_init__(self) -> None:
        for value in self.share:
            _share(value, "when.share")
        bounded = self.at_least is not None or self.below is not None
        need(bool(self.score) == bounded, "when.score needs at_least or below, and these need a score")
        need(
            not self.score or self.score in get_args(ScoreName), f"when.score: one of {', '.join(get_args(ScoreName))}"
        )
        for name, bound in (("at_least", self.at_least), ("below", self.below)):
            number = bound is None or (isinstance(bound, float | int) and 0 <= bound <= 1)
            need(number or bound in get_args(Follows), f"when.{name} must be 0 to 1, planned or price, not {bound!r}")
        need(
            not self.follows or self.at_least is None or self.below is None,
            "when: at_least and below are two numbers, or one of them is planned or price",
        )

    @property
    def follows(self) -> Follows | None:
        """How its threshold follows the load: by the plan, or by the price in force. None: it does not."""
        for bound in (self.at_least, self.below):
            if isinstance(bound, str):
                return bound
        return None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Expand:
    """What a row becomes on an edge."""

    kind: ExpandKind = "same"
    output: str = ""  # of the tail, read by spans, top_k and tensor
    max: int = MAX_CHILDREN  # rows; further ones are dropped
    factor: tuple[float, ...] = (1.0,)  # mean rows of a row that takes the edge, by variant of the tail, or one for all
    distribution: Distribution = "ceil"  # of that number, in simulation; ceil: the two whole numbers around the mean
    counts: tuple[int, ...] = ()  # scaled to the factor; empirical: drawn alike; trace: one for each root, as they come
    window: int = 0  # of kind chunks: tokens of a piece at most, the row's first and last one included
    inputs: tuple[tuple[str, str], ...] = ()  # of the head: the input's name at the tail, if that differs
    alpha: float = 0.0  # of kind prune: words stay if more important than this many times the mean (Tabi Eq. 5)
    min_words: int = 4  # the same: at least so many stay
    to_level: bool = True  # the same: only until a shorter runtime of the head is reached
    stride: int = 0  # the same: from the start of a piece to that of the next one; 0: window - 2

    def __post_init__(self) -> None:
        _one_of(self.kind, ExpandKind, "expand.kind")
        _one_of(self.distribution, Distribution, "expand.distribution")
        need(1 <= self.max <= MAX_CHILDREN, f"expand.max must be 1 to {MAX_CHILDREN}")
        need(all(math.isfinite(r) and r >= 0 for r in self.factor), "expand.factor must be at least 0")
        counted = self.distribution in ("empirical", "trace")
        need(counted == bool(self.counts), "expand.counts go with distribution = empirical or trace")
        need(all(0 <= count <= MAX_COUNT for count in self.counts), f"expand.counts must be 0 to {MAX_COUNT:,}")
        need(not self.counts or any(self.counts), "expand.counts: one must be above 0")
        need(self.window == 0 or self.window > 2, "expand.window must be above 2 tokens")
        need(0 <= self.stride <= max(self.window - 2, 0), "expand.stride must be at most expand.window - 2")
        need(self.window == 0 or self.kind == "chunks", "expand.window goes with kind = chunks")
        need((self.alpha > 0) == (self.kind == "prune"), "expand.alpha, above 0, goes with kind = prune")
        need(math.isfinite(self.alpha) and self.min_words >= 0, "expand.min_words must be at least 0")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlowEdge:
    """An edge from a stage to a stage, or to an exit."""

    tail: str  # `from` in a file
    head: str | None  # `to`; None: an exit
    when: Guard = Guard()
    expand: Expand = Expand()
    hop_ms: float = 0.0
    combine: Combine = "product"  # how a path's accuracy continues: product; last: only the head's answer counts
    weights: tuple[float, ...] = ()  # of combine weighted: of the answers so far and of the head's
    # A row of the head joins all rows, by any edge to the head, that come from one row of this stage. Empty: no join.
    join: str = ""

    def __post_init__(self) -> None:
        need(math.isfinite(self.hop_ms) and self.hop_ms >= 0, "hop_ms must be at least 0")
        _one_of(self.combine, Combine, "answer")
        need((self.combine == "weighted") == bool(self.weights), "answer.weights go with ensemble = weighted")
        good = all(math.isfinite(w) and w >= 0 for w in self.weights) and (not self.weights or sum(self.weights) > 0)
        need(good and len(self.weights) in (0, 2), "answer.weights are two numbers of at least 0, not both 0")

        many = self.expand.kind not in ("same", "prune")
        need(self.combine == "product" or not many, "answer goes with rows that become one row: expand same or prune")
        if self.join:
            as_it_is = dataclasses.replace(self.expand, inputs=()) == Expand()
            need(
                self.head is not None and self.when == Guard() and self.combine == "product" and as_it_is,
                "join takes all that comes: no when, no answer, of expand only inputs; put them on the edges before",
            )

    @property
    def falls_back(self) -> bool:
        """Whether its head answers the same task as its tail."""
        return self.head is not None and self.combine != "product"

    @property
    def name(self) -> str:
        """The edge's name for people."""
        return f"{self.tail}>{self.head or EXIT}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flow:
    """The stages and edges that a client calls as one model."""

    name: str
    slo_ms: float
    stages: tuple[FlowStage, ...]
    edges: tuple[FlowEdge, ...] = ()
    router: RouterName = "price"
    drop: DropName = "slack"
    on_drop: OnDrop = "fail"
    # Share of a pool's capacity that a plan counts on; "window": derived from the observed seconds.
    utilisation: Utilisation = UTILISATION
    plan_period_s: float = 10.0
    joule: float = 0.0  # utility of a saved joule, in shares of a right answer; 0: energy is ignored
    max_children: int = 256  # rows of one root alive at once
    records: str = ""  # folder of row outcomes, from which recorded paths get their accuracies

    def __post_init__(self) -> None:
        need(bool(self.name), "flow.name must not be empty")
        _positive(self.slo_ms, "flow.slo_ms")
        for value, kind, name in (
            (self.router, RouterName, "router"),
            (self.drop, DropName, "drop"),
            (self.on_drop, OnDrop, "on_drop"),
        ):
            _one_of(value, kind, f"flow.{name}")
        need(
            self.utilisation == "window" or (not isinstance(self.utilisation, str) and 0 < self.utilisation <= 1),
            f'flow.utilisation must be above 0 and at most 1, or "window", not {self.utilisation!r}',
        )
        _positive(self.plan_period_s, "flow.plan_period_s")
        need(0 <= self.joule <= MAX_JOULE, f"flow.joule must be 0 to {MAX_JOULE}, not {self.joule}")
        need(self.max_children >= 1, "flow.max_children must be at least 1")
        self._check_tree()
        for stage in range(len(self.stages)):
            self._check_edges(stage)
        need(
            self.joule == 0 or self.metered,
            "flow.joule needs the watts of every variant: without them one would look as if it drew nothing",
        )

    @functools.cached_property
    def metered(self) -> bool:
        """Whether the power draw of every variant is known."""
        return all(variant.watts > 0 for stage in self.stages for variant in stage.variants)

    def _check_tree(self) -> None:
        names = [stage.name for stage in self.stages]
        need(1 <= len(names) <= MAX_STAGES, f"a flow has 1 to {MAX_STAGES} stages, not {len(names)}")
        need(len(set(names)) == len(names), "two stages have one name")
        entries = [stage.name for stage in self.stages if stage.entry]
        need(len(entries) <= 1, f"one stage is the entry, not {' and '.join(entries)}")
        for edge in self.edges:
            for end in (edge.tail, edge.head):
                need(
                    end is None or end in names,
                    f"edge {edge.name}: there is no stage {end!r}; known: {', '.join(names)}",
                )
        heads = [edge.head for edge in self.edges if edge.head is not None]
        for name in names:
            joins = {edge.join for edge in self.edges if edge.head == name}
            need(
                heads.count(name) <= 1 or (len(joins) == 1 and joins != {""}),
                f"stage {name!r} is reached by {heads.count(name)} edges: several lead to a stage only where all of"
                " them join the rows of one stage before them: join = STAGE",
            )
        roots = [name for name in names if name not in heads]
        entry = entries[0] if entries else roots[0] if len(roots) == 1 else None
        need(entry is not None, "say which stage is the entry: entry = true")
        for name in names:
            need(
                (name == entry) == (name not in heads),
                f"stage {name!r} is reached by {heads.count(name)} edges; the entry {entry!r} by 0, all others by one",
            )
        reached: set[str] = set()
        todo = [entry]
        while todo:
            at = todo.pop()
            if at is not None and at not in reached:
                reached.add(at)
                todo += [edge.head for edge in self.edges if edge.tail == at]
        need(len(reached) == len(names), f"stage {sorted(set(names) - reached)[:1]} is not reached from the entry")
        need(len(self.order) == len(names), "the edges lead round in a circle")
        flow_joins.check(self)

    def _check_edges(self, stage: int) -> None:
        count = len(self.stages[stage].variants)
        for edge in (self.edges[i] for i in self.out(stage)):
            for values, what in ((edge.when.share, "when.share"), (edge.expand.factor, "expand.factor")):
                need(
                    len(values) in {0, 1, count},
                    f"edge {edge.name}: {what} needs 1 number, or 1 for each of the {count} variants of {edge.tail!r}",
                )
            need(
                edge.head is not None or bool(edge.when.share),
                f"edge {edge.name}: an exit needs when.share, the share of rows that end there, or records of rows",
            )
            if edge.when.follows:
                kind = "at_least" if edge.head is None else "below"
                need(
                    isinstance(getattr(edge.when, kind), str), f"edge {edge.name}: when.{kind} = {edge.when.follows!r}"
                )
                asked = [self.edges[i] for i in self.out(stage)] if edge.head is None else [edge]
                need(
                    any(each.falls_back for each in asked),
                    f"edge {edge.name}: {edge.when.follows!r} weighs one answer against the next one: the edge that"
                    " goes on needs answer = {ensemble = ..}",
                )
        for variant in range(count):
            exits = self.exit_share(stage, variant)
            need(exits <= 1 + 1e-9, f"stage {self.stages[stage].name!r}: its exits take {exits:.3g} of the rows")

    @property
    def known_utilisation(self) -> float:
        """The share; for "window", the one that holds until enough was observed."""
        return UTILISATION if isinstance(self.utilisation, str) else self.utilisation

    @functools.cached_property
    def index(self) -> dict[str, int]:
        """The number of each stage, by name."""
        return {stage.name: i for i, stage in enumerate(self.stages)}

    @functools.cached_property
    def entry(self) -> int:
        """The number of the entry stage."""
        return next(i for i in range(len(self.stages)) if self.parent_edge[i] is None)

    @functools.cached_property
    def parent_edge(self) -> tuple[int | None, ...]:
        """The number of the edge that leads to each stage; None: the entry."""
        found: dict[str, int] = {}
        for i, edge in enumerate(self.edges):
            if edge.head is not None:
                found.setdefault(edge.head, i)
        return tuple(found.get(stage.name) for stage in self.stages)

    def of_tree(self, edge: int) -> bool:
        """Whether the edge is the first to its head, where other edges may join it."""
        head = self.edges[edge].head
        return head is not None and self.parent_edge[self.index[head]] == edge

    @functools.cached_property
    def order(self) -> tuple[int, ...]:
        """Stages, parents before children, children in the order of their edges."""
        found: list[int] = []
        todo = [self.entry]
        tails = {stage.name: {edge.tail for edge in self.edges if edge.head == stage.name} for stage in self.stages}
        while todo:
            done = {self.stages[i].name for i in found}
            stage = next((i for i in todo if tails[self.stages[i].name] <= done), None)
            if stage is None:
                break
            todo.remove(stage)
            found.append(stage)
            todo += self.children(stage)
        return tuple(found)

    def out(self, stage: int) -> tuple[int, ...]:
        """The numbers of a stage's edges, including exits, in the order of the file."""
        return tuple(i for i, edge in enumerate(self.edges) if edge.tail == self.stages[stage].name)

    @functools.cached_property
    def in_order(self) -> tuple[int, ...]:
        """All edges by number, stage by stage, in the core's order: of edges to one stage the tree's comes first."""
        each = [i for stage in self.order for i in self.out(stage)]
        return tuple(sorted(each, key=lambda i: self.edges[i].head is not None and not self.of_tree(i)))

    def children(self, stage: int) -> tuple[int, ...]:
        """Stages that come next in the tree, in the order of their edges."""
        heads = (self.edges[i].head for i in self.out(stage) if self.of_tree(i))
        return tuple(self.index[head] for head in heads if head is not None)

    def line(self, stage: int) -> tuple[int, ...]:
        """Stages from the entry to this one."""
        edge = self.parent_edge[stage]
        return (stage,) if edge is None else (*self.line(self.index[self.edges[edge].tail]), stage)

    def exit_share(self, stage: int, variant: int) -> float:
        """The share of a variant's rows that exit edges end, or that do not take the one edge to a further answer. The
        rest goes on; at a leaf all rows end."""
        out = [self.edges[i] for i in self.out(stage)]
        onward = [edge for edge in out if edge.head is not None]
        if len(onward) == 1 and onward[0].falls_back and onward[0].when.share:
            return 1 - _of(onward[0].when.share, variant)
        return math.fsum(_of(edge.when.share, variant) for edge in out if edge.head is None)

    def factor(self, edge: int, variant: int) -> float:
        """The mean number of rows at the head per row that this variant of the tail answered: share x rows, never above
        max. Where rows join, it follows from the means of the stages before."""
        found = self.edges[edge]
        if found.join:
            return self._joined[edge]
        tail = self.index[found.tail]
        share = _of(found.when.share, variant) if found.when.share else max(1 - self.exit_share(tail, variant), 0.0)
        return share * min(_of(found.expand.factor, variant), found.expand.max)

    @functools.cached_property
    def _joined(self) -> dict[int, float]:
        return flow_joins.factors(self)

    def prefixes(self, stage: int) -> Iterator[Prefix]:
        """All choices of variants from the entry to a stage, in order."""
        line = self.line(stage)

        def more(done: Prefix) -> Iterator[Prefix]:
            if len(done) == len(line):
                yield done
                return
            for variant in range(len(self.stages[line[len(done)]].variants)):
                yield from more((*done, variant))

        yield from more(())

    def label(self, stage: int, prefix: Prefix) -> str:
        """`stage:variant>stage:variant` for people and JSON."""
        pairs = zip(self.line(stage), prefix, strict=True)
        return ">".join(f"{self.stages[i].name}:{self.stages[i].variants[k].name}" for i, k in pairs)

    def multiplicity(self, stage: int, prefix: Prefix) -> float:
        """m(prefix): rows at the stage for one root (Loki Eq. 1, with the factors of the edges before it)."""
        line = self.line(stage)
        found = 1.0
        for i, variant in enumerate(prefix[:-1]):
            edge = self.parent_edge[line[i + 1]]
            assert edge is not None
            found *= self.factor(edge, variant)
        return found

    def hops_ms(self, stage: int) -> float:
        """The milliseconds of all hops from the entry to a stage."""
        edges = (self.parent_edge[i] for i in self.line(stage))
        return math.fsum(self.edges[edge].hop_ms for edge in edges if edge is not None)


def _of(values: Sequence[float], variant: int) -> float:
    return values[variant] if len(values) > 1 else values[0]


def table_of_ms(points: Sequence[tuple[int, int, float]]) -> LatencyTable:
    """A latency table of points (tokens, rows, ms)."""
    return LatencyTable(tuple((length, rows, ms_in_ns(ms)) for length, rows, ms in points))
