"""The configuration sections for the gateway's ports, access to them, their limits, and traces. See model.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from arlo.config.field import FieldError, option, section

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@\"]+")


@section("gateway")
class GatewayConfig:
    """The gateway: the process that clients talk to."""

    managed: bool = option(
        default=True,
        doc="true: `arlo serve` starts and restarts it. false: one runs already, at admin_address (`arlo serve "
        "gateway`).",
    )
    several_models: bool = option(
        default=False,
        doc="true: the gateway serves other models beside this one, each kept by an `arlo serve` of its own with its "
        "own workers; clients ask for them by name.",
        relation="with managed = false",
    )
    grpc_address: str = option(
        default="127.0.0.1:8001",
        doc="Data port, the KServe v2 / Triton gRPC protocol. Port 0 picks a free one.",
        format="address",
    )
    api_address: str | None = option(
        default=None,
        doc="Port of the HTTP API, which takes text, as in OpenAI's `/v1/embeddings`. Port 0 picks a free one.",
        left_out="there is none",
        format="address",
    )
    aliases: dict[str, str] = option(factory=dict, doc='Further names of models: `{"ada" = "minilm"}` (docs/http.md).')
    auto_truncate: bool = option(
        default=False,
        doc="Texts over HTTP that are too long are cut where `truncate` is not said; else refused.",
    )
    http_address: str = option(
        default="127.0.0.1:8002", doc="Port of /metrics, /livez and /readyz. Port 0 picks a free one.", format="address"
    )
    admin_address: str = option(
        default="127.0.0.1:8003",
        doc="Admin port; it asks for no key. unix:PATH is a socket that only this user may open: take that where other "
        "users log in. A port is for loopback or a network of its own; port 0 picks a free one.",
        format="admin",
    )
    tls_certificate_file: Path | None = option(
        default=None,
        doc="PEM certificate chain of the data port and the HTTP API.",
        left_out="plain text",
        relation="with tls_key_file",
    )
    tls_key_file: Path | None = option(
        default=None, doc="PEM private key of both.", relation="with tls_certificate_file"
    )
    tls_client_ca_file: Path | None = option(
        default=None,
        doc="PEM certificates that client certificates are checked against (mTLS).",
        left_out="clients need none",
        relation="with tls_certificate_file",
    )
    bearer_token_file: Path | None = option(
        default=None,
        doc="File with the token that clients must send (`authorization: Bearer ...`).",
        left_out="none is asked for",
    )
    bulk_token_file: Path | None = option(
        default=None,
        doc="File with a second token: requests with it are of the class bulk, whatever they say, and wait for others.",
        left_out="there is none",
        relation="with bearer_token_file",
    )
    bulk_paths: tuple[str, ...] = option(
        default=(),
        doc="Paths whose requests are of the class bulk unless they say another `priority`, as "
        '`["/v1/embeddings"]`; one that ends in / is of all below it.',
    )
    max_message_bytes: int = option(
        default=64 * 1024 * 1024,
        doc="Largest request or response on the data port.",
        unit="bytes",
        minimum=1024,
        maximum=2**31 - 1,
    )
    max_body_bytes: int = option(
        default=32 * 1024 * 1024,
        doc="Largest body of a request over HTTP. `limits.memory_bytes` bounds all of them together.",
        unit="bytes",
        minimum=1024,
        maximum=2**31 - 1,
    )
    cors_origins: tuple[str, ...] = option(
        default=(),
        doc='Origins whose web pages may call the HTTP API in a browser (CORS): `["https://app.example"]`, or `["*"]` '
        "for any.",
    )
    max_rows: int = option(default=2048, doc="Rows in one client request.", unit="rows", minimum=1, maximum=65536)
    drain_delay_ms: int = option(
        default=1000,
        doc="After SIGTERM: how long the gateway says that it is not ready (/readyz, grpc.health.v1) and still serves, "
        "so that a load balancer sends elsewhere first: more than the time between two of its checks.",
        unit="ms",
        minimum=0,
        maximum=600_000,
    )
    drain_timeout_ms: int = option(
        default=30_000,
        doc="After that: how long running requests may take before the gateway stops all the same.",
        unit="ms",
        minimum=1,
        maximum=3_600_000,
    )
    hang_timeout_s: int = option(
        default=30,
        doc="A managed gateway that answers no call on its data port, over a new connection each time, for so long is "
        "killed and restarted.",
        unit="s",
        minimum=1,
        maximum=3600,
    )
    log_level: Literal["debug", "info", "warning", "error"] = option(
        default="info", doc="Least severe message that the gateway logs."
    )
    threads: int = option(
        default=0,
        doc="Threads of the data path; 0: one for each eight cores. One carries some tens of thousands of small "
        "requests a second.",
        minimum=0,
        maximum=256,
    )

    def check_relations(self) -> None:
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            given, missing = "tls_certificate_file", "tls_key_file"
            if self.tls_certificate_file is None:
                given, missing = missing, given
            raise FieldError("gateway", given, f"needs {missing} beside it")
        if self.tls_client_ca_file is not None and self.tls_certificate_file is None:
            raise FieldError("gateway", "tls_client_ca_file", "needs tls_certificate_file and tls_key_file beside it")
        if self.bulk_token_file is not None and self.bearer_token_file is None:
            raise FieldError("gateway", "bulk_token_file", "needs bearer_token_file beside it, which others send")
        if wrong := [path for path in self.bulk_paths if not path.startswith("/")]:
            raise FieldError("gateway", "bulk_paths", f"must be paths that begin with /, not {wrong[0]!r}")
        if wrong := [each for each in self.cors_origins if each != "*" and not _ORIGIN.fullmatch(each)]:
            raise FieldError(
                "gateway", "cors_origins", f"must be * or origins such as https://app.example, not {wrong[0]!r}"
            )
        if self.several_models and self.managed:
            raise FieldError(
                "gateway", "several_models", "needs managed = false: start the gateway with `arlo serve gateway`"
            )
        if not self.managed and self.admin_address.endswith(":0"):
            raise FieldError("gateway", "admin_address", "needs the port of the running gateway when managed = false")


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
    memory_bytes: int = option(
        default=1024 * 1024 * 1024,
        doc="What the calls of all connections may hold. Above three quarters of it no further request is taken "
        "from those that hold more than others; above it the call that holds most, of the connection that holds most, "
        "is given up.",
        unit="bytes",
        minimum=0,
    )
    connection_age_ms: int = option(
        default=0,
        doc="Connections older than this are closed (GOAWAY), so that clients spread over gateways again; calls "
        "under way have gateway.drain_timeout_ms to end. 0: never.",
        unit="ms",
        minimum=0,
        maximum=2**31 - 1,
    )


@section("tracing")
class TracingConfig:
    """Traces of requests, as spans for an OpenTelemetry collector. A client's `traceparent` goes on to workers in any
    case."""

    otlp_endpoint: str | None = option(
        default=None,
        doc="`http://host:port` or `https://host:port` of a collector that takes OTLP over HTTP, as JSON at "
        "/v1/traces; another path may follow. Headers and certificates are read from the variables "
        "`OTEL_EXPORTER_OTLP_HEADERS` and `OTEL_EXPORTER_OTLP_CERTIFICATE`.",
        left_out="`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT`, or else no spans are made",
    )
    sample: float = option(
        default=0.01,
        doc="Share of requests without a `traceparent` that begin a trace. Those with one are traced where it says "
        "that they are sampled.",
        minimum=0,
        maximum=1,
    )
