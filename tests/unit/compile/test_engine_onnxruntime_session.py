"""Sessions as Triton's model code opens them. CUDA itself is not here: what surrounds it runs for real on the CPU, with
ONNX Runtime's own bound memory and run options, and its refusals are played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from arlo.compile.spec import RuntimeSpec
from arlo.templates.onnxruntime import session as under_test
from arlo.templates.onnxruntime.session import Bound, Session, unfit_for_replay
from tests.fakes import tiny_graph

NAMES = [output.name for output in tiny_graph.OUTPUTS]


def graph(folder: Path, *, max_batch: int = 4, dynamic: bool = False) -> Path:
    shape: Any = "dynamic" if dynamic else "static"
    spec = RuntimeSpec(name="tiny", max_length=16, max_batch=max_batch, shape=shape)
    return tiny_graph.write_graph(folder, spec)[0]


def rows_of(rows: int, tokens: int = 16) -> dict[str, Any]:
    given = tiny_graph.rows_of(rows, tokens, real=tokens - 2)
    return given | {"token_type_ids": np.zeros((rows, tokens), np.int64)}


def plain(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def test_bound_runs_use_one_memory_and_give_answers_that_stay(tmp_path: Path) -> None:
    bound = Bound(plain(graph(tmp_path)), 2, "cpu", graph_id="2")
    first, second = rows_of(2), {name: np.flip(array, 1).copy() for name, array in rows_of(2).items()}
    before = {name: value.data_ptr() for name, value in (bound._inputs | bound._outputs).items()}
    answers = [dict(zip(NAMES, bound.run(NAMES, rows), strict=True)) for rows in (first, second)]
    for rows, got in zip((first, second), answers, strict=True):
        for name, wanted in tiny_graph.expected(rows).items():
            np.testing.assert_allclose(got[name], wanted, atol=1e-5)
    assert {name: value.data_ptr() for name, value in (bound._inputs | bound._outputs).items()} == before
    assert [list(array.shape) for array in bound.run(NAMES[1:], first)] == [[2, 16, tiny_graph.DIM]]


def test_bound_runs_take_their_own_shape_and_fewer_rows(tmp_path: Path) -> None:
    bound = Bound(plain(graph(tmp_path)), 2, "cpu")
    assert bound.takes(rows_of(2))
    assert bound.takes(rows_of(1))  # padded
    assert not bound.takes(rows_of(3))
    assert not bound.takes(rows_of(2, 12))
    assert not bound.takes(tiny_graph.rows_of(2, 16))  # an input is missing


def test_bound_inputs_need_not_be_contiguous_or_of_the_very_type(tmp_path: Path) -> None:
    bound = Bound(plain(graph(tmp_path)), 2, "cpu")
    wide = {name: np.repeat(array, 2, axis=1)[:, ::2].astype(np.int32) for name, array in rows_of(2).items()}
    assert not wide["input_ids"].flags.c_contiguous or wide["input_ids"].dtype == np.int32
    np.testing.assert_allclose(bound.run(NAMES, wide)[0], tiny_graph.expected(rows_of(2))[NAMES[0]], atol=1e-5)


def test_free_lengths_are_never_recorded(tmp_path: Path) -> None:
    assert "input_ids has the shape ['rows', 'tokens']" in unfit_for_replay(plain(graph(tmp_path, dynamic=True)))


class PlayedGpu:
    """InferenceSession as onnxruntime-gpu would open it: the work is done by the CPU. `refuse` is what it says when it
    is asked for CUDA graphs; `stale`: replays give the answers of the run that was recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, refuse: str = "", stale: bool = False) -> None:
        self.asked: list[dict[str, str]] = []
        self.runs: list[str] = []  # graph ids of the runs
        real = onnxruntime.InferenceSession
        played = self

        class Opened:
            def __init__(self, path: str, options: Any, providers: list[Any]) -> None:
                (name, asked), fallback = providers
                assert (name, fallback) == ("CUDAExecutionProvider", "CPUExecutionProvider")
                played.asked.append(asked)
                if refuse and "enable_cuda_graph" in asked:
                    raise RuntimeError(refuse)
                self._real = real(path, options, providers=["CPUExecutionProvider"])
                self._seen: set[str] = set()

            def __getattr__(self, name: str) -> Any:
                return getattr(self._real, name)

            def get_providers(self) -> list[str]:
                return ["CUDAExecutionProvider", "CPUExecutionProvider"]

            def run(self, names: list[str], tensors: dict[str, Any], options: Any = None) -> Any:
                played.runs.append(options.get_run_config_entry("gpu_graph_id") if options else "")
                return self._real.run(names, tensors, options)

            def run_with_iobinding(self, binding: Any, options: Any) -> None:
                graph_id = options.get_run_config_entry("gpu_graph_id")
                played.runs.append(graph_id)
                if not stale or graph_id not in self._seen:
                    self._real.run_with_iobinding(binding, options)
                self._seen.add(graph_id)

        allocate = onnxruntime.OrtValue.ortvalue_from_shape_and_type
        on_cpu = staticmethod(lambda shape, kind, device, number: allocate(shape, kind))
        monkeypatch.setattr(onnxruntime.OrtValue, "ortvalue_from_shape_and_type", on_cpu)
        monkeypatch.setattr(onnxruntime, "InferenceSession", Opened)
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
        monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None, raising=False)


