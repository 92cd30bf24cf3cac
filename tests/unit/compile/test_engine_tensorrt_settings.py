"""TensorRT engines before anything is built: settings, compute capabilities, the GPU that is here or not, serving."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arlo.compile.engines.interface import EngineSettings, get_engine
from arlo.compile.engines.onnxruntime import OnnxRuntimeEngine
from arlo.compile.engines.tensorrt import TensorRtEngine
from arlo.compile.engines.tensorrt_gpu import find_gpu, gpu_memory_used
from arlo.compile.spec import RuntimeSpec
from arlo.errors import CompileError, ConfigError, EnvironmentProblem

STATIC = RuntimeSpec(name="m", max_length=64, max_batch=1, shape="static")


def rtx(*capabilities: str, **settings: Any) -> TensorRtEngine:
    return TensorRtEngine("tensorrt-rtx", EngineSettings(compute_capabilities=capabilities or ("SM86",), **settings))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What CUDA tells of the machine; a test changes it."""
    from cuda.bindings import runtime

    told = SimpleNamespace(driver=13000, code=0, count=1, name=b"NVIDIA L4\0", capability=(8, 9))
    properties = SimpleNamespace
    monkeypatch.setattr(runtime, "cudaDriverGetVersion", lambda: (0, told.driver))
    monkeypatch.setattr(runtime, "cudaGetDeviceCount", lambda: (told.code, told.count))
    monkeypatch.setattr(runtime, "cudaGetErrorString", lambda code: (0, b"driver version is insufficient"))
    monkeypatch.setattr(runtime, "cudaRuntimeGetVersion", lambda: (0, 13050))
    monkeypatch.setattr(
        runtime,
        "cudaGetDeviceProperties",
        lambda index: (0, properties(name=told.name, major=told.capability[0], minor=told.capability[1])),
    )
    return told


def test_capabilities_are_read_as_people_write_them() -> None:
    assert rtx("8.6", "sm_89", "SM120", "86", "12.1").settings.compute_capabilities == (
        "SM86",
        "SM89",
        "SM120",
        "SM121",
    )


