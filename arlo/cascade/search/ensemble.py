"""The table of a cascade from its stages' answers, and whether mixing the answers pays.

An ensemble helps between equals only: with weights near a half an overconfident small model overturns a right large one
(Tabi Eq. 6). So it is enabled only if held-out rows prove a gain.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arlo.cascade.decide import Answers, Floats, Ints, mixed
from arlo.cascade.search.points import Interval, paired
from arlo.cascade.search.table import Table
from arlo.cascade.spec import NEVER, Ensemble, Rules, hard


def table_of(said: Sequence[Answers], truth: ArrayLike, cost: ArrayLike, ensemble: Ensemble | None = None) -> Table:
    """Rows by stages; `truth` [rows]: the right labels, or the last stage's answers where there are none; `cost`:
    [rows, stages] or [stages]. Column s is right when the mix of stages 0 to s is."""
    n, rows = len(said), len(said[0].answer)
    rules = Rules(prices=((hard(NEVER),) * (n - 1),), ensemble=ensemble or Ensemble())
    ran = np.zeros((rows, n), np.bool_)
    right = np.zeros((rows, n), np.bool_)
    for s in range(n):
        ran[:, s] = True
        right[:, s] = mixed(rules, said, ran) == np.asarray(truth)
    return Table.of(np.stack([each.confidence for each in said], axis=1), right, cost)


def printed_weights(said: Sequence[Answers], truth: ArrayLike, exits: Ints) -> tuple[float, ...]:
    """Each stage's accuracy on rows that escalate from the first one and run on it (Tabi section 4.3: the re-routed
    rows). Normalised, they give w = a_2 / (a_1 + a_2)."""
    y = np.asarray(truth)
    found = []
    for s, each in enumerate(said):
        mine = exits >= max(s, 1)
        found.append(max(float((each.answer == y)[mine].mean()) if mine.any() else 1.0, 1e-3))
    return tuple(found)


def fitted_weights(said: Sequence[Answers], truth: ArrayLike, exits: Ints) -> tuple[float, ...]:
    """The most likely weights of the calibrated probabilities, given the labels of the rows that run on all stages."""
    from scipy.optimize import minimize

    rows = exits == len(said) - 1
    y = np.asarray(truth)[rows]
    if not rows.any():
        return (1.0,) * len(said)
    picked = np.stack([each.calibrated[rows][np.arange(len(y)), y] for each in said], axis=1)

    def loss(x: Floats) -> float:
        w = np.exp(np.append(0.0, x))
        return float(-np.log(np.maximum(picked @ (w / w.sum()), 1e-12)).mean())

    x = minimize(loss, np.zeros(len(said) - 1), method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-8}).x
    w = np.exp(np.append(0.0, np.clip(x, -12, 12)))
    return tuple((w / w.sum()).tolist())


def choose(
    fit: tuple[Sequence[Answers], ArrayLike],
    select: tuple[Sequence[Answers], ArrayLike],
    thresholds: Floats,
) -> tuple[Ensemble, dict[str, Interval]]:
    """The ensemble whose whole interval of gain on the select split is above 0, else none; and all gains.

    `fit`, `select`: the stages' answers, and the truth; weights come from `fit`, at these thresholds [stages - 1].
    """
    costless = np.ones(len(fit[0]))
    exits = table_of(*fit, costless).exits(thresholds)
    candidates = {"fitted": Ensemble(kind="calibrated", weights=fitted_weights(*fit, exits))}
    for kind in ("calibrated", "raw"):
        candidates[kind] = Ensemble(kind=kind, weights=printed_weights(*fit, exits))
    said, truth = select
    plain = table_of(said, truth, costless)
    ends = plain.exits(thresholds)
    alone, _ = plain.at(ends)
    gains = {name: paired(table_of(said, truth, costless, e).at(ends)[0], alone) for name, e in candidates.items()}
    best = max(gains, key=lambda name: gains[name].mean)
    return (candidates[best] if gains[best].low > 0 else Ensemble()), gains


def spent(ran: NDArray[np.bool_], cost: ArrayLike) -> Floats:
    """Cost [rows] of rows that ran on these stages [rows, stages]."""
    return np.asarray((ran * np.broadcast_to(np.asarray(cost, np.float64), ran.shape)).sum(axis=1))
