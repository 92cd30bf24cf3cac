"""The exact solver of flows: C++ (src/solve/flow), proven optimal."""

from __future__ import annotations

import math

from arlo import _core
from arlo.planning.flows.problem import Answer, FlowProblem

MAX_NODES = 20_000
GAP = 1e-4  # accuracy: a hundredth of a point, finer than any profile; also Gurobi's default


class ExactFlowSolver:
    """Branch and bound over the instances of pools; its bound is the program with fractional instances.

    A plan is optimal when no other one can be better by more than `gap`. After `max_nodes` the result is the best plan
    so far, with `optimal` False and the remaining bound.
    """

    name = "exact"

    def __init__(self, max_nodes: int = MAX_NODES, gap: float = GAP) -> None:
        self.max_nodes, self.gap = max_nodes, gap

    def solve(
        self, problem: FlowProblem, *, served: float = 1.0, served_only: bool = False, target: float = math.inf
    ) -> Answer | None:
        """Solve a program; see FlowSolver."""
        stages = [
            (
                stage.parent,
                stage.variants,
                stage.weight,
                stage.limit_s * (1 + 1e-12),
                [problem.demand] if stage.parent < 0 else list(stage.factor),
                list(stage.exit),
                list(stage.accuracy),
                [
                    (
                        option.variant,
                        option.work_s / problem.utilisation,
                        option.latency_s,
                        problem.joule * option.work_s * option.watts / problem.demand,
                    )
                    for option in stage.options
                ],
            )
            for stage in problem.stages
        ]
        instances, mixes, value, got, relaxed, bound, price, optimal, _ = _core.plan_flow(
            problem.workers,
            stages,
            min(served, 1.0),
            served_only,
            problem.single_batch,
            target,
            self.gap,
            self.max_nodes,
            problem.held,
            problem.unserved,
        )
        if not instances or (target < math.inf and value < target - 1e-8):
            return None
        accuracy = math.fsum(share * problem.accuracy(policy) for policy, share in mixes)
        return Answer(
            instances=tuple(map(tuple, instances)),
            mixes=tuple((tuple(policy), share) for policy, share in mixes),
            accuracy=accuracy,
            served=min(got, served),
            relaxed=relaxed,
            bound=bound,
            price=price,
            optimal=optimal,
        )
