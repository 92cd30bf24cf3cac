"""Structured logs: one event per line, for people by default, as JSON lines on request.

An event is a standard log record with a name and fields: `emit(log, "worker_restarted", worker="w0", restarts=2)`.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import queue
import sys
import threading
import traceback
from typing import Any, TextIO

ROOT = "arlo"
WARNING = logging.WARNING
KEPT_LINES = 10_000  # lines kept while the log is not read
FLUSH_S = 1.0  # at the end of the process


def emit(log: logging.Logger, event: str, /, *, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event. Field values must be JSON-serialisable; others are written with str()."""
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


class BackgroundHandler(logging.Handler):
    """Writes lines to a descriptor in a separate thread, so that a reader that stops reading blocks nothing else.

    Lines that find KEPT_LINES waiting are dropped; their number is logged as soon as there is a reader again.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[str | threading.Event] = queue.Queue(KEPT_LINES)
        self._dropped = 0
        threading.Thread(target=self._write, name="log", daemon=True).start()
        atexit.register(self.flush)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record without ever waiting."""
        try:
            if self._dropped:
                self._report_dropped(record)
            self._lines.put_nowait(self.format(record) + "\n")
        except queue.Full:
            self._dropped += 1
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Wait at most FLUSH_S until everything logged so far is written."""
        written = threading.Event()
        try:
            self._lines.put_nowait(written)
        except queue.Full:
            return
        written.wait(FLUSH_S)

    def _report_dropped(self, record: logging.LogRecord) -> None:
        values = record.__dict__ | {
            "levelno": logging.WARNING,
            "levelname": "WARNING",
            "msg": "log_lines_dropped",
            "args": (),
            "exc_info": None,
            "event": "log_lines_dropped",
            "fields": {"lines": self._dropped, "why": "the reader of this log did not read, or its disk was full"},
        }
        self._lines.put_nowait(self.format(logging.makeLogRecord(values)) + "\n")
        self._dropped = 0

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            if isinstance(line, threading.Event):
                line.set()
                continue
            left = line.encode(errors="replace")
            try:
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError:  # a full disk, a pipe that another process made non-blocking; logged when a line is written
                self._dropped += 1


def configure(*, as_json: bool = False, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send the output of the `arlo` loggers to `stream` (standard error by default). Called by the CLI only.

    Standard error is written in the background, so `arlo serve` keeps running when its log is not read.
    """
    root = logging.getLogger(ROOT)
    for old in list(root.handlers):
        root.removeHandler(old)
    handler: logging.Handler
    try:
        handler = BackgroundHandler(sys.stderr.fileno()) if stream is None else logging.StreamHandler(stream)
    except (OSError, ValueError, AttributeError):  # not a file
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else HumanFormatter())
    root.addHandler(handler)
    root.setLevel(level)
    root.propagate = False
