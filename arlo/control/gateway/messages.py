"""Contract messages as plain values, for JSON output."""

from __future__ import annotations

from typing import Any


def to_dict(message: Any) -> dict[str, Any]:
    """A message as a dict: every field present, names as in the .proto, 64-bit integers as integers, enum values as
    lower-case words without their prefix (STATE_ACTIVE -> "active")."""
    result: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        result[field.name] = [_plain(field, item) for item in value] if field.is_repeated else _plain(field, value)
    return result


def _plain(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return to_dict(value)
    if field.enum_type is not None:
        name = field.enum_type.values_by_number[value].name
        return name.split("_", 1)[1].lower()
    return value
