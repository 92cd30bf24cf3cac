"""Structured logs: one event per line, for people by default, as JSON lines on request.

An event is a standard log record with a name and fields: `emit(log, "worker_restarted", worker="w0", restarts=2)`.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from typing import Any, TextIO

ROOT = "arlo"
WARNING = logging.WARNING


def emit(log: logging.Logger, event: str, /, *, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event. Field values must be what JSON can carry; others are written with str()."""
    if log.isEnabledFor(level):
        log.log(level, event, extra={"event": event, "fields": fields})


class HumanFormatter(logging.Formatter):
    """`12:34:56 worker_restarted worker=w0 restarts=2`; the severity is named from warning up."""

    default_msec_format = None

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        parts = [self.formatTime(record, "%H:%M:%S")]
        if record.levelno >= logging.WARNING:
            parts.append(record.levelname.lower() + ":")
        parts.append(record.getMessage())
        parts.extend(f"{key}={_short(value)}" for key, value in fields.items())
        return " ".join(parts) + _trace(record)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ts (Unix seconds), level, logger, event or message, and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if hasattr(record, "event"):
            line["event"] = record.event
            line.update(getattr(record, "fields", {}))
        else:
            line["message"] = record.getMessage()
        if trace := _trace(record):
            line["trace"] = trace.strip()
        return json.dumps(line, default=str)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return json.dumps(text) if isinstance(value, str) and (not text or " " in text or '"' in text) else text


def _trace(record: logging.LogRecord) -> str:
    return "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip() if record.exc_info else ""


def configure(*, as_json: bool = False, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send what the `arlo` loggers say to `stream` (standard error by default). Called by the CLI only."""
    root = logging.getLogger(ROOT)
    for old in list(root.handlers):
        root.removeHandler(old)
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else HumanFormatter())
    root.addHandler(handler)
    root.setLevel(level)
    root.propagate = False
