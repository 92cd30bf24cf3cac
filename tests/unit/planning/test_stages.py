"""Workers among the stages of a cascade."""

from __future__ import annotations

import pytest

from arlo.errors import ConfigError
from arlo.planning.stages import proportional


def test_the_proportional_rule() -> None:
    assert proportional((1, 0.404, 0.353, 0.171), (3, 6, 10, 24), 16) == (4, 3, 4, 5)
    assert proportional((1, 0.001), (1, 1), 5) == (4, 1)
    with pytest.raises(ConfigError, match="too few"):
        proportional((1, 1), (1, 1), 1)
