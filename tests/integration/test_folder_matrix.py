"""What is served of a model folder is what sentence-transformers and transformers answer with it, over HTTP and gRPC;
what cannot be served is refused by name (tests/fakes/folder_matrix.py)."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import multiprocessing
import os
import shutil
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton
from numpy.typing import NDArray

from arlo.compile import CompileOptions, compile_model
from arlo.compile.cache import Hasher
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.steps.resolve import resolve
from arlo.errors import ArloError, ConfigError
from arlo.workers.ports import free_port
from tests.fakes.folder_matrix import ROWS as ALL_ROWS
from tests.fakes.folder_matrix import Row
from tests.fakes.folders import LONG, TEXTS, write_folder
from tests.fakes.serving import serving
from tests.fakes.tiny_model import MAX_TOKENS

pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.timeout(1800),  # the set-up compiles and loads them all
    pytest.mark.asyncio(loop_scope="module"),
]

# Families beside BERT take minutes of exports: ARLO_FAMILIES=all has them, too.
ROWS = {
    name: row
    for name, row in ALL_ROWS.items()
    if os.environ.get("ARLO_FAMILIES") == "all" or row.folder.get("family", "bert") == "bert"
}
CLOSE = 1e-4
MOST_MODELS = 60  # that one gateway gets; it takes 64
QUERY = "which river, and which sea"
ALL = [*TEXTS, LONG]
PAIRS = [(QUERY, text) for text in ALL]
SERVE = """
[workers]
count = 1
run_dir = "run"
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
api_address = "127.0.0.1:{port}"
[control]
http_address = "127.0.0.1:0"
"""
Floats = NDArray[np.float32]


@dataclasses.dataclass
class Prepared:
    """What became of a folder: what `arlo compile` said, and the libraries' answers."""

    problem: str = ""  # why it was not compiled
    crashed: bool = False  # with an error that is none of Arlo's
    beyond: str = ""  # why one token more is refused
    ids: list[list[int]] = dataclasses.field(default_factory=list)  # of ALL, or of PAIRS, cut
    types: list[list[int]] = dataclasses.field(default_factory=list)  # of PAIRS, where the model has them
    answers: dict[str, Any] = dataclasses.field(default_factory=dict)


def prepare(name: str, root: Path) -> Prepared:
    """Write the folder, compile it to root/NAME.out, and ask the libraries. Runs in a process of its own."""
    row, made = ROWS[name], Prepared()
    source = given = write_folder(root / name, **row.folder)
    try:
        if row.onnx:
            given = with_graph(row, source, root)
        try:
            resolve(options_for(given, root, row.limit + 1), Hasher())
        except ConfigError as error:
            made.beyond = str(error)
        options = options_for(given, root, row.limit)
        compile_model(dataclasses.replace(options, out=root / f"{name}.out", name=name))
    except Exception as error:  # the test of the row shows it
        made.problem, made.crashed = f"{type(error).__name__}: {error}", not isinstance(error, ArloError)
        return made
    if not row.refused:
        with known_noise_silenced():
            {"embed": embedded, "rank": ranked, "classify": classified}.get(row.task, labelled)(row, source, made)
    return made


def options_for(source: Path, root: Path, length: int) -> CompileOptions:
    """One runtime, of any length up to this one. Rows share the cache, and so the graph of the same network."""
    named = {"source": source, "out": root / "out", "cache": root / "cache"}
    return CompileOptions(**named, lengths=(length,), static=False, max_batch=4)


def with_graph(row: Row, source: Path, root: Path) -> Path:
    """The folder's network as an ONNX file in onnx/, without pooling, as exporters leave it there."""
    import onnx

    kept = {key: value for key, value in row.folder.items() if key not in ("extra", "files", "modules", "new")}
    plain = write_folder(source.with_name(f"{source.name}-network"), **kept)
    options = dataclasses.replace(options_for(plain, root, MAX_TOKENS), out=plain / "out")
    compile_model(options)
    (built,) = options.out.glob("*/1")
    shutil.copytree(built, plain / "graph")  # onnx refuses weights that are hard links
    model = onnx.load(str(plain / "graph" / "model.onnx"))
    for output in [output for output in model.graph.output if output.name == "sentence_embedding"]:
        model.graph.output.remove(output)
    (source / "onnx").mkdir()
    onnx.save(model, str(source / "onnx" / "model.onnx"))
    return source / "onnx" / "model.onnx"


