"""Options of all tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden", action="store_true", help="write what the program does now as what tests/golden expects"
    )


@pytest.fixture
def rewrite_golden(request: pytest.FixtureRequest) -> bool:
    """True when golden files are to be rewritten instead of compared."""
    return bool(request.config.getoption("--rewrite-golden"))
