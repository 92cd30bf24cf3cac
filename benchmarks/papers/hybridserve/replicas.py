"""Batch, replicas and devices of every stage of a cascade (HybridServe section V-C, Algorithm 3). Pure.

Rows are taken b at a time; of these stage i gets rho_i b, so its time l, memory w and transfer T are functions of that
number: lines fitted to measured batches. A replica may be spread over S devices, layer by layer: each holds w / S and
works l / S of the time, and hidden states go from one to the next. Then

    u_i = rate l_i(rho_i b) / (b R_i S_i)                   share of a device's time that a part of a replica takes
    max over b, R, S of  min_i  R_i S_i b / l_i(rho_i b)    rows per ms that the slowest stage carries; ties: least T
    s.t. (b - 1) / rate + sum_i l_i(rho_i b) <= SLO         the first row's wait for the batch, and the whole way
         a packing of all parts exists (benchmarks.papers.hybridserve.packing)

The paper compares R rho l with bytes of memory; its intent is in the packing. Its "maximum objective" of a minimisation
is read as above. It counts each replica as if it had its own device, so Plan.carries gives the rate that the devices
carry as packed. Without a limit on time the largest batch would always be the best.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from arlo.errors import ConfigError
from benchmarks.papers.hybridserve.packing import CAP, Device, Instance, Packing, PackingProblem, fits, pack


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A linear cost of a batch, by its rows."""

    fixed: float
    per_row: float = 0.0

    def at(self, rows: float) -> float:
        """The cost of a batch of `rows` rows."""
        return self.fixed + self.per_row * rows


def fitted(points: Sequence[tuple[float, float]]) -> Line:
    """The least-squares line through (rows, cost) with neither coefficient below 0. ConfigError without points."""
    if not points:
        raise ConfigError("a line needs at least one measured batch")
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0:
        return Line(mean_y)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    if slope <= 0:
        return Line(mean_y)
    if mean_y - slope * mean_x < 0:  # superlinear: through 0
        return Line(0.0, sum(x * y for x, y in points) / sum(x * x for x, _ in points))
    return Line(mean_y - slope * mean_x, slope)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageNeeds:
    """One stage: share of rows that reach it, and the costs of its batch on one device."""

    reach: float
    ms: Line  # of a batch of 1 to max_batch rows
    memory_mb: Line  # of an instance that takes batches of so many rows
    max_batch: int = 1
    hop: Line = Line(0.0, 1.0)  # of the rows that come from the stage before, in the unit of `transfer`
    hidden: Line = Line(0.0, 1.0)  # of the rows' hidden states between two parts of a replica, the same

    def rows(self, batch: float) -> float:
        """Rows of a batch at this stage, out of `batch` rows at the entry: at least one, at most its largest batch."""
        return min(max(self.reach * batch, 1.0), float(self.max_batch))

    def batch_ms(self, batch: float) -> float:
        """Mean time at this stage for b rows at the entry. Below one row on average, single rows run now and then;
        above the largest batch, several batches run in turn."""
        return self.ms.at(self.rows(batch)) * self.reach * batch / self.rows(batch)