def embedded(row: Row, source: Path, made: Prepared) -> None:
    import torch
    from sentence_transformers import SentenceTransformer

    folder = source
    if row.ids_only:  # the library needs one, Arlo takes ids
        folder = source.with_name(f"{source.name}.with")
        write_folder(folder, **row.folder | {"files": "json"})
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True, model_kwargs={"dtype": torch.float32})
    assert row.limit in (model.max_seq_length, MAX_TOKENS), model.max_seq_length
    model.max_seq_length = row.limit
    made.ids = [model.tokenizer(text, truncation=True, max_length=row.limit)["input_ids"] for text in ALL]
    file = source / "config_sentence_transformers.json"
    described = json.loads(file.read_text()) if file.is_file() else {}
    prompts, alone = list(described.get("prompts", {})), {"batch_size": 1}  # so that padding plays no part
    made.answers = {"": model.encode(ALL, **alone), "none": model.encode(ALL, prompt="", **alone), "prompts": prompts}
    made.answers["empty"] = model.encode([""])
    made.answers |= {f"prompt {name}": model.encode(ALL, prompt_name=name, **alone) for name in prompts}


def ranked(row: Row, source: Path, made: Prepared) -> None:
    import torch
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(source), device="cpu", local_files_only=True, model_kwargs={"dtype": torch.float32})
    model.max_length = row.limit
    for pair in PAIRS:
        given = model.tokenizer(*pair, truncation=True, max_length=row.limit)
        made.ids.append(given["input_ids"])
        made.types += [given["token_type_ids"]] if "token_type_ids" in given else []
    made.answers = {"scores": model.predict(PAIRS), "logits": model.predict(PAIRS, activation_fn=torch.nn.Identity())}


def classified(row: Row, source: Path, made: Prepared) -> None:
    import transformers

    pipe = transformers.pipeline("text-classification", str(source), top_k=None, truncation=True, dtype="float32")
    cut = {"truncation": True, "max_length": row.limit}
    made.ids = [pipe.tokenizer(text, **cut)["input_ids"] for text in ALL]
    names = [pipe.model.config.id2label[at] for at in range(pipe.model.config.num_labels)]

    def by_label(**how: Any) -> list[dict[str, float]]:
        found = ({each["label"]: each["score"] for each in one} for one in pipe(ALL, **cut, **how))
        return [{name: scores[name] for name in names} for scores in found]

    made.answers = {"labels": by_label(), "raw": by_label(function_to_apply="none")}
    made.answers["logits"] = np.array([list(one.values()) for one in made.answers["raw"]], np.float32)


def labelled(row: Row, source: Path, made: Prepared) -> None:
    """Of tokens: outputs by name, of each text by itself."""
    import torch
    import transformers

    kind = "AutoModelForTokenClassification" if row.task == "tokens" else "AutoModelForQuestionAnswering"
    model = getattr(transformers, kind).from_pretrained(str(source), dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(source))
    for text in ALL:
        given = tokenizer(text, truncation=True, max_length=row.limit, return_tensors="pt")
        made.ids.append(given["input_ids"][0].tolist())
        with torch.no_grad():
            answer = model(**given)
        for name in ("logits",) if row.task == "tokens" else ("start_logits", "end_logits"):
            made.answers.setdefault(name, []).append(answer[name][0].numpy())


@pytest.fixture(scope="module")
def prepared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Prepared]]:
    """All rows that this run asks for."""
    root = tmp_path_factory.mktemp("folders")
    here = [item.callspec.params["name"] for item in request.session.items if item.path == request.path]
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        running = {name: pool.submit(prepare, name, root) for name in ROWS if name in here}
        made = {name: each.result() for name, each in running.items()}
    return root, made