def test_on_a_gpu_fixed_shapes_are_replayed_by_a_graph_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = PlayedGpu(monkeypatch)
    session = Session(graph(tmp_path), device="cuda", device_id=1, max_rows=3)
    assert session.graphs == ((1, 16), (2, 16), (3, 16))
    assert session.note == ""
    (asked,) = gpu.asked
    assert asked["device_id"] == "1"
    assert (asked["enable_cuda_graph"], asked["use_tf32"]) == ("1", "0")
    session.warm_up()
    gpu.runs.clear()
    for rows in (1, 3, 5):
        got = session.run(NAMES, rows_of(rows))
        np.testing.assert_allclose(got[0], tiny_graph.expected(rows_of(rows))[NAMES[0]], atol=1e-5)
    assert gpu.runs == ["1", "3", "-1"]  # five rows were not recorded, and must not be


def test_on_a_gpu_one_session_replays_graphs_of_several_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = PlayedGpu(monkeypatch)
    session = Session(graph(tmp_path, dynamic=True), device="cuda", max_rows=12, lengths=(4, 12, 16))
    assert session.graphs == tuple((rows, tokens) for tokens in (4, 12, 16) for rows in (*range(1, 9), 12))
    assert (session.note, len(gpu.asked)) == ("", 1)
    assert len({number for number in gpu.runs if number != "-1"}) == 27
    for rows, tokens, recorded in (
        (1, 12, True),
        (2, 7, True),
        (2, 16, True),
        (1, 3, True),
        (9, 16, True),
        (11, 5, True),
        (13, 12, False),
    ):
        gpu.runs.clear()
        given = rows_of(rows, tokens)
        for name, got in zip(NAMES, session.run(NAMES, given), strict=True):
            wanted = tiny_graph.expected(given)[name]
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, atol=1e-5)
        assert (gpu.runs != ["-1"]) == recorded


def test_on_a_gpu_every_number_of_rows_replays_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = PlayedGpu(monkeypatch)
    session = Session(graph(tmp_path), device="cuda", max_rows=40)
    for rows in range(1, 42):
        gpu.runs.clear()
        given = rows_of(rows)
        for name, got in zip(NAMES, session.run(NAMES, given), strict=True):
            np.testing.assert_allclose(got, tiny_graph.expected(given)[name], atol=1e-5)
        recorded = next((str(count) for count in (*range(1, 9), 12, 16, 24, 32, 40) if count >= rows), "-1")
        assert gpu.runs == [recorded]


