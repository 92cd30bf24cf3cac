"""Measured cells on the disk: a line is added for each, so a run that is stopped loses nothing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from arlo.errors import ConfigError
from benchmarks.gpu.plan import Cell

SCHEMA = "arlo.gpu-benchmark/1"
JOURNAL, RESULT = "cells.jsonl", "latency.json"
Record = dict[str, Any]


def cell_of(record: Record) -> Cell:
    """Which cell it is of."""
    return Cell(**{field.name: record[field.name] for field in dataclasses.fields(Cell)})


class Store:
    """The cells of one folder. `environment` names what times depend on: records of another one are not taken up."""

    def __init__(self, folder: Path, environment: str, *, resume: bool) -> None:
        self._folder = folder
        self._environment = environment
        self.records: dict[Cell, Record] = {}
        self.dropped = 0  # records of another environment
        folder.mkdir(parents=True, exist_ok=True)
        journal = folder / JOURNAL
        if not resume:
            journal.unlink(missing_ok=True)
        else:
            for record in [*_result(folder / RESULT), *_journal(journal)]:
                self._take(record)

    def _take(self, record: Record) -> None:
        if record.get("environment") != self._environment:
            self.dropped += 1
            return
        self.records[cell_of(record)] = record

    def add(self, cell: Cell, values: Record) -> None:
        """Keep a cell; it is on the disk when this returns."""
        record = {**dataclasses.asdict(cell), "environment": self._environment, **values}
        self.records[cell] = record
        with (self._folder / JOURNAL).open("a") as journal:
            journal.write(json.dumps(record) + "\n")

    @property
    def done(self) -> set[Cell]:
        """Cells with a time; those that failed are tried again."""
        return {cell for cell, record in self.records.items() if "whole" in record}

    def finish(self, header: Record) -> Path:
        """Write latency.json, whole or not at all, and drop the lines that it now holds."""
        cells = [self.records[cell] for cell in sorted(self.records)]
        path = write_result(self._folder, {"schema": SCHEMA, **header, "cells": cells})
        (self._folder / JOURNAL).unlink(missing_ok=True)
        return path


def write_result(folder: Path, result: Record) -> Path:
    """latency.json, a cell on each line."""
    cells = ",\n".join(json.dumps(record) for record in result["cells"])
    head = json.dumps({**result, "cells": []}, indent=1)
    text = head[: head.rindex("[]")] + f"[\n{cells}\n]\n}}\n"
    path = folder / RESULT
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)
    return path


def read_result(folder: Path) -> Record:
    """latency.json of a folder; ConfigError when there is none of this version."""
    path = folder / RESULT
    try:
        result: Record = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{folder} has no {RESULT}: measure first, with python -m benchmarks.gpu") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}): measure again with --no-resume") from None
    if not isinstance(result, dict) or result.get("schema") != SCHEMA:
        raise ConfigError(f"{path} is not of the form {SCHEMA}: measure again with --no-resume")
    return result


def _result(path: Path) -> list[Record]:
    return list(read_result(path.parent)["cells"]) if path.exists() else []


def _journal(path: Path) -> list[Record]:
    """Whole lines; the last one of a killed run may be half a line."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
            cell_of(record)
        except (ValueError, KeyError, TypeError):
            continue
        records.append(record)
    return records
