"""The configuration section for the destination of traces. See model.py."""

from __future__ import annotations

from arlo.config.field import option, section


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
