"""Several instances on a device: which go where (HybridServe section V, Eq. 2-4, Algorithm 3). Pure.

    min  sum over pairs i < j and devices g, g' of  flow_ij T(g, g') x_i^g x_j^g'     (2, 3)
    s.t. every instance on exactly one device
         sum_i memory_i x_i^g <= memory^g
         sum_i u_i x_i^g <= cap                                                        (4)

The paper sums over ordered pairs and weighs all alike, whether they talk or not: so it is without a flow, each pair
counted twice. Else a pair is weighted by the rows that go from one stage to the other. Products of binaries become
y >= x + x' - 1.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from arlo.errors import ConfigError
from arlo.planning.allocation.bounds import SolverMissing
from arlo.planning.allocation.rows import Program

CAP = 0.9  # of a device's time
_TIME_LIMIT_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """Of a stage, with what it takes of its device."""

    stage: int
    memory_mb: float
    busy: float  # share of the time in kernels: rows per ms x ms of a row


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """A GPU. Devices of one host are near each other."""

    memory_mb: float
    host: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Packing:
    """Device of each instance, and the value of Eq. 2."""

    device: tuple[int, ...]
    transfer: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PackingProblem:
    """What is to be packed. `transfer` [devices][devices]: cost of a row from one to the other, 0 within; `flow`
    [stages][stages]: rows that go from one stage to the other; None: as the paper counts."""

    instances: tuple[Instance, ...]
    devices: tuple[Device, ...]
    transfer: tuple[tuple[float, ...], ...]
    flow: tuple[tuple[float, ...], ...] | None = None
    cap: float = CAP

    def weight(self, i: int, j: int) -> float:
        """Of a pair of instances."""
        if self.flow is None:
            return 1.0
        return self.flow[self.instances[i].stage][self.instances[j].stage]

    def value(self, device: Sequence[int]) -> float:
        """Eq. 2 of a placement: over ordered pairs."""
        pairs = itertools.permutations(range(len(self.instances)), 2)
        return sum(self.weight(i, j) * self.transfer[device[i]][device[j]] for i, j in pairs)

    def holds(self, device: Sequence[int]) -> bool:
        """Whether memory and time suffice on every device."""
        for g, each in enumerate(self.devices):
            mine = [i for i, at in zip(self.instances, device, strict=True) if at == g]
            if sum(i.memory_mb for i in mine) > each.memory_mb or sum(i.busy for i in mine) > self.cap + 1e-9:
                return False
        return True


def transfers(devices: Sequence[Device], *, near: float, far: float) -> tuple[tuple[float, ...], ...]:
    """Cost of a row between devices: 0 on one, `near` within a host (copied by DMA), `far` over the network."""
    return tuple(
        tuple(0.0 if a == b else near if x.host == y.host else far for b, y in enumerate(devices))
        for a, x in enumerate(devices)
    )


def pack(problem: PackingProblem) -> Packing | None:
    """The packing of least transfer, by HiGHS; None where nothing fits. SolverMissing without its package."""
    try:
        import highspy
    except ImportError:
        raise SolverMissing("packing needs the solver highs: pip install 'arlo-serve[highs]'") from None
    if not _could_fit(problem):
        return None
    program = Program()
    count, devices = len(problem.instances), range(len(problem.devices))
    x = [[program.column(0.0, 1.0, integer=True) for _ in devices] for _ in range(count)]
    # How much is left over: 0 where everything fits. So a program that cannot hold is solved, not refused.
    over = [program.column(0.0, math.inf, cost=_PENALTY) for _ in devices]
    for row in x:
        program.row(1.0, [(column, 1.0) for column in row], 1.0)
    for g in devices:
        memory = problem.devices[g].memory_mb
        weights = [(x[i][g], each.memory_mb / max(memory, 1e-9)) for i, each in enumerate(problem.instances)]
        program.row(-math.inf, [*weights, (over[g], -1.0)], 1.0)
        busy = [(x[i][g], each.busy / problem.cap) for i, each in enumerate(problem.instances)]
        program.row(-math.inf, [*busy, (over[g], -1.0)], 1.0)
    top = max((abs(t) for row in problem.transfer for t in row), default=0.0) or 1.0
    for i, j in itertools.combinations(range(count), 2):
        for g, h in itertools.product(devices, devices):
            cost = problem.weight(i, j) * problem.transfer[g][h] + problem.weight(j, i) * problem.transfer[h][g]
            if cost > 0:
                both = program.column(0.0, 1.0, cost=cost / top)
                program.row(-1.0, [(both, 1.0), (x[i][g], -1.0), (x[j][h], -1.0)])
    solved = program.solve(highspy, gap=1e-9, start={}, time_limit_s=_TIME_LIMIT_S)
    if solved is None:
        return None
    placed = tuple(max(devices, key=lambda g: solved.values[x[i][g]]) for i in range(count))
    return Packing(placed, problem.value(placed)) if problem.holds(placed) else None


_PENALTY = 1e4  # for a device that is too full, in the unit of the largest transfer


def _could_fit(problem: PackingProblem) -> bool:
    """What all need against what there is (Algorithm 3 compares R rho l with bytes, which is meant to be this)."""
    memory = sum(each.memory_mb for each in problem.instances) <= sum(each.memory_mb for each in problem.devices)
    return memory and sum(each.busy for each in problem.instances) <= problem.cap * len(problem.devices) + 1e-9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageNeeds:
    """One stage: share of rows that reach it, ms of a row on one device, MB of an instance."""

    reach: float
    ms: float
    memory_mb: float


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Replicas of each stage, rows per ms that the slowest stage carries, and where instances are, stage by stage."""

    replicas: tuple[int, ...]
    rate: float
    packing: Packing


