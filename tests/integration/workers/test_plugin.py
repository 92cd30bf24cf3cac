"""Arlo inside of a real Triton: one name for all lengths over Triton's own HTTP and gRPC, and what else Triton does
with a model: ensembles, shared memory, model control, metrics, statistics."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton
from tritonclient import http
from tritonclient.utils import InferenceServerException, shared_memory

from arlo.catalog.logical import write_logical_model
from arlo.catalog.manifest import InputTensor, LatencyPoint, Manifest, OutputTensor, Runtime
from arlo.workers.emulated.repository import write_emulated_repository
from arlo.workers.paths import plugin_library
from arlo.workers.ports import free_port
from arlo.workers.triton.alone import LoneTriton

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

LENGTHS = (16, 64, 128)
OF_M = 'model="m"'  # a label
NEVER = "1000000"  # requests until one is traced
POST_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            embedding = pb_utils.get_input_tensor_by_name(request, "embedding").as_numpy()
            tensor = pb_utils.Tensor("score", embedding[:, :1] * np.float32(2))
            answers.append(pb_utils.InferenceResponse([tensor]))
        return answers
"""
POST_CONFIG = """
name: "post"
backend: "python"
max_batch_size: 8
input [ { name: "embedding" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "score" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
PRE_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer, models, pre_tokenizers


class TritonPythonModel:
    def initialize(self, args):
        self.tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(100)}, unk_token="w0"))
        self.tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        self.tokenizer.enable_padding()

    def execute(self, requests):
        answers = []
        for request in requests:
            texts = [text.decode() for text in pb_utils.get_input_tensor_by_name(request, "text").as_numpy()[:, 0]]
            found = self.tokenizer.encode_batch(texts)
            ids = pb_utils.Tensor("input_ids", np.array([each.ids for each in found], np.int64))
            mask = pb_utils.Tensor("attention_mask", np.array([each.attention_mask for each in found], np.int64))
            answers.append(pb_utils.InferenceResponse([ids, mask]))
        return answers
"""
PRE_CONFIG = """
name: "pre"
backend: "python"
max_batch_size: 8
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [
  { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
# An engine that answers apart from saying that it is through, with texts among its outputs.
DECOUPLED_MODEL = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.name = json.loads(args["model_config"])["name"]

    def execute(self, requests):
        for request in requests:
            ids, mask = (pb_utils.get_input_tensor_by_name(request, f"{n}").as_numpy() for n in ("ids", "mask"))
            rows = [row[kept == 1] for row, kept in zip(ids, mask)]
            said = np.array([[f"{self.name}:{len(row)}", "x" * int(row.sum())] for row in rows], np.object_)
            sums = np.array([[row.sum()] for row in rows], np.int64)
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("said", said), pb_utils.Tensor("sum", sums)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED_CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "ids" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "mask" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "said" data_type: TYPE_STRING dims: [ 2 ] }, { name: "sum" data_type: TYPE_INT64 dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
model_transaction_policy { decoupled: true }
"""
PRIORITIES = "dynamic_batching { priority_levels: 3 default_priority_level: 2 }"
TEXTS = Manifest(
    model="t",
    task="emulated",
    source="",
    tokenizer=None,
    inputs=(
        InputTensor(name="ids", datatype="INT32", role="ids"),
        InputTensor(name="mask", datatype="INT32", role="mask"),
    ),
    outputs=(
        OutputTensor(name="said", datatype="BYTES", token_level=False, dims=(2,)),
        OutputTensor(name="sum", datatype="INT64", token_level=False, dims=(1,)),
    ),
    runtimes=tuple(
        Runtime(
            name=f"t_len{length}", max_length=length, max_batch=4, dynamic=False, engine="emulated", precision="",
            device="", latency=(LatencyPoint(length=length, batch=1, latency_us=2000),),
        )
        for length in (8, 32)
    ),
)  # fmt: skip
ENSEMBLE_CONFIG = """
name: "scored"
platform: "ensemble"
max_batch_size: 8
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "score" data_type: TYPE_FP32 dims: [ 1 ] } ]
ensemble_scheduling { step [
  { model_name: "pre" model_version: -1
    input_map { key: "text" value: "text" }
    output_map { key: "input_ids" value: "ids" } output_map { key: "attention_mask" value: "mask" } },
  { model_name: "m" model_version: -1
    input_map { key: "input_ids" value: "ids" } input_map { key: "attention_mask" value: "mask" }
    output_map { key: "embedding" value: "pooled" } },
  { model_name: "post" model_version: -1
    input_map { key: "embedding" value: "pooled" } output_map { key: "score" value: "score" } }
] }
"""


