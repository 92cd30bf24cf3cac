"""Structured logs: a reader that stops reading stops nobody."""

from __future__ import annotations

import json
import logging
import os
import threading
from typing import IO

from arlo.control import events
from arlo.control.events import BackgroundHandler, JsonFormatter, emit


def record(number: int) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"msg": "line", "levelno": logging.INFO, "event": "line", "fields": {"number": number, "text": "x" * 100}}
    )


def read_lines(file: IO[bytes], count: int) -> list[dict[str, object]]:
    return [json.loads(file.readline()) for _ in range(count)]


def test_a_log_that_is_not_read_does_not_block_who_logs() -> None:
    read_end, writer = os.pipe()
    reader = os.fdopen(read_end, "rb")
    handler = BackgroundHandler(writer)
    handler.setFormatter(JsonFormatter())
    wanted = events.KEPT_LINES + 5000  # far more than the pipe (64 KiB) and the queue hold

    def log_all() -> None:
        for number in range(wanted):
            handler.emit(record(number))

    logging_thread = threading.Thread(target=log_all, daemon=True)
    logging_thread.start()
    logging_thread.join(30)
    assert not logging_thread.is_alive()

    # Once it is read again the first lines are there, in order, and where some are missing a line says how many.
    first = read_lines(reader, 1000)
    assert [line["number"] for line in first] == list(range(1000))
    handler.emit(record(-1))
    kept: list[dict[str, object]] = []
    while not kept or kept[-1].get("number") != -1:
        kept += read_lines(reader, 1)
    dropped = [int(str(line["lines"])) for line in kept if line["event"] == "log_lines_dropped"]
    assert dropped
    assert 1000 + len(kept) - 1 - len(dropped) + sum(dropped) == wanted
    handler.flush()
    reader.close()


def test_what_was_logged_is_written_at_the_end() -> None:
    read_end, writer = os.pipe()
    reader = os.fdopen(read_end, "rb")
    handler = BackgroundHandler(writer)
    handler.setFormatter(JsonFormatter())
    log = logging.getLogger("arlo.test_events")
    log.propagate = False
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        emit(log, "last_words", number=7)
    finally:
        log.removeHandler(handler)
    handler.flush()
    assert read_lines(reader, 1)[0]["event"] == "last_words"
    reader.close()
    os.close(writer)
