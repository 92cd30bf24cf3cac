"""The GPU benchmark's plan: which cells come first, what a budget drops, what a second run takes up."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from arlo.errors import ConfigError
from benchmarks.gpu import cli
from benchmarks.gpu.contenders import chosen, registry
from benchmarks.gpu.contenders.base import Batch, Call, Contender, Opened
from benchmarks.gpu.machine import Machine, smi
from benchmarks.gpu.measure import agreement, take_turns
from benchmarks.gpu.options import Options
from benchmarks.gpu.plan import Cell, Shape, describe, plan
from benchmarks.gpu.run import Left, measure
from benchmarks.gpu.store import Store, read_result
from benchmarks.gpu.subject import Subject

OPTIONS = Options(
    models=("bert-base",), precisions=("fp32",), lengths=(16, 48, 64, 96, 128), batches=(1, 4), rounds=(2, 2)
)
MACHINE = Machine("cpu", "Some(R) CPU @ 2.00GHz", {}, {})


@pytest.fixture(scope="module", autouse=True)
def _what_is_loaded_stays() -> Iterator[None]:
    """Garbage is collected before each measurement, which takes 0.3 s where another test has loaded torch."""
    gc.freeze()
    yield
    gc.unfreeze()


class Scripted:
    """A contender whose answers are given: ids of the batch summed, or an error."""

    def __init__(self, name: str, shape: Shape, *, broken: int = 0, off: str = "", slow: bool = False) -> None:
        self.name, self.backend, self.shape, self.slow = name, name.partition("-")[0], shape, slow
        self.broken = broken  # length at which a call raises
        self.off = off
        self.opened: list[int] = []
        self.closed = 0

    def available(self, precision: str) -> str:
        return self.off

    def open(self, subject: Subject, length: int) -> Opened:
        self.opened.append(length)
        return self

    def prepare(self, batch: Batch) -> Call:
        def whole() -> Any:
            if batch.length == self.broken:
                raise MemoryError("no room\nfor it")
            return batch.ids.astype(np.float32)

        return Call(whole)

    def close(self) -> None:
        self.closed += 1


class Ids:
    """A subject without a model: the ids are the answer."""

    def batch(self, length: int, rows: int) -> Batch:
        return Batch(length, np.ones((rows, length), np.int64) + np.arange(rows)[:, None], ["x"] * rows)

    def reference(self, batch: Batch) -> Any:
        return batch.ends().ids.astype(np.float32)

    def close(self) -> None:
        pass


def run(store: Store, contenders: list[Scripted], *, deadline_s: float | None = None, step_s: float = 0.0) -> Left:
    ticks = itertools.count()
    return measure(
        OPTIONS,
        cast("list[Contender]", contenders),
        MACHINE,
        store,
        make_subject=lambda *_: cast(Subject, Ids()),
        deadline_s=deadline_s,
        now_s=lambda: next(ticks) * step_s,
    )


def test_the_most_telling_cells_come_first() -> None:
    table: Any = {("bert-base", "fp32"): [("a-static", "static", False), ("a-padded", "padded", False)]}
    visits = plan(OPTIONS, table)
    assert [(v.tier, v.length) for v in visits] == [
        *[(0, n) for n in (16, 64, 128)],
        *[(1, n) for n in (48, 96)],
        *[(2, n) for n in (16, 64, 128)],
        *[(3, n) for n in (48, 96)],
        *[(4, n) for n in (48, 96)],
    ]
    assert {cell.contender for cell in visits[3].cells} == {"a-static"}  # padded: the 512 are told already
    cells = [cell for visit in visits for cell in visit.cells]
    assert len(cells) == len(set(cells)) == 5 * 2 * 2


def test_what_is_done_is_not_planned_again() -> None:
    table: Any = {("bert-base", "fp32"): [("a-static", "static", False)]}
    done = {Cell("bert-base", "fp32", 64, 1, "a-static")}
    left = {cell for visit in plan(OPTIONS, table, done) for cell in visit.cells}
    assert len(left) == 9
    assert not left & done


def test_cells_are_described_by_contender_and_batch() -> None:
    cells = [Cell("bert-base", "fp16", n, b, "x-static") for b in (8, 16) for n in (16, 32, 48, 80, 96)]
    cells.append(Cell("bert-base", "fp16", 64, 2, "x-static"))
    assert describe(cells) == ["bert-base fp16 x-static: batch 2 at 64; batch 8, 16 at 16 to 96 (5 lengths)"]


def test_every_cell_is_measured_once_and_static_contenders_are_opened_by_length(tmp_path: Path) -> None:
    static, dynamic = Scripted("a-static", "static"), Scripted("a-dynamic", "dynamic")
    store = Store(tmp_path, "here", resume=True)
    left = run(store, [static, dynamic, Scripted("b-static", "static", off="no GPU")])
    assert left.dropped == []
    assert left.unavailable == {"b-static fp32": "no GPU"}
    assert len(store.done) == 5 * 2 * 2
    assert static.opened == [16, 64, 128, 48, 96] * 2
    assert len(dynamic.opened) == 1
    assert (static.closed, dynamic.closed) == (10, 1)
    assert all(not record["wrong"] and record["cosine"] == 1 for record in store.records.values())


def test_a_contender_that_fails_leaves_the_others_alone_and_is_tried_again(tmp_path: Path) -> None:
    store = Store(tmp_path, "here", resume=True)
    run(store, [Scripted("a-dynamic", "dynamic", broken=64), Scripted("b-dynamic", "dynamic")])
    failed = [record for record in store.records.values() if "error" in record]
    assert {(r["contender"], r["length"]) for r in failed} == {("a-dynamic", 64)}
    assert failed[0]["error"] == "MemoryError: no room"
    healed = Scripted("a-dynamic", "dynamic")
    run(store, [healed])
    assert not [record for record in store.records.values() if "error" in record]
    assert len(store.done) == 20


def test_a_wrong_answer_is_marked(tmp_path: Path) -> None:
    class Wrong(Scripted):
        def prepare(self, batch: Batch) -> Call:
            return Call(lambda: np.random.default_rng(0).normal(size=batch.ids.shape).astype(np.float32))

    store = Store(tmp_path, "here", resume=True)
    run(store, [Wrong("a-dynamic", "dynamic")])
    assert all(record["wrong"] for record in store.records.values())


def test_a_budget_drops_the_least_telling_cells(tmp_path: Path) -> None:
    store = Store(tmp_path, "here", resume=True)
    left = run(store, [Scripted("a-static", "static")], deadline_s=20.0, step_s=1.0)
    done = {(cell.length, cell.batch) for cell in store.done}
    assert {(16, 1), (64, 1), (128, 1)} <= done
    assert left.dropped
    assert {cell.batch for cell in left.dropped} == {4}
    assert {(cell.length, cell.batch) for cell in left.dropped} | done == {
        (n, b) for n in OPTIONS.lengths for b in (1, 4)
    }
    # The next run takes up what is left, and nothing else.
    again = Scripted("a-static", "static")
    assert run(store, [again]).dropped == []
    assert sorted(again.opened) == sorted(cell.length for cell in left.dropped)


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    class Stopped(Scripted):
        def prepare(self, batch: Batch) -> Call:
            if batch.length == 128:
                raise KeyboardInterrupt
            return super().prepare(batch)

    store = Store(tmp_path, "here", resume=True)
    left = run(store, [Stopped("a-static", "static")])
    assert left.interrupted
    assert {cell.length for cell in store.done} == {16, 64}
    assert len(left.dropped) == 8


def test_a_killed_run_resumes_from_whole_lines(tmp_path: Path) -> None:
    store = Store(tmp_path, "here", resume=True)
    run(store, [Scripted("a-static", "static")])
    with (tmp_path / "cells.jsonl").open("a") as journal:
        journal.write('{"model": "bert-base", "preci')
    assert len(Store(tmp_path, "here", resume=True).done) == 10
    assert len(Store(tmp_path, "another driver", resume=True).done) == 0
    assert Store(tmp_path, "another driver", resume=True).dropped == 10
    assert len(Store(tmp_path, "here", resume=False).done) == 0
    assert len(Store(tmp_path, "here", resume=True).done) == 0  # the journal went with it


def test_a_finished_run_is_taken_up_from_its_result(tmp_path: Path) -> None:
    store = Store(tmp_path, "here", resume=True)
    run(store, [Scripted("a-static", "static")])
    store.finish({"command": "c"})
    assert not (tmp_path / "cells.jsonl").exists()
    result = read_result(tmp_path)
    assert (result["schema"], result["command"], len(result["cells"])) == ("arlo.gpu-benchmark/1", "c", 10)
    assert Store(tmp_path, "here", resume=True).done == store.done


@pytest.mark.parametrize(
    ("text", "words"), [("{", "not JSON"), ('{"schema": "other"}', "not of the form"), ("[]", "not of the form")]
)
def test_a_result_of_another_form_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "latency.json").write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_result(tmp_path)


def test_contenders_take_turns() -> None:
    order: list[str] = []

    def call(name: str) -> Call:
        def whole() -> Any:
            order.append(name)
            return np.ones((1, 2), np.float32)

        return Call(whole, lambda: 0.001)

    found = take_turns({name: call(name) for name in "abc"}, cell_s=1e-9, rounds=(20, 20))
    turns = ["".join(order[at : at + 3]) for at in range(9, len(order), 3)]  # after the warm-up
    assert len(turns) == 20
    assert {"".join(sorted(turn)) for turn in turns} == {"abc"}
    assert len(set(turns)) > 1  # the order changes
    measured: Any = found["a"]
    assert measured.compute.median_us == 1000
    assert measured.whole.runs == 20


def test_agreement_is_the_least_cosine() -> None:
    a = np.array([[1, 0], [0, 2]], np.float32)
    assert agreement(a, 3 * a) == 1
    assert agreement(a, np.array([[1, 0], [2, 0]], np.float32)) == 0
    assert agreement(np.full_like(a, np.nan), a) == agreement(a[:1], a) == -1


def test_the_registry_has_each_shape_of_each_backend() -> None:
    names = [contender.name for contender in registry()]
    assert len(set(names)) == len(names)
    assert {"tensorrt-profiles", "ort-cuda-graphs-static", "torch-graphs-static", "torch-compile-dynamic"} <= set(names)
    assert {c.backend for c in registry()} >= {"ort-cpu", "transformers", "sentence-transformers"}
    assert [c.name for c in chosen(["torch-eager"])] == ["torch-eager-dynamic", "torch-eager-padded"]
    with pytest.raises(ConfigError, match="unknown"):
        chosen(["torch", "tensorflow"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--models", "gpt2"], "gpt2"),
        (["--lengths", "64,32"], "ascend"),
        (["--lengths", "512,1024"], "512"),
        (["--lengths", "1,64"], "too short"),
        (["--batches", "4,2"], "ascend"),
        (["--batches", "x"], "whole numbers"),
        (["--budget", "0"], "budget"),
        (["--precisions", "int8"], "int8"),
        (["--threads", "0"], "threads"),
    ],
)
def test_wrong_arguments_say_what_to_change(arguments: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        cli.options_of(cli.parser().parse_args(arguments), gpu=False)


def test_defaults_are_what_the_help_says() -> None:
    gpu = cli.options_of(cli.parser().parse_args([]), gpu=True)
    assert gpu.lengths == tuple(range(16, 513, 16))
    assert gpu.batches == (1, 2, 4, 8, 16, 32)
    assert (gpu.models, gpu.precisions) == (("bert-base", "bert-large"), ("fp16", "fp32"))
    assert cli.options_of(cli.parser().parse_args([]), gpu=False).precisions == ("fp32",)
    quick = cli.options_of(cli.parser().parse_args(["--quick", "--lengths", "64:128:64"]), gpu=False)
    assert (quick.lengths, quick.batches) == ((64, 128), (1, 8))


def test_a_change_of_what_times_depend_on_is_another_environment() -> None:
    here = cli.environment(MACHINE, OPTIONS)
    assert here == cli.environment(MACHINE, dataclasses.replace(OPTIONS, models=("minilm",), lengths=(64, 128)))
    assert here != cli.environment(MACHINE, dataclasses.replace(OPTIONS, threads=2))
    assert here != cli.environment(dataclasses.replace(MACHINE, versions={"torch": "9"}), OPTIONS)


def test_a_folder_name_is_made_of_the_device() -> None:
    assert MACHINE.slug == "cpu-some"
    assert Machine("gpu", "NVIDIA H100 80GB HBM3", {}, {}).slug == "nvidia-h100-80gb-hbm3"


def test_nvidia_smi_is_asked_field_by_field_where_it_knows_not_all() -> None:
    class Done:
        def __init__(self, stdout: str) -> None:
            self.stdout = stdout

    def run_smi(command: list[str], **_: Any) -> Done:
        import subprocess

        fields = command[1].removeprefix("--query-gpu=").split(",")
        if "new.field" in fields:
            raise subprocess.CalledProcessError(2, command)
        return Done(", ".join({"name": "NVIDIA H100", "clocks.sm": "1980 MHz"}[field] for field in fields) + "\n")

    assert smi(("name", "new.field", "clocks.sm"), run=run_smi) == {"name": "NVIDIA H100", "clocks.sm": "1980 MHz"}

    def none(*_: Any, **__: Any) -> Done:
        raise FileNotFoundError("nvidia-smi")

    assert smi(("name", "clocks.sm"), run=none) == {}


def test_records_are_plain_json(tmp_path: Path) -> None:
    store = Store(tmp_path, "here", resume=True)
    run(store, [Scripted("a-static", "static")])
    record = json.loads((tmp_path / "cells.jsonl").read_text().splitlines()[0])
    assert {"model", "precision", "length", "batch", "contender", "environment", "whole", "state", "at"} <= set(record)
    assert {"median_us", "p25_us", "p75_us", "p98_us", "mean_us", "half_width_us", "runs"} == set(record["whole"])
