"""How to replay a trace."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from arlo.client import TLS, Client
from arlo.errors import ConfigError

CONNECT_S = 10.0  # how long the target may take to accept connections
DEFAULT_LONGEST = 512  # tokens, where the target does not say


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How to replay a trace. ConfigError says which value is wrong.

    endpoint: host:port of any KServe v2 gRPC service. model: None takes the only one there. tokenizer: a
    tokenizer.json or its folder, for real text; None sends random ids below `vocabulary`. slo_ms: the longest latency
    that is on time. timeout_ms: when the client gives up, counted from the scheduled instant; 0: never; None: ten
    times the SLO, at least a second, the gateway's default for clients that set none. speed: 2.0 is twice as fast.
    late_ms: sends later than this are counted. drain_s: how long to wait for answers after the last send.
    warmup: requests before the start, unrecorded. channels: connections to the target.
    keep_responses: 0 keeps none, n keeps the outputs of every n-th request.
    """

    endpoint: str
    model: str | None = None
    tokenizer: Path | None = None
    vocabulary: int = 30_000
    seed: int = 0
    slo_ms: float = 150.0
    timeout_ms: float | None = None
    speed: float = 1.0
    late_ms: float = 5.0
    drain_s: float = 60.0
    warmup: int = 8
    channels: int = 4
    keep_responses: int = 0
    tls: TLS | None = None
    token: str | None = dataclasses.field(default=None, repr=False)

    @property
    def gives_up_ms(self) -> float:
        """timeout_ms, or its default."""
        return max(10 * self.slo_ms, 1000.0) if self.timeout_ms is None else self.timeout_ms

    def __post_init__(self) -> None:
        for name, least in (("slo_ms", 0.001), ("speed", 0.001), ("vocabulary", 2), ("channels", 1)):
            if not getattr(self, name) >= least:
                raise ConfigError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("late_ms", "drain_s", "warmup", "keep_responses"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if not self.gives_up_ms >= 0:
            raise ConfigError(f"timeout_ms must be 0 or more, not {self.timeout_ms}")

    def client(self, **changes: Any) -> Client:
        """A client of the target, for requests outside the load."""
        connection: dict[str, Any] = {"timeout_s": CONNECT_S, "retries": 0, **changes}
        return Client(self.endpoint, model=self.model, tls=self.tls, token=self.token, **connection)