def padded(rows: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    """Ids and mask [rows, longest], INT64."""
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    mask = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    return ids, mask


class Plugin:
    """Clients of the server, and calls whose answers are checked."""

    def __init__(self, server: LoneTriton, folder: Path, http_port: int, metrics_port: int) -> None:
        self.folder = folder
        self.grpc = triton.InferenceServerClient(server.endpoint)
        self.http = http.InferenceServerClient(f"127.0.0.1:{http_port}")
        self.http_port = http_port
        self.metrics_port = metrics_port

    async def ask(self, rows: Sequence[Sequence[int]], model: str = "m", **options: Any) -> dict[str, int]:
        """Over gRPC; returns how the answer came to be."""
        ids, mask = padded(rows)
        inputs = []
        for name, array in (("input_ids", ids), ("attention_mask", mask)):
            tensor = triton.InferInput(name, array.shape, "INT64")
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        result = await self.grpc.infer(model, inputs, **options)
        np.testing.assert_array_equal(result.as_numpy("embedding")[:, 0], [sum(row) for row in rows])
        np.testing.assert_array_equal(result.as_numpy("last_hidden_state")[..., 0], ids)
        return {key: value.int64_param for key, value in result.get_response().parameters.items()}

    async def ask_texts(self, rows: Sequence[Sequence[int]], **options: Any) -> list[list[str]]:
        """Of the other logical model; which engine each row ran on, and that it had so many tokens."""
        inputs = []
        for name, array in zip(("ids", "mask"), padded(rows), strict=True):
            tensor = triton.InferInput(name, array.shape, "INT32")
            tensor.set_data_from_numpy(array.astype(np.int32))
            inputs.append(tensor)
        result = await self.grpc.infer("t", inputs, **options)
        np.testing.assert_array_equal(result.as_numpy("sum")[:, 0], [sum(row) for row in rows])
        said = result.as_numpy("said")
        assert [len(text) for text in said[:, 1]] == [sum(row) for row in rows]
        return [text.decode().split(":") for text in said[:, 0]]

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plugin(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Plugin]:
    folder = tmp_path_factory.mktemp("plugin")
    repository = folder / "repository"
    manifest = write_emulated_repository(
        repository, model="m", max_lengths=LENGTHS, latency_ms=[2, 4, 8], max_batch=8, batch_growth=0.1
    )
    library = plugin_library()
    write_logical_model(repository, manifest, library=library, max_rows=8, slo_ms=500, unavailable_grace_ms=300)
    for name, config in (("pre", PRE_CONFIG), ("post", POST_CONFIG), ("scored", ENSEMBLE_CONFIG)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    for name, code in (("pre", PRE_MODEL), ("post", POST_MODEL)):
        (repository / name / "1" / "model.py").write_text(code)
    # Another logical model, which has its manifest in its own folder, and whose configuration keeps priorities.
    for runtime in TEXTS.runtimes:
        (repository / runtime.name / "1").mkdir(parents=True)
        (repository / runtime.name / "config.pbtxt").write_text(f'name: "{runtime.name}"{DECOUPLED_CONFIG}')
        (repository / runtime.name / "1" / "model.py").write_text(DECOUPLED_MODEL)
    other = write_logical_model(
        repository,
        TEXTS,
        library=library,
        max_rows=8,
        max_queued=9,
        unavailable_grace_ms=60_000,
        timeout_ms=60_000,
    )
    TEXTS.save(other)
    with (other / "config.pbtxt").open("a") as config_file:
        config_file.write(PRIORITIES)
    grpc_port, http_port, metrics_port = (free_port("127.0.0.1") for _ in range(3))
    tracing = ("mode=triton", "level=TIMESTAMPS", f"rate={NEVER}", f"triton,file={folder / 'trace'}")
    async with LoneTriton(
        repository,
        grpc_port=grpc_port,
        http_port=http_port,
        metrics_port=metrics_port,
        log=folder / "log",
        threads=1,
        extra=tuple(f"--trace-config={each}" for each in (*tracing, "triton,log-frequency=1")),
    ) as server:
        plugin = Plugin(server, folder, http_port, metrics_port)
        yield plugin
        plugin.http.close()
        await plugin.grpc.close()


async def test_rows_of_any_length_in_one_request(plugin: Plugin) -> None:
    timing = await plugin.ask([list(range(3)), list(range(128)), list(range(16)), [5] * 65])
    assert timing["level"] == LENGTHS.index(128)
    assert timing["execute_us"] <= timing["total_us"]
    assert (await plugin.ask([[7] * 16]))["computed_tokens"] == 16
    assert (await plugin.ask([[7] * 17]))["computed_tokens"] == 64
    with pytest.raises(InferenceServerException, match="takes 1 to 128 tokens"):
        await plugin.ask([[1] * 129])


async def test_http_and_the_per_length_models(plugin: Plugin) -> None:
    ids, mask = padded([[1, 2, 3], list(range(60))])
    inputs = [http.InferInput(name, ids.shape, "INT64") for name in ("input_ids", "attention_mask")]
    for tensor, array in zip(inputs, (ids, mask), strict=True):
        tensor.set_data_from_numpy(array)
    result = await asyncio.to_thread(plugin.http.infer, "m", inputs)
    np.testing.assert_array_equal(result.as_numpy("embedding")[:, 0], ids.sum(axis=1))
    assert result.get_response()["parameters"]["batch_rows"] >= 1
    await plugin.ask([list(range(64))], model="m_len64")  # an ordinary model, still


async def settled(plugin: Plugin) -> tuple[dict[str, float], Any]:
    """The plugin's metrics and Triton's statistics, once they count the same rows; they follow the answers."""
    while True:
        metrics = plugin.metrics()
        statistics = (await plugin.grpc.get_inference_statistics("m")).model_stats[0]
        counted = {
            sum(value for key, value in metrics.items() if key.startswith(f"arlo_plugin_{family}{{") and OF_M in key)
            for family in ("rows_total", "row_wait_seconds_count")
        }
        if counted == {statistics.inference_count}:
            return metrics, statistics
        await asyncio.sleep(0.02)


async def test_what_waits_is_batched_by_length(plugin: Plugin) -> None:
    lengths = np.random.default_rng(3).choice([5, 12, 60, 120], 64)
    most, batches = 0, float(len(lengths))
    while most <= 4 or batches >= len(lengths) / 2:  # on a busy machine a client may be slower than the engines
        before, counted = await settled(plugin)
        timings = await asyncio.gather(*(plugin.ask([[int(n)] * n]) for n in lengths))
        most = max(timing["batch_rows"] for timing in timings)
        while counted.inference_count + len(lengths) > (settled_now := await settled(plugin))[1].inference_count:
            await asyncio.sleep(0.02)
        after, statistics = settled_now
        grown = {key: value - before[key] for key, value in after.items() if "arlo_plugin" in key and OF_M in key}
        batches = sum(value for key, value in grown.items() if key.startswith("arlo_plugin_batches_total"))
    for length in LENGTHS:
        labels = f'{{engine="m_len{length}",model="m"}}'
        rows = grown[f"arlo_plugin_rows_total{labels}"]
        assert grown[f"arlo_plugin_computed_tokens_total{labels}"] == rows * length
        assert after[f"arlo_plugin_engine_usable{labels}"] == 1
        # What was counted one by one is what was counted together.
        assert grown[f"arlo_plugin_row_wait_seconds_count{labels}"] == rows
        assert grown[f"arlo_plugin_batch_rows_sum{labels}"] == rows
        assert grown[f"arlo_plugin_batch_rows_count{labels}"] == grown[f"arlo_plugin_batches_total{labels}"]
        most = f'arlo_plugin_batch_rows_bucket{{engine="m_len{length}",model="m",le="8"}}'
        assert grown[most] == grown[f"arlo_plugin_batches_total{labels}"]
        waited = grown[f"arlo_plugin_row_wait_seconds_sum{labels}"]
        assert waited == pytest.approx(grown[f"arlo_plugin_wait_seconds_total{labels}"], abs=1e-6 * rows + 1e-9)
    families = {key.partition("{")[0].removeprefix("arlo_plugin_") for key in grown}
    counted_too = {"rows", "batches", "failed_batches", "demoted_rows", "tokens", "computed_tokens", "wait_seconds"}
    histograms = {
        f"{name}_{part}" for name in ("batch_rows", "row_wait_seconds") for part in ("bucket", "count", "sum")
    }
    assert families == {f"{name}_total" for name in counted_too} | {"engine_usable", "queued_rows"} | histograms
    assert sum(value for key, value in grown.items() if key.startswith("arlo_plugin_wait_seconds_total")) > 0
    assert statistics.execution_count - counted.execution_count == batches


async def test_another_logical_model_has_texts_and_decoupled_engines(plugin: Plugin) -> None:
    """Each from its own manifest, on one server; an engine may say apart from its answer that it is through."""
    said = await asyncio.gather(*(plugin.ask_texts([[1] * n, [2] * 9, [3]]) for n in (3, 8, 30)))
    assert said == [[[f"t_len{8 if n <= 8 else 32}", str(n)], ["t_len32", "9"], ["t_len8", "1"]] for n in (3, 8, 30)]
    await plugin.ask([[5] * 30])


async def test_priority_counts_where_the_configuration_keeps_it(plugin: Plugin) -> None:
    """Behind the default level a request is bulk, which makes room in a full queue."""
    await plugin.grpc.unload_model("t_len32")
    queued = 'arlo_plugin_queued_rows{model="t"}'
    while plugin.metrics()[queued] > 0:  # told a while after: of the calls before
        await asyncio.sleep(0.02)
    calls = []
    for priority, rows, in_all in ((3, 1, 1), (2, 8, 9)):  # in this order: bulk rows fill half of the queue at most
        calls.append(asyncio.ensure_future(plugin.ask_texts([[1] * 30] * rows, priority=priority)))
        while plugin.metrics()[queued] < in_all:
            ended = [call.exception() or call.result() for call in calls if call.done()]
            assert not ended, ended
            await asyncio.sleep(0.02)
    urgent = asyncio.ensure_future(plugin.ask_texts([[1] * 30], priority=1))
    with pytest.raises(InferenceServerException):
        await calls[0]
    with pytest.raises(InferenceServerException, match="the queue is full"):
        await plugin.ask_texts([[1] * 30])
    await plugin.grpc.load_model("t_len32")
    assert await asyncio.gather(calls[1], urgent) == [[["t_len32", "30"]] * n for n in (8, 1)]


async def test_an_ensemble_takes_texts_and_says_scores(plugin: Plugin) -> None:
    """A tokenizer before it, post-processing behind it, in one call."""
    rows = [[1, 2, 3], list(range(100)), [7]]
    texts = np.array([[" ".join(f"w{token}" for token in row).encode()] for row in rows], np.object_)
    tensor = triton.InferInput("text", texts.shape, "BYTES")
    tensor.set_data_from_numpy(texts)
    result = await plugin.grpc.infer("scored", [tensor])
    np.testing.assert_array_equal(result.as_numpy("score")[:, 0], [2 * sum(row) for row in rows])


async def test_system_shared_memory_both_ways(plugin: Plugin) -> None:
    ids, mask = padded([list(range(40)), [9] * 16])
    size = ids.nbytes
    region = shared_memory.create_shared_memory_region("arlo_test", f"/arlo_test_{plugin.http_port}", 3 * size)
    try:
        shared_memory.set_shared_memory_region(region, [ids, mask])
        await plugin.grpc.register_system_shared_memory("arlo_test", f"/arlo_test_{plugin.http_port}", 3 * size)
        inputs = []
        for number, name in enumerate(("input_ids", "attention_mask")):
            inputs.append(triton.InferInput(name, ids.shape, "INT64"))
            inputs[-1].set_shared_memory("arlo_test", size, offset=number * size)
        output = triton.InferRequestedOutput("embedding")
        output.set_shared_memory("arlo_test", 2 * 4 * 4, offset=2 * size)
        await plugin.grpc.infer("m", inputs, outputs=[output])
        answer = shared_memory.get_contents_as_numpy(region, np.float32, [2, 4], offset=2 * size)
        np.testing.assert_array_equal(answer[:, 0], ids.sum(axis=1))
        await plugin.grpc.unregister_system_shared_memory("arlo_test")
    finally:
        shared_memory.destroy_shared_memory_region(region)


async def test_engines_are_reloaded_and_unloaded_under_traffic(plugin: Plugin) -> None:
    over = False
    answered = 0

    async def client(seed: int) -> None:
        nonlocal answered
        random = np.random.default_rng(seed)
        while not over:
            await plugin.ask([[int(n)] * n for n in random.integers(1, 65, 2)])
            answered += 1

    clients = [asyncio.ensure_future(client(seed)) for seed in range(6)]
    for _ in range(2):
        await plugin.grpc.load_model("m_len64")  # loaded already: Triton loads it anew, and then lets the old one go
        await plugin.grpc.unload_model("m_len16")  # its rows go to a longer one
        await asyncio.sleep(0.05)
        await plugin.grpc.load_model("m_len16")
    over = True
    await asyncio.gather(*clients)
    assert answered > 20


async def test_traces_of_requests_and_of_their_batches(plugin: Plugin) -> None:
    """Each request that is traced has its own times; the engine's trace of a batch hangs below that of one of them."""
    await plugin.grpc.update_trace_settings("m", {"trace_rate": "1"})
    asked, most = 0, 0
    while most <= 2:  # on a busy machine a client may be slower than the engines
        timings = await asyncio.gather(*(plugin.ask([[3] * 100]) for _ in range(24)))
        asked, most = asked + len(timings), max(timing["batch_rows"] for timing in timings)
    await plugin.grpc.update_trace_settings("m", {"trace_rate": NEVER})

    def written() -> tuple[list[set[str]], set[tuple[str, str]]]:
        """What was timed of each request, and which model's trace is above which."""
        traces: list[dict[str, Any]] = []
        for file in plugin.folder.glob("trace*"):
            with contextlib.suppress(ValueError):  # not all of it is there yet
                traces += json.loads(file.read_text())
        names = {each["id"]: each["model_name"] for each in traces if "model_name" in each}
        times: dict[int, set[str]] = {key: set() for key, name in names.items() if name == "m"}
        for each in traces:
            if each["id"] in times:
                times[each["id"]] |= {stamp["name"] for stamp in each.get("timestamps", ())}
        above = {(names[each["parent_id"]], each["model_name"]) for each in traces if each.get("parent_id") in names}
        return list(times.values()), above

    wanted = {"QUEUE_START", "COMPUTE_START", "COMPUTE_END", "REQUEST_END"}
    while True:  # traces are written after the answers
        times, above = written()
        if len(times) == asked and all(each >= wanted for each in times) and ("m", "m_len128") in above:
            break
        await asyncio.sleep(0.02)


async def test_a_wrong_configuration_is_refused(plugin: Plugin) -> None:
    config = await plugin.grpc.get_model_config("m", as_json=True)
    wrong = config["config"] | {"parameters": {"slo": {"string_value": "100"}}}
    with pytest.raises(InferenceServerException, match="unknown parameter slo; there are batching, "):
        await plugin.grpc.load_model("m", config=json.dumps(wrong))
    await plugin.ask([[3] * 100])  # by the one that was there


async def test_what_comes_at_once_is_answered_once(plugin: Plugin) -> None:
    """More than the engines can do, for both logical models, with calls that give up, that have no time, and with
    engines that go and come: the server answers each that is still there, and has nothing left of the others."""
    random = np.random.default_rng(11)

    async def outcome(call: Any) -> str:
        try:
            await call
        except InferenceServerException as error:
            return str(error.status())
        except asyncio.CancelledError:
            return "cancelled"
        return "answered"

    def call() -> Any:
        rows = [[int(n)] * n for n in random.integers(1, 17, 2)]
        if random.random() < 0.3:
            return plugin.ask_texts(rows, timeout=20_000_000)
        return plugin.ask(rows, timeout=1 if random.random() < 0.2 else 20_000_000)

    calls = [asyncio.ensure_future(outcome(call())) for _ in range(600)]
    churn = asyncio.ensure_future(plugin.grpc.load_model("m_len16"))
    await asyncio.sleep(0)
    for number in random.choice(len(calls), 150, replace=False):
        calls[number].cancel()
    await plugin.grpc.unload_model("m_len16")
    await churn
    await plugin.grpc.load_model("m_len16")
    outcomes = collections.Counter(
        each if isinstance(each, str) else "cancelled" for each in await asyncio.gather(*calls, return_exceptions=True)
    )
    assert sum(outcomes.values()) == 600
    assert set(outcomes) <= {"answered", "cancelled", "StatusCode.UNAVAILABLE"}, outcomes
    assert min(outcomes[each] for each in ("answered", "StatusCode.UNAVAILABLE")) > 0
    pending = [f'nv_inference_pending_request_count{{model="{model}",version="1"}}' for model in ("m", "t")]
    queued = [f'arlo_plugin_queued_rows{{model="{model}"}}' for model in ("m", "t")]
    while any(plugin.metrics()[key] for key in (*pending, *queued)):
        await asyncio.sleep(0.02)
    await plugin.ask([[3] * 100])


async def test_the_logical_model_is_unloaded_when_all_are_answered(plugin: Plugin) -> None:
    calls = [asyncio.ensure_future(plugin.ask([[1] * 120] * 4)) for _ in range(8)]
    statistics = plugin.grpc.get_inference_statistics
    before = (await statistics("m")).model_stats[0].inference_count
    assert before > 0
    await plugin.grpc.unload_model("m", unload_dependents=False)
    results = await asyncio.gather(*calls, return_exceptions=True)
    refused = [each for each in results if isinstance(each, Exception)]
    assert all("not ready" in str(each) or "unknown model" in str(each) for each in refused), refused
    await plugin.grpc.load_model("m")
    await plugin.ask([[3] * 100])


@pytest.mark.parametrize("further", [(), ("--allow-http=false", "--allow-metrics=false")])
async def test_the_commands(tmp_path: Path, further: tuple[str, ...]) -> None:
    """`arlo compile emulate --plugin` writes what `arlo serve triton` serves until Ctrl-C; its own options count."""
    arlo = Path(sys.executable).parent / "arlo"
    written = await asyncio.create_subprocess_exec(
        arlo, "compile", "emulate", "--out", tmp_path / "emu", "--max-lengths", "64", "--latency-ms", "1", "--plugin"
    )
    assert await written.wait() == 0
    ports = [free_port("127.0.0.1") for _ in range(3)]
    options = [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), ports, strict=True)]
    program = await asyncio.create_subprocess_exec(
        *(arlo, "serve", "triton", tmp_path / "emu", *options, "--log", tmp_path / "log", "--", *further),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert program.stdout is not None
        assert b"Triton serves" in await program.stdout.readline()
        for port in ports if not further else ports[1:2]:  # those that it has are open when it says so
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
        client = triton.InferenceServerClient(f"127.0.0.1:{ports[1]}")
        assert await client.is_model_ready("emulated")
        await client.close()
    finally:
        program.send_signal(signal.SIGINT)
        assert await program.wait() == 0