def plan(
    stages: Sequence[StageNeeds],
    devices: Sequence[Device],
    *,
    rate: float,
    transfer: tuple[tuple[float, ...], ...],
    flow: tuple[tuple[float, ...], ...] | None = None,
    most: int = 8,
    cap: float = CAP,
) -> Plan | None:
    """Algorithm 3, one device a replica: all numbers of replicas, from those that carry most; of what fits, the largest
    min_s R_s / (l_s rho_s), ties to the least transfer. Replicas of a stage share its `rate` (rows per ms) alike. None
    where nothing carries it. Replicas over several devices (S > 1) are for the simulator."""
    if rate <= 0 or any(each.ms <= 0 or each.reach < 0 for each in stages):
        raise ConfigError("rate and times of stages must be above 0")
    best: Plan | None = None
    for carried, replicas in _by_rate(stages, most):
        if best is not None and carried < best.rate - 1e-12:
            break
        instances = tuple(
            Instance(s, each.memory_mb, rate * each.reach * each.ms / r)
            for s, (each, r) in enumerate(zip(stages, replicas, strict=True))
            for _ in range(r)
        )
        problem = PackingProblem(instances=instances, devices=tuple(devices), transfer=transfer, flow=flow, cap=cap)
        found = pack(problem) if carried * cap >= rate - 1e-12 else None
        if found is not None and (best is None or found.transfer < best.packing.transfer):
            best = Plan(replicas, carried, found)
    return best


def _by_rate(stages: Sequence[StageNeeds], most: int) -> Iterator[tuple[float, tuple[int, ...]]]:
    """(rows per ms that they carry, replicas), the largest first, then the fewest instances."""

    def carried(replicas: tuple[int, ...]) -> float:
        pairs = zip(stages, replicas, strict=True)
        return min((r / (each.ms * each.reach) for each, r in pairs if each.reach > 0), default=math.inf)

    every = itertools.product(range(1, most + 1), repeat=len(stages))
    yield from sorted(((carried(r), r) for r in every), key=lambda found: (-found[0], sum(found[1]), found[1]))