class Served:
    """A row, and clients of the server that it is in."""

    def __init__(self, name: str, made: Prepared, http: httpx.AsyncClient, grpc: triton.InferenceServerClient) -> None:
        self.name, self.made, self.row, self.http, self.grpc = name, made, ROWS[name], http, grpc

    async def post(self, path: str, **body: Any) -> Any:
        answer = await self.http.post(path, json={"model": self.name, **body})
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:500]}"
        return answer.json()

    async def infer(self, *inputs: triton.InferInput) -> triton.InferResult:
        cut = {"truncate": True} if inputs[0].name() == "text" else None
        return await self.grpc.infer(self.name, list(inputs), parameters=cut)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(prepared: tuple[Path, dict[str, Prepared]]) -> AsyncIterator[dict[str, Served]]:
    """All rows that were compiled, in as many servers as they need."""
    root, made = prepared
    names = [name for name, each in made.items() if not each.problem]
    served = {}
    async with contextlib.AsyncExitStack() as stack:
        for some in (names[at : at + MOST_MODELS] for at in range(0, len(names), MOST_MODELS)):
            folder, port = root / f"serve-{some[0]}", free_port("127.0.0.1")
            folder.mkdir()
            models = (f'[[model]]\nname = "{name}"\nrepository = "../{name}.out"\nslo_ms = 5000\n' for name in some)
            (folder / "serve.toml").write_text("".join(models) + SERVE.format(port=port))
            one = await stack.enter_async_context(serving(folder, ready=False))
            await one.wait_ready(timeout_s=300)
            http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60)
            await stack.enter_async_context(http)
            grpc = await stack.enter_async_context(triton.InferenceServerClient(one.ready["grpc"]))
            served |= {name: Served(name, made[name], http, grpc) for name in some}
        yield served
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def served(cluster: dict[str, Served], prepared: tuple[Path, dict[str, Prepared]], name: str) -> Served:
    assert not (problem := prepared[1][name].problem), problem
    return cluster[name]


def close(got: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(got, np.float32), np.asarray(wanted, np.float32), atol=CLOSE, rtol=0)


def unit(vectors: Floats) -> Floats:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def text_input(texts: list[str]) -> triton.InferInput:
    given = triton.InferInput("text", [len(texts), 1], "BYTES")
    given.set_data_from_numpy(np.array([[text.encode()] for text in texts], dtype=np.object_))
    return given


def id_inputs(rows: list[list[int]], types: list[list[int]] | None = None) -> list[triton.InferInput]:
    """Ids, mask and token types, padded to the longest."""
    shape = [len(rows), max(map(len, rows))]
    inputs = []
    given = {"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}
    for name, values in (given | ({"token_type_ids": types} if types else {})).items():
        tensor = np.zeros(shape, np.int64)
        for at, row in enumerate(values):
            tensor[at, : len(row)] = row
        inputs.append(triton.InferInput(name, shape, "INT64"))
        inputs[-1].set_data_from_numpy(tensor)
    return inputs


def rows_of(*tasks: str) -> Any:
    some = [name for name, row in ROWS.items() if row.task in tasks and not row.refused]
    return pytest.mark.parametrize("name", some)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.refused])
async def test_what_is_not_served_is_refused_by_name(prepared: tuple[Path, dict[str, Prepared]], name: str) -> None:
    made = prepared[1][name]
    assert not made.crashed, made.problem
    assert ROWS[name].refused.lower() in made.problem.lower()


@rows_of("embed")
async def test_vectors(served: Served) -> None:
    answers = served.made.answers
    size = answers[""].shape[1]
    if not served.row.ids_only:
        cut = {"inputs": ALL, "truncate": True}
        close(await served.post("/embed", normalize=False, **cut), answers[""])
        close(await served.post("/embed", **cut), unit(answers[""]))
        for prompt in answers["prompts"]:
            got = await served.post("/embed", prompt_name=prompt, normalize=False, **cut)
            close(got, answers[f"prompt {prompt}"])
        close(await served.post("/embed", inputs="", normalize=False), answers["empty"])
        floats = await served.post("/v1/embeddings", input=ALL, truncate=True)
        close([each["embedding"] for each in floats["data"]], unit(answers[""]))
        packed = await served.post("/v1/embeddings", input=ALL, truncate=True, encoding_format="base64")
        close([np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in packed["data"]], unit(answers[""]))
        text = {"name": "text", "shape": [len(ALL), 1], "datatype": "BYTES", "data": ALL}
        path = f"/v2/models/{served.name}/infer"
        answer = await served.post(path, inputs=[text], parameters={"truncate": True})
        (vectors,) = (each for each in answer["outputs"] if each["name"] == "sentence_embedding")
        close(np.reshape(vectors["data"], vectors["shape"])[:, :size], answers[""])
        said = await served.infer(text_input(ALL))
        close(said.as_numpy("sentence_embedding")[:, :size], answers[""])
    said = await served.infer(*id_inputs(served.made.ids))
    close(said.as_numpy("sentence_embedding")[:, :size], answers["none"])


