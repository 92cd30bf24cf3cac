"""Both kinds of client, and a real gRPC server that they talk to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.client_twins import KINDS, Twin
from tests.fakes.kserve_server import KServeServer


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server() -> Iterator[KServeServer]:
    with KServeServer() as running:
        yield running


@pytest.fixture
def client(kind: str, server: KServeServer) -> Iterator[Twin]:
    with Twin(kind, server.endpoint) as twin:
        yield twin
