"""The gateway's settings: Config -> arlo.v1.GatewayConfig, as the JSON that `arlo-gateway --config` reads."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from arlo import proto
from arlo.config.load import toml_key
from arlo.config.model import Config
from arlo.errors import ConfigError

# Settings of the gateway that users have no reason to change.
DISPATCH = {"max_attempts": 3}  # times one row may be sent to a worker; it is resent if its worker died
HEALTH = {
    # An instance that holds rows and answers none for this long is ejected even if its checks pass: its engine hangs.
    # Never below 20 times the predicted time of its largest batch.
    "silence_ms": 10_000,
    "retry_interval_ms": 250,  # between checks of an ejected or joining instance; bounds how soon it comes back
}
TRACING = {"queue": 4096}  # spans waiting for the collector; a request has three, and one per row, up to eight
LIMITS = {
    "streams": 2048,  # open calls per connection; clients hold back further ones by themselves
    "header_bytes": 16 * 1024,  # headers (metadata) of one call, plus 32 for each
    # Calls that one connection may open and reset at once within 10 s, if most of its calls are reset; ten resets
    # within 10 ms count as one. Above it the gateway asks the client to take another connection, and open calls end as
    # usual; above twice as many it closes the connection.
    "resets": 1000,
    "pings": 1000,  # PING and SETTINGS frames of one connection within 10 s
    # Frames of one connection within 10 s that carry nothing: DATA without bytes, PRIORITY, unknown ones, and
    # WINDOW_UPDATE above ten for each frame of an answer.
    "empty_frames": 1000,
    # For a request, from its headers to its last byte; on a stream for each message. Also for a client to take some of
    # an answer.
    "body_timeout_ms": 60_000,
    # What the calls of one connection may hold: requests, whole or not, and answers that the client has not taken. Four
    # times gateway.max_message_bytes at least.
    "connection_memory_bytes": 256 * 1024 * 1024,
    "preface_timeout_ms": 10_000,  # for TLS and the connection preface, over HTTP for its first request
    "header_timeout_ms": 10_000,  # for the headers of a call, from the first byte to the last
    "ping_after_ms": 120_000,  # a silent connection is pinged after this time; closed after as long again
}


def gateway_message(config: Config, *, ready_file: Path | None = None) -> Any:
    """The arlo.v1.GatewayConfig of a configuration; ConfigError if a file that it names is missing.

    A field has the name of its key, or of a constant above. The gateway rejects a message without all of them.
    """
    files = {}
    for key in ("tls_certificate_file", "tls_key_file", "tls_client_ca_file", "bearer_token_file", "bulk_token_file"):
        path: Path | None = getattr(config.gateway, key)
        if path is not None and not path.is_file():
            raise ConfigError(f"gateway.{key}: {path} is not a file: make it, or leave the key out")
        files[key.removeprefix("tls_")] = str(path) if path is not None else ""
    made = {
        "tls": _filled("TlsConfig", files),
        "dispatch": _filled("DispatchConfig", _values(config.dispatch) | {"batching": _batching(config)}),
        "limits": _filled("LimitsConfig", _values(config.limits) | LIMITS),
        "tracing": _filled(
            "TracingConfig", _values(config.tracing) | TRACING | {"otlp_endpoint": config.tracing.otlp_endpoint or ""}
        ),
        "health": _filled("HealthConfig", _values(config.health) | HEALTH),
        # The gateway finds the package with this interpreter. Another one may be given by hand.
        "text_helpers": 2,  # for tokenizers other than WordPiece; they start with the first such text
        "text_command": [sys.executable, "-P", "-m", "arlo.front.helper"],
        "ready_file": str(ready_file) if ready_file is not None else "",
    }
    return _filled(
        "GatewayConfig", {**_values(config.dispatch), **DISPATCH, **_values(config.gateway), **files, **made}
    )


def _batching(config: Config) -> str:
    """The batching that the gateway's scheduler does, without knowledge of a worker's own batches."""
    return "one" if config.dispatch.batching == "worker" else config.dispatch.batching


def _values(section: Any) -> dict[str, Any]:
    return {toml_key(field.name): getattr(section, field.name) for field in dataclasses.fields(section)}


def _filled(message: str, values: Mapping[str, Any]) -> Any:
    """The message with each of its fields set. KeyError: one of its fields has no declared key."""
    kind = proto.message(message)
    return kind(**{field.name: values[field.name] for field in kind.DESCRIPTOR.fields})


def gateway_json(config: Config, *, ready_file: Path | None = None) -> str:
    """The message as JSON with every field present, names as in config.proto."""
    message = gateway_message(config, ready_file=ready_file)
    return str(
        json_format.MessageToJson(message, always_print_fields_with_no_presence=True, preserving_proto_field_name=True)
    )
