"""Measures the cells of a plan, visit by visit, and keeps each one as it comes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from arlo.clock import monotonic_s, unix_s
from benchmarks.gpu.contenders.base import Call, Contender, Embeddings, Opened, forget
from benchmarks.gpu.machine import Machine, Watch
from benchmarks.gpu.measure import Measured, agreement, take_turns
from benchmarks.gpu.options import Options
from benchmarks.gpu.plan import TIERS, Cell, Visit, plan
from benchmarks.gpu.store import Record, Store
from benchmarks.gpu.subject import Subject

LEAST_COSINE = {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.99}
_SAY_EVERY_S = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Left:
    """What was not measured."""

    dropped: list[Cell]  # for lack of time
    unavailable: dict[str, str]  # contender and precision -> why it cannot run here
    interrupted: bool = False


def measure(
    options: Options,
    contenders: Sequence[Contender],
    machine: Machine,
    store: Store,
    *,
    make_subject: Callable[[str, str], Subject],
    deadline_s: float | None = None,
    say: Callable[[str], None] = lambda _: None,
    now_s: Callable[[], float] = monotonic_s,
) -> Left:
    """Measure whatever the store lacks, until `deadline_s` on `now_s`. Ctrl-C ends it early with all that was kept."""
    unavailable: dict[str, str] = {}
    runnable: dict[str, list[Contender]] = {}
    for precision in options.precisions:
        runnable[precision] = []
        for contender in contenders:
            if why := contender.available(precision):
                unavailable[f"{contender.name} {precision}"] = why
            else:
                runnable[precision].append(contender)
    table = {
        (model, precision): [(one.name, one.shape, one.slow) for one in runnable[precision]]
        for model in options.models
        for precision in options.precisions
    }
    visits = plan(options, table, store.done)
    total = sum(len(visit.cells) for visit in visits)
    say(f"{total} cells to measure, {len(store.done)} are there")
    bench = _Bench(options, runnable, store, Watch(machine), make_subject)
    counted, said_s = 0, now_s()
    try:
        for number, visit in enumerate(visits):
            if deadline_s is not None and now_s() >= deadline_s:
                return Left([cell for rest in visits[number:] for cell in rest.cells], unavailable)
            left = bench.visit(visit, deadline_s, now_s)
            if left:
                rest = [cell for later in visits[number + 1 :] for cell in later.cells]
                return Left([*left, *rest], unavailable)
            counted += len(visit.cells)
            if now_s() - said_s >= _SAY_EVERY_S or number == len(visits) - 1:
                said_s = now_s()
                where = f"{visit.model} {visit.precision}, {visit.length} tokens"
                say(f"{counted} of {total} cells; {TIERS[visit.tier]}: {where}")
    except KeyboardInterrupt:
        dropped = [cell for visit in visits for cell in visit.cells if cell not in store.done]
        return Left(dropped, unavailable, interrupted=True)
    finally:
        bench.close()
    return Left([], unavailable)


class _Bench:
    """Holds what is open: of one model and precision at a time; static contenders of one length at a time."""

    def __init__(
        self,
        options: Options,
        runnable: dict[str, list[Contender]],
        store: Store,
        watch: Watch,
        make_subject: Callable[[str, str], Subject],
    ) -> None:
        self._options = options
        self._runnable = {
            (precision, contender.name): contender for precision, some in runnable.items() for contender in some
        }
        self._store = store
        self._watch = watch
        self._make_subject = make_subject
        self._subject: Subject | None = None
        self._key = ("", "")
        self._open: dict[str, Opened | Exception] = {}

    def visit(self, visit: Visit, deadline_s: float | None, now_s: Callable[[], float]) -> list[Cell]:
        """Measure its cells; those that the deadline left out come back."""
        if self._key != (visit.model, visit.precision):
            self.close()
            self._subject = self._make_subject(visit.model, visit.precision)
            self._key = (visit.model, visit.precision)
        assert self._subject is not None
        batches = sorted({cell.batch for cell in visit.cells})
        try:
            for number, rows in enumerate(batches):
                if number and deadline_s is not None and now_s() >= deadline_s:
                    return [cell for cell in visit.cells if cell.batch >= rows]
                self._batch(self._subject, [cell for cell in visit.cells if cell.batch == rows])
        finally:
            self._close(static=True)
        return []

    def close(self) -> None:
        """Give all memory back."""
        self._close(static=False)
        if self._subject is not None:
            self._subject.close()
        self._subject = None
        self._key = ("", "")

    def _batch(self, subject: Subject, cells: Sequence[Cell]) -> None:
        """Cells of one length and batch."""
        length, rows = cells[0].length, cells[0].batch
        batch = subject.batch(length, rows)
        calls: dict[str, Call] = {}
        failed: dict[str, Exception] = {}
        for cell in cells:
            try:
                calls[cell.contender] = self._opened(subject, cell).prepare(batch)
            except Exception as error:  # each back-end raises its own kinds
                failed[cell.contender] = error
        self._watch.look()
        results: dict[str, Measured | Exception] = {**failed}
        results |= take_turns(
            calls, cell_s=self._options.cell_s, rounds=self._options.rounds, seed=length * 1000 + rows
        )
        state = self._watch.look()
        reference, ends = subject.reference(batch), batch.end_rows
        for cell in cells:
            self._store.add(cell, _record(results[cell.contender], reference, ends, cell.precision, state))
        calls.clear()

    def _opened(self, subject: Subject, cell: Cell) -> Opened:
        if cell.contender not in self._open:
            contender = self._runnable[cell.precision, cell.contender]
            try:
                self._open[cell.contender] = contender.open(subject, cell.length)
            except Exception as error:  # kept, so that a contender that cannot be opened is tried once
                self._open[cell.contender] = error
        found = self._open[cell.contender]
        if isinstance(found, Exception):
            raise found
        return found

    def _close(self, *, static: bool) -> None:
        for name in list(self._open):
            contender = self._runnable[self._key[1], name]
            if static and contender.shape != "static":
                continue
            found = self._open.pop(name)
            if not isinstance(found, Exception):
                found.close()
            del found
        forget()


def _record(
    result: Measured | Exception, reference: Embeddings, ends: list[int], precision: str, state: dict[str, Any]
) -> Record:
    if isinstance(result, Exception):
        text = str(result).strip().splitlines()
        return {"error": f"{type(result).__name__}: {text[0] if text else ''}"[:300], "at": round(unix_s())}
    wrong = len(result.answer) != ends[-1] + 1
    cosine = -1.0 if wrong else agreement(np.asarray(result.answer)[ends], reference)
    return {
        "whole": dataclasses.asdict(result.whole),
        "compute": None if result.compute is None else dataclasses.asdict(result.compute),
        "first_s": round(result.first_s, 4),
        "cosine": round(cosine, 6),
        "wrong": cosine < LEAST_COSINE[precision],
        "state": state,
        "at": round(unix_s()),
    }