def test_on_a_gpu_rows_without_a_mask_and_of_their_own_size_are_padded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnx import TensorProto, helper, save

    shapes = (("pictures", TensorProto.UINT8, 3), ("values", TensorProto.FLOAT, 3))
    given, made = (helper.make_tensor_value_info(name, kind, ["rows", size, 2]) for name, kind, size in shapes)
    cast = helper.make_node("Cast", ["pictures"], ["values"], to=TensorProto.FLOAT)
    made_graph = helper.make_graph([cast], "pictures", [given], [made])
    save(helper.make_model(made_graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    gpu = PlayedGpu(monkeypatch)
    session = Session(tmp_path / "m.onnx", device="cuda", max_rows=16)
    gpu.runs.clear()
    pictures = np.arange(9 * 6, dtype=np.uint8).reshape(9, 3, 2)
    (values,) = session.run(["values"], {"pictures": pictures})
    np.testing.assert_array_equal(values, pictures)
    assert gpu.runs == ["12"]


@pytest.mark.parametrize(
    ("played", "reason"),
    [
        ({"refuse": "nodes have not been partitioned to the CUDAExecutionProvider"}, "have not been partitioned"),
        ({"stale": True}, "replayed, it gives other values of last_hidden_state for 1 rows"),
    ],
    ids=["refused", "stale"],
)
def test_without_a_good_graph_it_runs_plainly_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, played: dict[str, Any], reason: str
) -> None:
    gpu = PlayedGpu(monkeypatch, **played)
    session = Session(graph(tmp_path), device="cuda", max_rows=2)
    assert session.graphs == ()
    assert session.note.startswith("no CUDA graph: ")
    assert reason in session.note
    assert "enable_cuda_graph" not in gpu.asked[-1]
    got = session.run(NAMES, rows_of(2))
    np.testing.assert_allclose(got[0], tiny_graph.expected(rows_of(2))[NAMES[0]], atol=1e-5)
    assert gpu.runs[-1] == ""


def test_a_session_of_any_length_asks_for_no_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = PlayedGpu(monkeypatch)
    session = Session(graph(tmp_path, dynamic=True), device="cuda", max_rows=4, record=False)
    assert (session.graphs, session.note, len(gpu.asked)) == ((), "", 1)
    assert "enable_cuda_graph" not in gpu.asked[0]
    got = session.run(NAMES, rows_of(2, 11))
    np.testing.assert_allclose(got[0], tiny_graph.expected(rows_of(2, 11))[NAMES[0]], atol=1e-5)


def test_a_gpu_that_cannot_be_used_is_an_error_not_a_slow_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = graph(tmp_path)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(RuntimeError, match="install onnxruntime-gpu"):
        Session(path, device="cuda")
    PlayedGpu(monkeypatch)
    monkeypatch.setattr(onnxruntime.InferenceSession, "get_providers", lambda _: ["CPUExecutionProvider"])
    with pytest.raises(RuntimeError, match="CUDA or cuDNN library is missing"):
        Session(path, device="cuda")


class Counted:
    """A session that notes with how many threads it was opened, run by run."""

    def __init__(self, session: Any, threads: int, runs: list[int]) -> None:
        self._session, self._threads, self._runs = session, threads, runs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, *args: Any) -> Any:
        self._runs.append(self._threads)
        return self._session.run(*args)


@pytest.mark.parametrize(
    ("given", "ran_with"),  # whether the length is free, threads, tokens from which there are several
    [((True, 3, 128), [1, 3]), ((True, 1, 128), [1, 1]), ((False, 3, 128), [1, 1]), ((False, 3, 16), [3, 3])],
)
def test_on_the_cpu_few_tokens_run_on_one_thread(
    given: tuple[bool, int, int], ran_with: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dynamic, threads, wide = given
    runs: list[int] = []
    monkeypatch.setattr(under_test, "WIDE_TOKENS", wide)
    really = under_test.open_session
    opened = lambda path, given, *on: Counted(really(path, given, *on), given, runs)  # noqa: E731
    monkeypatch.setattr(under_test, "open_session", opened)
    session = Session(graph(tmp_path, max_batch=8, dynamic=dynamic), threads=threads, max_rows=4)
    for rows in (7, 8):  # of 16 tokens: below 128, and as many
        answer = session.run(NAMES, rows_of(rows))
        for name, array in zip(NAMES, answer, strict=True):
            np.testing.assert_allclose(array, tiny_graph.expected(rows_of(rows))[name], atol=1e-5)
    assert runs == ran_with
    session.warm_up()
    assert set(runs[2:]) == set(ran_with)  # none is left cold


def test_what_is_not_by_token_is_warmed_up_with_zeros(tmp_path: Path) -> None:
    """The number of a task, of which there may be one."""
    from onnx import TensorProto, helper, numpy_helper, save

    sizes = {"ids": ["rows", "tokens"], "task": ["rows", 1]}
    given = [helper.make_tensor_value_info(name, TensorProto.INT64, size) for name, size in sizes.items()]
    table = numpy_helper.from_array(np.ones((1, 2), np.float32), "table")
    nodes = [
        helper.make_node("Gather", ["table", "task"], ["of"]),
        helper.make_node("Cast", ["ids"], ["cast"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["cast"], ["sum"], keepdims=1),
        helper.make_node("Add", ["of", "sum"], ["out"]),
    ]
    out = [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["rows", 1, 2])]
    made = helper.make_model(
        helper.make_graph(nodes, "m", given, out, [table]), opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    save(made, tmp_path / "m.onnx")
    Session(tmp_path / "m.onnx", max_rows=2).warm_up()


def test_the_code_needs_nothing_of_arlo() -> None:
    source = Path(under_test.__file__).read_text()
    imported = {
        line.split()[1].partition(".")[0] for line in source.splitlines() if line.startswith(("import ", "from "))
    }
    assert imported <= {"__future__", "collections", "pathlib", "typing", "numpy", "onnxruntime"}