@dataclasses.dataclass(frozen=True, slots=True)
class Placed:
    """A part of a replica of a stage; part 0 of 1 is a replica as a whole."""

    stage: int
    replica: int
    part: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The result of Algorithm 3."""

    batch: int  # b: rows that are taken at a time, of which a stage gets its reach
    replicas: tuple[int, ...]  # R of each stage
    spans: tuple[int, ...]  # S of each stage: devices of a replica
    rate: float  # rows per ms that the slowest stage carries, as if each of its replicas had a device to itself
    carries: float  # rows per ms that the devices carry as they are packed, at their cap of utilisation
    ms: float  # of a row that every stage runs, in such batches, without queues
    parts: tuple[Placed, ...]
    packing: Packing  # device of each part


def plan(
    stages: Sequence[StageNeeds],
    devices: Sequence[Device],
    *,
    rate: float,
    transfer: tuple[tuple[float, ...], ...],
    as_printed: bool = False,
    batches: Sequence[int] = (1,),
    most: int = 8,
    most_span: int = 1,
    slo_ms: float = math.inf,
    cap: float = CAP,
) -> Plan | None:
    """See the module: all b of `batches`, R up to `most` and S up to `most_span`, from those that carry most.

    `rate`: rows per ms. `as_printed`: every pair of instances costs its transfer (Eq. 2), parts only towards their
    next; else what goes between two, per row of traffic. None where nothing carries the rate. SolverMissing without
    HiGHS.
    """
    if rate <= 0 or any(each.ms.at(1) <= 0 or each.reach < 0 or each.max_batch < 1 for each in stages):
        raise ConfigError("rate, times and largest batches of stages must be above 0")
    if not batches or min(batches) < 1:
        raise ConfigError("batches must be at least one row")
    best: Plan | None = None
    for carried, batch, replicas, spans in _by_rate(stages, sorted(set(batches)), most, most_span, len(devices)):
        if carried * cap < rate - 1e-12 or (best is not None and carried < best.rate - 1e-12):
            break
        ms = (batch - 1) / rate + sum(each.ms.at(each.rows(batch)) for each in stages)
        if ms > slo_ms:
            continue
        parts = [
            Placed(s, replica, part)
            for s, (r, span) in enumerate(zip(replicas, spans, strict=True))
            for replica in range(r)
            for part in range(span)
        ]
        shares = [
            rate * each.batch_ms(batch) / (batch * r * span)
            for each, r, span in zip(stages, replicas, spans, strict=True)
        ]
        memory = [each.memory_mb.at(each.rows(batch)) / span for each, span in zip(stages, spans, strict=True)]
        problem = PackingProblem(
            instances=tuple(Instance(i, memory[at.stage], shares[at.stage]) for i, at in enumerate(parts)),
            devices=tuple(devices),
            transfer=transfer,
            flow=_flow(stages, parts, batch, replicas, spans, as_printed=as_printed),
            cap=cap,
        )
        if best is not None and best.packing.transfer == 0:
            break  # nothing is below it
        found = pack(problem) if fits(problem) else None
        if found is not None and (best is None or found.transfer < best.packing.transfer - 1e-12):
            busy = [0.0] * len(devices)
            for each, device in zip(problem.instances, found.device, strict=True):
                busy[device] += each.busy
            best = Plan(
                batch=batch,
                replicas=replicas,
                spans=spans,
                rate=carried,
                carries=rate * cap / max(busy),
                ms=ms,
                parts=tuple(parts),
                packing=found,
            )
    return best


def _by_rate(
    stages: Sequence[StageNeeds], batches: Sequence[int], most: int, most_span: int, devices: int
) -> Iterator[tuple[float, int, tuple[int, ...], tuple[int, ...]]]:
    """(rows per ms that they carry, b, R, S), the largest first; of equals the smallest batch, the fewest parts."""
    sizes = [(r, s) for r in range(1, most + 1) for s in range(1, min(most_span, devices) + 1)]
    found = []
    for batch in batches:
        busy = [each.batch_ms(batch) / batch for each in stages]  # ms of a device per row of traffic
        for chosen in itertools.product(sizes, repeat=len(stages)):
            pairs = zip(chosen, busy, strict=True)
            carried = min((r * s / ms for (r, s), ms in pairs if ms > 0), default=math.inf)
            replicas, spans = tuple(r for r, _ in chosen), tuple(s for _, s in chosen)
            found.append((-carried, batch, sum(r * s for r, s in chosen), max(spans), replicas, spans))
    found.sort()
    return ((-carried, batch, replicas, spans) for carried, batch, _, _, replicas, spans in found)


def _flow(
    stages: Sequence[StageNeeds],
    parts: Sequence[Placed],
    batch: int,
    replicas: Sequence[int],
    spans: Sequence[int],
    *,
    as_printed: bool,
) -> tuple[tuple[float, ...], ...]:
    """Traffic [parts][parts] from the one to the other, per row; all replicas of the next stage are equally likely. A
    part sends only to its next part, the last one to the next stage."""

    def one(a: Placed, b: Placed) -> float:
        if a.part < spans[a.stage] - 1:
            follows = (b.stage, b.replica, b.part) == (a.stage, a.replica, a.part + 1)
            hidden = stages[a.stage].hidden.at(stages[a.stage].reach * batch) / (batch * replicas[a.stage])
            return hidden if follows else 0.0
        if as_printed:
            return 1.0
        after = stages[b.stage].hop.at(stages[b.stage].reach * batch) / batch
        pairs = replicas[a.stage] * replicas[b.stage]
        return after / pairs if b.stage == a.stage + 1 and b.part == 0 else 0.0

    return tuple(tuple(0.0 if a == b else one(a, b) for b in parts) for a in parts)
