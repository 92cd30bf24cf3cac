"""What the gateway is started with: Config -> arlo.v1.GatewayConfig, as the JSON that `arlo-gateway --config` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import json_format

from arlo import proto
from arlo.config.model import Config
from arlo.errors import ConfigError


def gateway_message(config: Config, *, ready_file: Path | None = None) -> Any:
    """The arlo.v1.GatewayConfig of a configuration; ConfigError when a file that it names is missing."""
    gateway, dispatch, health = config.gateway, config.dispatch, config.health
    files = {}
    for key in ("tls_certificate_file", "tls_key_file", "tls_client_ca_file", "bearer_token_file"):
        path: Path | None = getattr(gateway, key)
        if path is not None and not path.is_file():
            raise ConfigError(f"gateway.{key}: {path} is not a file: make it, or leave the key out")
        files[key] = str(path) if path is not None else ""
    return proto.message("GatewayConfig")(
        grpc_address=gateway.grpc_address,
        http_address=gateway.http_address,
        admin_address=gateway.admin_address,
        tls=proto.message("TlsConfig")(
            certificate_file=files["tls_certificate_file"],
            key_file=files["tls_key_file"],
            client_ca_file=files["tls_client_ca_file"],
        ),
        bearer_token_file=files["bearer_token_file"],
        max_message_bytes=gateway.max_message_bytes,
        dispatch=proto.message("DispatchConfig")(
            **{"lambda": dispatch.lambda_},
            policy=dispatch.policy,
            alpha=dispatch.alpha,
            max_peek=dispatch.max_peek,
            max_queued=dispatch.max_queued,
        ),
        health=proto.message("HealthConfig")(
            interval_ms=health.interval_ms,
            timeout_ms=health.timeout_ms,
            failures=health.failures,
            retry_interval_ms=health.retry_interval_ms,
            silence_ms=health.silence_ms,
        ),
        max_attempts=dispatch.max_attempts,
        unavailable_grace_ms=dispatch.unavailable_grace_ms,
        drain_delay_ms=gateway.drain_delay_ms,
        drain_timeout_ms=gateway.drain_timeout_ms,
        max_rows=gateway.max_rows,
        log_level=gateway.log_level,
        ready_file=str(ready_file) if ready_file is not None else "",
        threads=gateway.threads,
    )


def gateway_json(config: Config, *, ready_file: Path | None = None) -> str:
    """The message as JSON with every field present, names as in config.proto."""
    message = gateway_message(config, ready_file=ready_file)
    return str(
        json_format.MessageToJson(message, always_print_fields_with_no_presence=True, preserving_proto_field_name=True)
    )
