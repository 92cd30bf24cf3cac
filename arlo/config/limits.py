"""The configuration section that bounds clients' use of the data port. See model.py."""

from __future__ import annotations

from arlo.config.field import option, section


@section("limits")
class LimitsConfig:
    """What clients may take of the data port. Above a limit the offender alone pays: its call ends, or its connection,
    and the gateway logs `client_over_limit`."""

    connections: int = option(
        default=10_000,
        doc="Connections of each port, and at most an equal part of the limit of open files. A further one takes the "
        "place of a silent or idle one, or of one whose client keeps a request or an answer waiting; where there is "
        "none it is refused.",
        minimum=1,
        maximum=1_000_000,
    )
    connection_memory_bytes: int = option(
        default=256 * 1024 * 1024,
        doc="What the calls of one connection may hold: requests, whole or not, and answers that the client has not "
        "taken. Four times gateway.max_message_bytes at least.",
        unit="bytes",
        minimum=0,
    )
    memory_bytes: int = option(
        default=1024 * 1024 * 1024,
        doc="What the calls of all connections may hold. Above three quarters of it no further request is taken "
        "from those that hold more than others; above it the call that holds most, of the connection that holds most, "
        "is given up.",
        unit="bytes",
        minimum=0,
    )
    body_timeout_ms: int = option(
        default=60_000,
        doc="For a request, from its headers to its last byte; on a stream for each message. Also for a client to take "
        "some of an answer.",
        unit="ms",
        minimum=10,
        maximum=3_600_000,
    )
    connection_age_ms: int = option(
        default=0,
        doc="Connections older than this are told to go, so that clients spread over gateways again; calls under way "
        "have gateway.drain_timeout_ms to end. 0: never.",
        unit="ms",
        minimum=0,
        maximum=2**31 - 1,
    )
