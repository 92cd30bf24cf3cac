"""What the gateway is started with: Config -> arlo.v1.GatewayConfig, as the JSON that `arlo-gateway --config` reads."""

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


def gateway_message(config: Config, *, ready_file: Path | None = None) -> Any:
    """The arlo.v1.GatewayConfig of a configuration; ConfigError when a file that it names is missing.

    A field has the name of its key. The gateway refuses a message without all of them.
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
        "limits": _filled("LimitsConfig", _values(config.limits)),
        "tracing": _filled(
            "TracingConfig", _values(config.tracing) | {"otlp_endpoint": config.tracing.otlp_endpoint or ""}
        ),
        "health": _filled("HealthConfig", _values(config.health)),
        # As the gateway finds the package: with this interpreter. It may be given another one by hand.
        "text_command": [sys.executable, "-P", "-m", "arlo.front.helper"],
        "ready_file": str(ready_file) if ready_file is not None else "",
    }
    return _filled("GatewayConfig", {**_values(config.dispatch), **_values(config.gateway), **files, **made})


def _batching(config: Config) -> str:
    """What the gateway's scheduler does, which knows nothing of a worker's own batches."""
    return "one" if config.dispatch.batching == "worker" else config.dispatch.batching


def _values(section: Any) -> dict[str, Any]:
    return {toml_key(field.name): getattr(section, field.name) for field in dataclasses.fields(section)}


def _filled(message: str, values: Mapping[str, Any]) -> Any:
    """The message with each of its fields set. KeyError: it has one that no key is declared for."""
    kind = proto.message(message)
    return kind(**{field.name: values[field.name] for field in kind.DESCRIPTOR.fields})


def gateway_json(config: Config, *, ready_file: Path | None = None) -> str:
    """The message as JSON with every field present, names as in config.proto."""
    message = gateway_message(config, ready_file=ready_file)
    return str(
        json_format.MessageToJson(message, always_print_fields_with_no_presence=True, preserving_proto_field_name=True)
    )
