"""All three solvers on random problems: the same optimum, wherever it is proven."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arlo.planning.allocation.solve import SOLVERS
from benchmarks.solvers import answers, disagreements, random_problem


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9))
def test_solvers_agree(seed: int) -> None:
    found = answers(random_problem(seed), list(SOLVERS), limit_s=20)
    assert disagreements(found) == []
    assert all(getattr(answer, "optimal", False) for answer in found.values()), found