@rows_of("rank")
async def test_rankings(served: Served) -> None:
    scores, logits = served.made.answers["scores"], served.made.answers["logits"]

    def in_order(ranked: list[dict[str, Any]], key: str = "score") -> list[float]:
        return [each[key] for each in sorted(ranked, key=lambda each: int(each["index"]))]

    tei = {"query": QUERY, "texts": ALL, "truncate": True}
    close(in_order(await served.post("/rerank", **tei)), scores)
    close(in_order(await served.post("/rerank", raw_scores=True, **tei)), logits)
    ranked = await served.post("/v1/rerank", query=QUERY, documents=ALL)
    close(in_order(ranked["results"], "relevance_score"), scores)
    scored = await served.post("/score", text_1=QUERY, text_2=ALL, truncate_prompt_tokens=-1)
    close(in_order(scored["data"]), scores)
    said = await served.infer(*id_inputs(served.made.ids, served.made.types))
    close(said.as_numpy("logits")[:, 0], logits)


@rows_of("classify")
async def test_labels(served: Served) -> None:
    labels, raw, logits = (served.made.answers[name] for name in ("labels", "raw", "logits"))

    def close_labels(got: list[list[dict[str, Any]]], wanted: list[dict[str, float]]) -> None:
        for one, other in zip(got, wanted, strict=True):
            assert {each["label"]: each["score"] for each in one} == pytest.approx(other, abs=CLOSE)

    tei = {"inputs": [[text] for text in ALL], "truncate": True}
    close_labels(await served.post("/predict", **tei), labels)
    close_labels(await served.post("/predict", raw_scores=True, **tei), raw)
    vllm = await served.post("/classify", input=ALL, truncate_prompt_tokens=-1)
    for one, wanted in zip(vllm["data"], labels, strict=True):
        close(one["probs"], list(wanted.values()))
        assert one["label"] == max(wanted, key=lambda label: wanted[label])
    infinity = await served.post("/classify", input=list(TEXTS), raw_scores=False)
    close_labels(infinity["data"], labels[:-1])
    for inputs in ([text_input(ALL)], id_inputs(served.made.ids)):
        close((await served.infer(*inputs)).as_numpy("logits"), logits)


@rows_of("tokens", "answers")
async def test_logits_of_tokens(served: Served) -> None:
    for inputs in ([text_input(ALL)], id_inputs(served.made.ids)):
        said = await served.infer(*inputs)
        for output, rows in served.made.answers.items():
            for got, row in zip(said.as_numpy(output), rows, strict=True):
                close(got[: len(row)], row)


@rows_of("embed", "rank", "classify")
async def test_tokens_and_limits(served: Served) -> None:
    made, limit = served.made, served.row.limit
    info = (await served.http.get(f"/info?model={served.name}")).json()
    assert info["max_input_length"] == limit
    assert f" {limit}" in made.beyond, made.beyond
    if served.row.ids_only:
        return
    if served.row.task != "rank":
        tokens = await served.post("/tokenize", inputs=list(TEXTS), prompt_name="")
        assert [[each["id"] for each in one] for one in tokens] == made.ids[:-1]
    path, body = {
        "embed": ("/embed", {"inputs": LONG}),
        "rank": ("/rerank", {"query": QUERY, "texts": [LONG]}),
        "classify": ("/predict", {"inputs": LONG}),
    }[served.row.task]
    refused = await served.http.post(path, json={"model": served.name, **body})
    assert refused.status_code == 422, refused.text
    assert f"{limit} tokens" in refused.text
