"""The session of TensorRT engines on a double of CUDA and TensorRT: memory, shapes, profiles, CUDA graphs, errors."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arlo.templates.tensorrt.session import CudaError, Session, log_of
from tests.fakes.gpu import FakeCuda, FakeTensorRt, write_plan

STATIC = [((1, 8), (4, 8))]
DYNAMIC = [((1, 1), (2, 64))]
SEVERAL = [((1, 1), (2, 8)), ((1, 9), (2, 16)), ((1, 17), (2, 32))]


class Bench:
    """An opened engine on doubles."""

    def __init__(
        self, tmp_path: Path, profiles: Any, *, rtx: bool = False, shares: bool = True, plan: Any = None, **options: Any
    ) -> None:
        self.cuda = FakeCuda()
        self.trt = FakeTensorRt(self.cuda, rtx=rtx, shares=shares and not rtx)
        self.path = write_plan(tmp_path / "model.plan", profiles, **(plan or {}))
        package = "tensorrt-rtx" if rtx else "tensorrt"
        self.session = Session(self.path, package, modules=(self.trt, self.cuda), **options)

    def check(self, rows: int, tokens: int, wanted: tuple[str, ...] = ("sum", "hidden")) -> None:
        """Run random inputs and compare what comes out."""
        random = np.random.default_rng([rows, tokens, len(self.trt.executions)])
        ids = random.integers(1, 1000, (rows, tokens))
        mask = random.integers(0, 2, (rows, tokens))
        expected = {"sum": np.stack([(ids * mask).sum(1), mask.sum(1)], 1), "hidden": 2 * ids[..., None]}
        answers = self.session.run(wanted, {"attention_mask": mask, "input_ids": ids})
        assert len(answers) == len(wanted)
        for name, answer in zip(wanted, answers, strict=True):
            np.testing.assert_array_equal(answer, expected[name].astype(np.float32))


def test_a_shape_is_captured_when_it_first_runs_and_replayed_after_that(tmp_path: Path) -> None:
    bench = Bench(tmp_path, STATIC)
    for rows in (1, 3, 1, 3, 1):
        bench.check(rows, 8)
    assert bench.session.graphs == ((3, 8), (1, 8))
    assert bench.cuda.calls["cudaGraphLaunch"] == 3
    assert bench.cuda.calls["cudaStreamBeginCapture"] == 2
    assert bench.session.note == ""


def test_an_input_of_its_own_size_is_that_of_each_row(tmp_path: Path) -> None:
    """As `task`: copied, replayed and checked by its own shape."""
    bench = Bench(tmp_path, DYNAMIC, plan={"task": True})
    bench.session.warm_up()
    ids = np.array([[3, 4, 5], [6, 7, 8]])
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "task": np.array([[10], [20]])}
    for _ in range(3):  # plain, captured, replayed
        assert bench.session.run(["sum"], given)[0].tolist() == [[22, 13], [41, 23]]
    assert (2, 3) in bench.session.graphs
    with pytest.raises(ValueError, match=r"task has the shape \(2, 3\), where \[rows, 1\] was expected"):
        bench.session.run(["sum"], given | {"task": ids})


def test_only_the_outputs_that_are_asked_for_leave_the_gpu(tmp_path: Path) -> None:
    bench = Bench(tmp_path, STATIC)
    bench.check(2, 8)
    before = bench.cuda.calls["cudaMemcpyAsync"]
    bench.check(2, 8, ("hidden",))  # replayed: the copies of the inputs are part of the graph
    assert bench.cuda.calls["cudaMemcpyAsync"] == before + 1


def test_answers_are_copies_which_the_next_run_leaves_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, STATIC)
    ones = np.ones((1, 8), np.int64)
    first = bench.session.run(["sum"], {"input_ids": ones, "attention_mask": ones})[0]
    bench.session.run(["sum"], {"input_ids": 5 * ones, "attention_mask": ones})
    assert first.tolist() == [[8, 8]]


def test_a_length_of_a_dynamic_engine_is_captured_when_it_comes_again_and_the_oldest_gives_way(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, DYNAMIC, max_graphs=3)
    for tokens in (1, 64, 10):
        bench.check(1, tokens)
    assert bench.session.graphs == ()
    for tokens in (64, 10, 1):
        bench.check(1, tokens)
    assert bench.session.graphs == ((1, 64), (1, 10), (1, 1))
    bench.check(2, 64)  # the fourth shape
    assert bench.session.graphs == ((1, 10), (1, 1))
    assert len(bench.cuda.executables) == 2
    bench.check(1, 64)
    bench.check(1, 10)


def test_shapes_between_replays_do_not_disturb_each_other(tmp_path: Path) -> None:
    bench = Bench(tmp_path, DYNAMIC)
    for tokens in (5, 7, 5, 7, 9, 5, 9, 7, 9, 5):
        bench.check(1, tokens)
    assert len(bench.session.graphs) == 3


def test_a_graph_has_a_context_that_goes_with_it(tmp_path: Path) -> None:
    """The double refuses a captured context for anything else."""
    bench = Bench(tmp_path, STATIC, max_graphs=2)
    for rows in (1, 2, 1, 3, 3, 2, 1):
        bench.check(rows, 8)
    assert bench.session.graphs == ((2, 8), (1, 8))
    assert len(bench.trt.contexts) == 6  # one of the profile, five of captures
    assert bench.session.note == ""


def test_without_room_for_a_context_a_shape_runs_without_a_graph(tmp_path: Path) -> None:
    bench = Bench(tmp_path, STATIC, plan={"contexts": 2})
    for rows in (1, 2, 1, 2):
        bench.check(rows, 8)
    assert bench.session.graphs == ((1, 8),)
    assert bench.session.note == (
        "no execution context for a CUDA graph: the GPU has no room for the engine's execution context"
    )


@pytest.mark.parametrize(("profiles", "strategy"), [(STATIC, ["static"]), (SEVERAL, ["on_change"] * 3)])
def test_graphs_of_a_tensorrt_that_cannot_share_memory_share_contexts(
    tmp_path: Path, profiles: Any, strategy: list[str]
) -> None:
    bench = Bench(tmp_path, profiles, shares=False)
    for rows in (1, 2, 1, 2, 1):
        bench.check(rows, 8)
    assert bench.session.graphs == ((2, 8), (1, 8))
    assert bench.trt.contexts == strategy


def test_no_graph_is_captured_when_none_shall_be(tmp_path: Path) -> None:
    bench = Bench(tmp_path, STATIC, max_graphs=0)
    for _ in range(3):
        bench.check(1, 8)
        bench.check(2, 8)
    assert bench.cuda.calls["cudaStreamBeginCapture"] == 0


def test_an_engine_that_cannot_be_captured_runs_without_and_says_why(tmp_path: Path) -> None:
    bench = Bench(tmp_path, STATIC, plan={"capturable": False})
    for _ in range(3):
        bench.check(2, 8)
    assert bench.cuda.calls["cudaStreamBeginCapture"] == 1  # tried once
    assert not bench.cuda.graphs
    assert bench.session.note == "no CUDA graph for (2, 8): the engine failed: cannot be captured"


def test_a_capture_that_cuda_refuses_leaves_a_session_that_runs(tmp_path: Path) -> None:
    bench = Bench(tmp_path, STATIC)
    bench.cuda.fail["cudaGraphInstantiate"] = 900
    for _ in range(3):
        bench.check(1, 8)
    assert "cudaGraphInstantiate failed: a double's error (CUDA error 900)" in bench.session.note
    assert bench.cuda.calls["cudaGetLastError"] == 1
    assert not bench.cuda.graphs


def test_each_length_runs_in_the_smallest_profile_that_takes_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SEVERAL)
    for tokens in (1, 8, 9, 16, 17, 32, 8, 9):
        bench.check(2, tokens)
    assert bench.trt.contexts == ["user"] * 5  # of the profiles, and of the two lengths that came again
    assert bench.session.graphs == ((2, 8), (2, 9))
    assert bench.session.profiles == [((1, 2), (1, 8)), ((1, 2), (9, 16)), ((1, 2), (17, 32))]


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        (
            {"input_ids": (5, 8), "attention_mask": (5, 8)},
            "does not take 5 rows of 8 tokens, only 1 to 4 rows of 8 to 8",
        ),
        ({"input_ids": (1, 7), "attention_mask": (1, 7)}, "does not take 1 rows of 7 tokens"),
        ({"input_ids": (1, 8), "attention_mask": (1, 7)}, r"attention_mask has the shape \(1, 7\)"),
        ({"input_ids": (8,), "attention_mask": (8,)}, "where \\[rows, tokens\\] was expected"),
        ({"input_ids": (1, 8)}, "input attention_mask is missing: the engine takes input_ids, attention_mask"),
    ],
)
def test_inputs_that_do_not_fit_are_the_callers_mistake(tmp_path: Path, shapes: Any, text: str) -> None:
    bench = Bench(tmp_path, STATIC)
    with pytest.raises(ValueError, match=text):
        bench.session.run(["sum"], {name: np.ones(shape, np.int64) for name, shape in shapes.items()})
    bench.check(4, 8)


def test_a_warm_session_has_run_every_usual_number_of_rows(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [((1, 8), (20, 8))])
    bench.session.warm_up()
    assert [rows for rows, _ in bench.session.graphs] == [*range(1, 9), 16, 20]
    bench.trt.executions.clear()
    bench.check(16, 8)
    assert bench.cuda.calls["cudaStreamBeginCapture"] == 10
    assert bench.trt.executions == [(16, 8)]


def test_everything_on_the_gpu_is_given_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SEVERAL)
    bench.session.warm_up()
    bench.session.warm_up()
    assert bench.session.graphs
    assert not bench.cuda.idle
    del bench.session
    gc.collect()
    assert bench.cuda.idle


def test_a_failed_opening_gives_back_what_it_had(tmp_path: Path) -> None:
    cuda = FakeCuda()
    trt = FakeTensorRt(cuda)
    cuda.fail["cudaMallocHost"] = 2
    plan = write_plan(tmp_path / "model.plan", STATIC)
    with pytest.raises(CudaError, match=r"cudaMallocHost failed: a double's error \(CUDA error 2\)"):
        Session(plan, "tensorrt", modules=(trt, cuda))
    gc.collect()
    assert cuda.idle


@pytest.mark.parametrize("function", ["cudaMemcpyAsync", "cudaStreamSynchronize", "cudaGraphLaunch"])
def test_an_error_of_cuda_names_the_call(tmp_path: Path, function: str) -> None:
    bench = Bench(tmp_path, STATIC)
    bench.check(1, 8)
    bench.cuda.fail[function] = 700
    with pytest.raises(CudaError, match=f"{function} failed: .* 700"):
        bench.check(1, 8)


def test_an_engine_that_fails_says_what_tensorrt_logged(tmp_path: Path) -> None:
    bench = Bench(tmp_path, STATIC, plan={"fails": True})
    with pytest.raises(RuntimeError, match="the engine failed: the engine is broken"):
        bench.check(1, 8)


def test_a_file_that_is_no_engine_is_refused_with_the_reason(tmp_path: Path) -> None:
    cuda = FakeCuda()
    trt = FakeTensorRt(cuda)
    (tmp_path / "model.plan").write_text("no engine")
    with pytest.raises(RuntimeError, match=r"model.plan does not open in double_\d+ 10.9: magicTag does not match"):
        Session(tmp_path / "model.plan", "tensorrt", modules=(trt, cuda))


def test_outputs_that_are_not_fp32_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="sum is of the type half, not INT64 or FLOAT"):
        Bench(tmp_path, STATIC, plan={"output": "half"})


def test_rtx_captures_by_itself_and_keeps_its_kernels(tmp_path: Path) -> None:
    kernels = tmp_path / "kernels"
    bench = Bench(tmp_path, STATIC, rtx=True, kernels=kernels)
    bench.session.warm_up()
    bench.check(3, 8)
    (config,) = bench.trt.contexts
    assert (config.cuda_graph_strategy, config.strategy) == ("whole", "static")
    assert config.dynamic_shapes_kernel_specialization_strategy == "eager"
    assert config.cache is bench.trt.cache
    assert bench.cuda.calls["cudaStreamBeginCapture"] == 0
    (file,) = kernels.iterdir()
    assert file.read_bytes() == b"kernels"
    again = Bench(tmp_path, STATIC, rtx=True, kernels=kernels)
    assert again.trt.cache.given == []  # of another version by its name
    again.trt.__name__ = bench.trt.__name__
    Session(again.path, "tensorrt-rtx", modules=(again.trt, again.cuda), kernels=kernels)
    assert again.trt.cache.given == [b"kernels"]


def test_rtx_does_not_wait_for_the_kernels_of_every_length(tmp_path: Path) -> None:
    bench = Bench(tmp_path, DYNAMIC, rtx=True, max_graphs=0)
    (config,) = bench.trt.contexts
    assert config.dynamic_shapes_kernel_specialization_strategy == "lazy"
    assert config.cuda_graph_strategy == "off"


def test_kernels_that_cannot_be_kept_are_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way of a folder")
    bench = Bench(tmp_path, STATIC, rtx=True, kernels=tmp_path / "file" / "kernels")
    bench.session.warm_up()
    bench.check(1, 8)


def test_the_log_keeps_warnings_and_worse_once(tmp_path: Path) -> None:
    log = log_of(Bench(tmp_path, STATIC).trt)
    for severity in range(5):
        log.log(severity, f"text {severity}\n")
    assert log.take() == [(0, "text 0"), (1, "text 1"), (2, "text 2")]
    assert log.take() == []