@pytest.mark.parametrize(
    ("capabilities", "text"),
    [
        (("SM90",), "does not build for SM90 .Hopper.: use --engine tensorrt on a machine with that GPU"),
        (("10.0",), "does not build for SM100 .*; tensorrt-rtx 1.* builds for SM75, SM80, SM86, SM89, SM120, SM121"),
        (("SM86", "SM42"), "'SM42' is unknown to tensorrt-rtx 1.*: choose from SM75, SM80"),
        (("ampere",), "'ampere' is unknown"),
        (("current", "SM86"), "`current` goes alone"),
    ],
)
def test_capabilities_that_there_are_not_are_refused(capabilities: tuple[str, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        rtx(*capabilities)


def test_no_capability_is_refused() -> None:
    with pytest.raises(ConfigError, match="no compute capability is named: choose from SM75"):
        TensorRtEngine("tensorrt-rtx", EngineSettings(compute_capabilities=()))


def test_current_needs_the_gpu(gpu: SimpleNamespace) -> None:
    engine = rtx("current")
    assert engine.settings.compute_capabilities == ("CURRENT",)
    assert engine.key()["gpu"] == "gpu: NVIDIA L4 (SM89)"  # the file is of this GPU, and so is the cache's key
    assert engine.cannot_run() == ""
    gpu.name, gpu.capability = b"NVIDIA H100\0", (9, 0)
    with pytest.raises(ConfigError, match=r"of SM90 \(NVIDIA H100\), which tensorrt-rtx .* use --engine tensorrt"):
        rtx("current")
    gpu.driver = 0
    with pytest.raises(ConfigError, match="needs the GPU, and there is no NVIDIA GPU driver here: name it, as SM86"):
        rtx("current")


def test_triton_has_no_backend_for_its_engines() -> None:
    with pytest.raises(ConfigError, match="takes engines of TensorRT, not of TensorRT-RTX: leave the backend"):
        rtx(backend="native")


def test_it_can_be_sent_to_another_process_and_always_runs_on_a_gpu() -> None:
    engine = get_engine("tensorrt-rtx", EngineSettings(compute_capabilities=("SM89",)))
    again = pickle.loads(pickle.dumps(engine))
    assert again.settings == engine.settings
    assert again.settings.device == "cuda"
    assert again.key() == engine.key()
    assert list(again.versions()) == ["tensorrt-rtx"]


@pytest.mark.parametrize("other", [{"precision": "fp16"}, {"compute_capabilities": ("SM89",)}])
def test_the_cache_tells_builds_apart_by_what_changes_them(other: dict[str, Any]) -> None:
    plain = EngineSettings(compute_capabilities=("SM86",))
    changed = EngineSettings(**{"compute_capabilities": ("SM86",), **other})
    assert TensorRtEngine("tensorrt-rtx", plain).key() != TensorRtEngine("tensorrt-rtx", changed).key()


def test_a_gpu_that_can_run_it(gpu: SimpleNamespace) -> None:
    assert rtx("SM86", "SM89").cannot_run() == ""
    assert rtx().device() == "gpu: NVIDIA L4 (SM89)"


def test_why_it_cannot_run(gpu: SimpleNamespace) -> None:
    assert rtx("SM86", "SM120").cannot_run() == (
        "the GPU here is of SM89 (NVIDIA L4), and the engines are built for SM86, SM120"
    )
    gpu.code, gpu.driver = 35, 12040
    assert rtx().cannot_run() == (
        "the NVIDIA driver offers CUDA 12.4, cuda-bindings is of CUDA 13.5 (driver version is insufficient): "
        "update the driver, or install a cuda-bindings of its version"
    )
    gpu.code, gpu.count = 0, 0
    assert rtx().cannot_run() == "there is no NVIDIA GPU here, or CUDA_VISIBLE_DEVICES hides it"
    gpu.driver = 0
    assert rtx().cannot_run() == "there is no NVIDIA GPU driver here"
    assert rtx().device() == "gpu: none"


def test_asking_for_the_gpu_never_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import runtime

    def broken() -> Any:
        raise RuntimeError("libcudart is gone")

    monkeypatch.setattr(runtime, "cudaDriverGetVersion", broken)
    assert find_gpu().problem == "CUDA does not open: libcudart is gone"
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert find_gpu().problem == "CUDA for Python is missing: pip install cuda-bindings"
    assert gpu_memory_used() is None


def test_memory_in_use_is_what_cuda_says(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import runtime

    monkeypatch.setattr(runtime, "cudaMemGetInfo", lambda: (0, 3_000, 10_000))
    assert rtx().memory_used() == gpu_memory_used() == 7_000
    assert OnnxRuntimeEngine(EngineSettings(device="cuda")).memory_used() == 7_000
    monkeypatch.setattr(runtime, "cudaMemGetInfo", lambda: (35, None, None))
    assert rtx().memory_used() is None


def test_opening_says_why_it_cannot(gpu: SimpleNamespace, tmp_path: Path) -> None:
    gpu.driver = 0
    with pytest.raises(CompileError, match="length 64 cannot run here: there is no NVIDIA GPU driver here"):
        rtx().open(tmp_path, STATIC, threads=1)


def test_a_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, gpu: SimpleNamespace) -> None:
    for name in ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("tensorrt", "tensorrt-rtx"):
        engine = get_engine(name, EngineSettings(compute_capabilities=("SM89",)))
        with pytest.raises(EnvironmentProblem, match=rf"pip install 'arlo-serve\[{name}\]'"):
            engine.versions()
        assert "is missing" in engine.cannot_run()


def test_a_version_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", SimpleNamespace(__version__="8.6.1"))
    with pytest.raises(EnvironmentProblem, match=r"tensorrt 8\.6\.1 is too old: 10\.0 or newer is needed"):
        TensorRtEngine("tensorrt", EngineSettings()).versions()


def test_tensorrt_builds_for_the_gpu_that_is_here(
    monkeypatch: pytest.MonkeyPatch, gpu: SimpleNamespace, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", SimpleNamespace(__version__="11.4.0.106"))
    engine = TensorRtEngine("tensorrt", EngineSettings())  # the default capabilities are those of tensorrt-rtx
    assert engine.settings.compute_capabilities == ()
    assert engine.cannot_run() == ""
    assert engine.key()["gpu"] == "gpu: NVIDIA L4 (SM89)"
    gpu.driver = 0
    with pytest.raises(CompileError, match="builds on the GPU that it builds for, and there is no NVIDIA GPU driver"):
        engine.build(tmp_path / "g", tmp_path / "w", STATIC, tmp_path, scratch=tmp_path)


def test_how_triton_serves_it() -> None:
    several = RuntimeSpec(name="m", max_length=128, max_batch=4, shape="profiles", profiles=(32, 64, 128))
    python = rtx().serving(several)
    assert (python.backend, python.template, python.gpu) == ("python", "tensorrt", True)
    assert python.parameters == {"package": "tensorrt-rtx"}
    native = TensorRtEngine("tensorrt", EngineSettings(backend="native"))
    serving = native.serving(several)
    assert (serving.backend, serving.platform, serving.model_file) == ("tensorrt", "tensorrt_plan", "model.plan")
    assert serving.profiles == ("0", "1", "2")
    assert native.serving(STATIC).profiles == ()
    assert TensorRtEngine("tensorrt", EngineSettings()).serving(STATIC).parameters == {"package": "tensorrt"}
