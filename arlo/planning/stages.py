"""Divides workers among the stages of a cascade by the rule of HybridServe. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from arlo.errors import ConfigError


def proportional(reach: Sequence[float], latency: Sequence[float], workers: int) -> tuple[int, ...]:
    """Workers R_s in proportion to rho_s l_s (HybridServe section V-C).

    Rounding as printed need not sum to the workers: here each stage gets at least one, the rest goes by largest
    remainder, ties to the earlier stage. ConfigError when there is not one for each.
    """
    if len(reach) > workers:
        raise ConfigError(f"{workers} workers are too few for one of each of {len(reach)} stages")
    weights = [r * t for r, t in zip(reach, latency, strict=True)]
    shares = [w * workers / sum(weights) for w in weights]
    found = [max(1, math.floor(share)) for share in shares]
    while sum(found) != workers:
        if (
            sum(found) > workers
        ):  # one for each stage took more than there is: take workers from the stage that is furthest above its share
            over = [i for i, count in enumerate(found) if count > 1]
            found[max(over, key=lambda i: (found[i] - shares[i], -i))] -= 1
        else:
            found[max(range(len(found)), key=lambda i: (shares[i] - found[i], -i))] += 1
    return tuple(found)
