"""Options of all tests."""

from __future__ import annotations

import os
import signal

import hypothesis
import pytest

# Before torch is imported, and for the processes that tests start: on tiny models threads spin more than they compute.
# A worker's Triton gets as many as its configuration says.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples in every run, here and in CI. `make test-new` draws new ones, with a seed that it prints.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("new", derandomize=False, deadline=None, print_blob=True)
hypothesis.settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden", action="store_true", help="write what the program does now as what tests/golden expects"
    )


@pytest.fixture
def rewrite_golden(request: pytest.FixtureRequest) -> bool:
    """True when golden files are to be rewritten instead of compared."""
    return bool(request.config.getoption("--rewrite-golden"))


def pytest_configure() -> None:
    """A run in the background of a shell ignores SIGINT, and so would every program that a test interrupts."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
