"""Placement of instances on devices, several per device (HybridServe section V, Eq. 2-4). Pure.

    min  sum over pairs i < j and devices g, g' of  flow_ij T(g, g') x_i^g x_j^g'     (2, 3)
    s.t. every instance on exactly one device
         sum_i memory_i x_i^g <= memory^g
         sum_i u_i x_i^g <= cap                                                        (4)

The paper sums over ordered pairs and weights all alike, whether or not they communicate; without a flow, so does this,
counting each pair twice. With a flow, a pair's weight is its traffic. Products of binaries become y >= x + x' - 1.
Algorithm 3 (benchmarks.papers.hybridserve.replicas) finds the number of instances and their batches.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

from arlo.planning.allocation.bounds import SolverMissing
from benchmarks.papers.rows import Program

CAP = 0.9  # of a device's time
_TIME_LIMIT_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """An instance of a stage, with its use of its device."""

    stage: int  # its row of PackingProblem.flow
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
    """The problem to solve. `transfer` [devices][devices]: cost of a row from one to the other, 0 within; `flow`
    [stages][stages]: traffic from an instance of the one to one of the other; None: 1 each, as the paper counts."""

    instances: tuple[Instance, ...]
    devices: tuple[Device, ...]
    transfer: tuple[tuple[float, ...], ...]
    flow: tuple[tuple[float, ...], ...] | None = None
    cap: float = CAP

    def weight(self, i: int, j: int) -> float:
        """The weight of a pair of instances."""
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
        raise SolverMissing("packing needs the solver highs: pip install highspy") from None
    if not fits(problem):
        return None
    program, x = _program(problem)
    count, devices = len(problem.instances), range(len(problem.devices))
    top = max((abs(t) for row in problem.transfer for t in row), default=0.0) or 1.0
    for i, j in itertools.combinations(range(count), 2):
        for g, h in itertools.product(devices, devices):
            cost = problem.weight(i, j) * problem.transfer[g][h] + problem.weight(j, i) * problem.transfer[h][g]
            if cost > 0:
                both = program.column(0.0, 1.0, cost=cost / top)
                program.row(-1.0, [(both, 1.0), (x[i][g], -1.0), (x[j][h], -1.0)])
    placed = _solved(problem, program, x, highspy)
    return None if placed is None else Packing(placed, problem.value(placed))


def fits(problem: PackingProblem) -> bool:
    """Whether any packing exists: first-fit decreasing finds one quickly; if it fails, HiGHS decides. SolverMissing
    without its package."""
    if not _could_fit(problem):
        return False
    largest = max(each.memory_mb for each in problem.devices)
    order = sorted(problem.instances, key=lambda each: -max(each.memory_mb / largest, each.busy / problem.cap))
    memory, busy = [each.memory_mb for each in problem.devices], [problem.cap + 1e-9] * len(problem.devices)
    for each in order:
        free = (g for g in range(len(memory)) if each.memory_mb <= memory[g] and each.busy <= busy[g])
        g = next(free, None)
        if g is None:
            break
        memory[g] -= each.memory_mb
        busy[g] -= each.busy
    else:
        return True
    try:
        import highspy
    except ImportError:
        raise SolverMissing("packing needs the solver highs: pip install highspy") from None
    program, x = _program(problem)
    return _solved(problem, program, x, highspy) is not None


def _program(problem: PackingProblem) -> tuple[Program, list[list[int]]]:
    """Eq. 3 and 4, and x [instances][devices]."""
    program, devices = Program(), range(len(problem.devices))
    x = [[program.column(0.0, 1.0, integer=True) for _ in devices] for _ in problem.instances]
    # The excess: 0 if everything fits. So an infeasible packing still has a solution.
    over = [program.column(0.0, math.inf, cost=_PENALTY) for _ in devices]
    for row in x:
        program.row(1.0, [(column, 1.0) for column in row], 1.0)
    for g in devices:
        memory = problem.devices[g].memory_mb
        weights = [(x[i][g], each.memory_mb / max(memory, 1e-9)) for i, each in enumerate(problem.instances)]
        program.row(-math.inf, [*weights, (over[g], -1.0)], 1.0)
        busy = [(x[i][g], each.busy / problem.cap) for i, each in enumerate(problem.instances)]
        program.row(-math.inf, [*busy, (over[g], -1.0)], 1.0)
    return program, x


def _solved(problem: PackingProblem, program: Program, x: list[list[int]], highspy: Any) -> tuple[int, ...] | None:
    """Device of each instance; None if they do not fit, or time ran out."""
    solved = program.solve(highspy, gap=1e-9, start={}, time_limit_s=_TIME_LIMIT_S)
    if solved is None:
        return None
    placed = tuple(max(range(len(row)), key=lambda g: solved.values[row[g]]) for row in x)
    return placed if problem.holds(placed) else None


_PENALTY = 1e4  # for a device that is too full, in the unit of the largest transfer


def _could_fit(problem: PackingProblem) -> bool:
    """Compare total need with total supply (the intent of Algorithm 3, which compares R rho l with bytes)."""
    instances, devices = problem.instances, problem.devices
    memory = sum(each.memory_mb for each in instances) <= sum(each.memory_mb for each in devices)
    one = max(each.memory_mb for each in instances) <= max(each.memory_mb for each in devices)
    busy = max(each.busy for each in instances) <= problem.cap + 1e-9
    return memory and one and busy and sum(each.busy for each in instances) <= problem.cap * len(devices) + 1e-9
