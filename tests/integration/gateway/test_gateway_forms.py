"""Further forms in which the same is asked: Cohere's embeddings, vLLM's and infinity's scores and labels, NIM's fields,
vectors as bytes, Vertex's lists, empty texts."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from scipy.special import expit, softmax
from tokenizers import Tokenizer

from tests.fakes.gateway import Gateway, gateway_of
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.api_models import NAMES, PROMPT, TEXTS, post
from tests.integration.gateway.replayed import recorded

pytestmark = pytest.mark.integration


async def refusal(http: httpx.AsyncClient, path: str, **fields: Any) -> str:
    answer = await http.post(path, json={"model": "emu", **fields})
    assert answer.status_code in (400, 422), answer.text
    return answer.text


def signs(vectors: Any) -> Any:
    return np.packbits(np.asarray(vectors) > 0, axis=1)


async def test_embeddings_in_coheres_words(http: httpx.AsyncClient, known: Tokenizer) -> None:
    wanted = np.array(await post(http, "/embed", inputs=TEXTS))
    second = await post(
        http, "/v2/embed", texts=TEXTS, input_type="classification",
        embedding_types=["float", "base64", "binary", "ubinary"],
    )  # fmt: skip
    assert second["response_type"] == "embeddings_by_type"
    assert second["texts"] == TEXTS
    tokens = sum(len(known.encode(text).ids) for text in TEXTS)
    assert second["meta"]["billed_units"] == {"input_tokens": tokens}
    got = second["embeddings"]
    np.testing.assert_allclose(got["float"], wanted, atol=1e-6)
    packed = [np.frombuffer(base64.b64decode(each, validate=True), "<f4") for each in got["base64"]]
    np.testing.assert_allclose(packed, wanted, atol=1e-6)
    assert got["ubinary"] == signs(wanted).tolist()
    assert got["binary"] == (signs(wanted).astype(int) - 128).tolist()
    assert list((await post(http, "/v2/embed", texts=TEXTS))["embeddings"]) == ["float"]
    first = await post(http, "/v1/embed", texts=TEXTS)
    assert first["response_type"] == "embeddings_floats"
    np.testing.assert_allclose(first["embeddings"], wanted, atol=1e-6)
    long = "word " * 600
    cut = await post(http, "/v2/embed", texts=[long], normalize=False)  # the end is left out, unless said otherwise
    assert cut["embeddings"]["float"] == await post(http, "/embed", inputs=long, truncate=True, normalize=False)
    few = await post(http, "/v2/embed", texts=[long], max_tokens=5, truncate="START", normalize=False)
    ids = known.encode(long).ids
    assert few["embeddings"]["float"][0][0] == sum([ids[0], *ids[-4:]])
    short = await post(http, "/v2/embed", texts=TEXTS, output_dimension=2)
    assert np.shape(short["embeddings"]["float"]) == (3, 2)
    assert "more than the 512 tokens" in await refusal(http, "/v2/embed", texts=[long], truncate="NONE")
    assert "int8 needs the range" in await refusal(http, "/v2/embed", texts=TEXTS, embedding_types=["int8"])
    assert "texts are taken" in await refusal(http, "/v2/embed", images=["data:image/png;base64,AA=="])
    assert "input_type" in await refusal(http, "/v2/embed", texts=TEXTS, input_type="image")


async def test_what_texts_are_for(http: httpx.AsyncClient) -> None:
    """The prompt for queries goes before them; there is none for passages, so those stay as they are."""
    plain = await post(http, "/v1/embeddings", input="a", normalize=False)
    query = await post(http, "/v1/embeddings", input=PROMPT + "a", normalize=False)
    assert plain["data"] != query["data"]
    for said, wanted in (("query", query), ("search_query", query), ("passage", plain), ("search_document", plain)):
        got = await post(http, "/v1/embeddings", input="a", input_type=said, normalize=False)
        assert got["data"] == wanted["data"]
    for name, wanted in (("emu-query", query), ("emu-passage", plain)):
        got = await post(http, "/v1/embeddings", name, input="a", normalize=False)
        assert got["data"] == wanted["data"]
    for name in ("emu-document", "-query", "other-query"):
        answer = await http.post("/v1/embeddings", json={"model": name, "input": "a"})
        assert answer.status_code == 404
    assert (await http.post("/tokenize", json={"model": "emu-query", "inputs": "a"})).status_code == 404


async def test_vectors_as_bytes(http: httpx.AsyncClient) -> None:
    wanted = np.array(await post(http, "/embed", inputs=TEXTS), "<f4")
    body = {"model": "emu", "input": TEXTS, "encoding_format": "bytes"}
    answer = await http.post("/v1/embeddings", json=body)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.content == wanted.tobytes()
    metadata = json.loads(answer.headers["metadata"])
    for each, vector in zip(metadata["data"], wanted, strict=True):
        assert answer.content[each["start"] : each["end"]] == vector.tobytes()
        assert (each["embed_dtype"], each["endianness"], each["shape"]) == ("float32", "little", [4])
    only = await http.post("/v1/embeddings", json={**body, "encoding_format": "bytes_only"})
    assert only.content == wanted.tobytes()
    assert "metadata" not in only.headers
    assert "take bytes_only" in await refusal(http, "/v1/embeddings", input=["a"] * 64, encoding_format="bytes")
    assert "float32" in await refusal(http, "/v1/embeddings", input="a", encoding_format="bytes", embed_dtype="float16")
    binary = await post(http, "/v1/embeddings", input=TEXTS, embedding_type="ubinary")
    assert [each["embedding"] for each in binary["data"]] == signs(wanted).tolist()
    packed = await post(http, "/v1/embeddings", input=TEXTS, embedding_type="binary", encoding_format="base64")
    assert base64.b64decode(packed["data"][0]["embedding"]) == bytes(signs(wanted)[0] ^ 0x80)


async def test_tokens_that_are_asked_for(http: httpx.AsyncClient, known: Tokenizer) -> None:
    bare = await post(http, "/embed", inputs=TEXTS, add_special_tokens=False, normalize=False)
    assert [row[0] for row in bare] == [sum(known.encode(text, add_special_tokens=False).ids) for text in TEXTS]
    ids = known.encode(TEXTS[2]).ids
    cut = await post(http, "/embed", inputs=TEXTS[2], truncate_prompt_tokens=4, normalize=False)
    assert cut[0][0] == sum([*ids[:3], ids[-1]])
    left = await post(
        http, "/embed", inputs=TEXTS[2], truncate_prompt_tokens=4, truncation_side="left", normalize=False
    )
    assert left[0][0] == sum([ids[0], *ids[-3:]])
    assert "truncation_side must be" in await refusal(http, "/embed", inputs="a", truncation_side="up")
    assert "the 4 tokens that the request allows" in await refusal(
        http, "/v2/embed", texts=TEXTS[2:], max_tokens=4, truncate="NONE"
    )
    all_of_it = await post(http, "/embed", inputs="word " * 600, truncate_prompt_tokens=-1, normalize=False)
    assert all_of_it == await post(http, "/embed", inputs="word " * 600, truncate=True, normalize=False)
    wrong = {"model": "ranker", "query": "a", "documents": ["b"], "truncate_prompt_tokens": 5}
    answer = await http.post("/rerank", json=wrong)
    assert (answer.status_code, "of scores" in answer.text) == (400, True)


async def test_scores_in_vllms_words(http: httpx.AsyncClient, known: Tokenizer) -> None:
    sums = np.array([sum(known.encode("one query", text).ids) for text in TEXTS], float)
    for path, names in (("/score", ("text_1", "text_2")), ("/v1/score", ("queries", "documents"))):
        raw = await post(http, path, "ranker", **{names[0]: "one query", names[1]: TEXTS}, use_activation=False)
        assert [each["score"] for each in raw["data"]] == sums.tolist()
        assert [each["index"] for each in raw["data"]] == [0, 1, 2]
        assert raw["usage"]["total_tokens"] == sum(len(known.encode("one query", text).ids) for text in TEXTS)
        assert raw["object"] == "list"
        assert raw["created"] > 1_700_000_000
    paired = await post(http, "/score", "ranker", text_1=TEXTS, text_2=TEXTS)
    each = [expit(float(sum(known.encode(text, text).ids))) for text in TEXTS]
    np.testing.assert_allclose([one["score"] for one in paired["data"]], each, atol=1e-6)
    answer = await http.post("/score", json={"model": "ranker", "text_1": TEXTS[:2], "text_2": TEXTS})
    assert (answer.status_code, "as many as" in answer.text) == (400, True)
    assert "no reranker" in await refusal(http, "/score", text_1="a", text_2="b")


async def test_labels_in_vllms_and_infinitys_words(http: httpx.AsyncClient, known: Tokenizer) -> None:
    logits = recorded("small")[0][[known.encode(text).ids[1] for text in TEXTS]].astype(float)
    answer = await post(http, "/classify", "small", input=TEXTS)
    for row, scores in zip(answer["data"], softmax(logits, axis=1), strict=True):
        np.testing.assert_allclose(row["probs"], scores, atol=1e-6)
        assert (row["label"], row["num_classes"]) == (NAMES[int(scores.argmax())], len(NAMES))
    plain = await post(http, "/classify", "small", input=TEXTS[0], use_activation=False)
    np.testing.assert_allclose(plain["data"][0]["probs"], logits[0], atol=1e-6)
    infinity = await post(http, "/classify", "small", input=TEXTS, raw_scores=False)
    assert infinity["object"] == "classify"
    assert infinity["data"] == await post(http, "/predict", "small", inputs=[[text] for text in TEXTS])
    assert "no classifier" in await refusal(http, "/classify", input="a")


async def test_vertex_asks_several_at_once(http: httpx.AsyncClient) -> None:
    single = [await post(http, "/embed", inputs=text) for text in TEXTS]
    together = await post(http, "/vertex", instances=[{"inputs": text} for text in TEXTS])
    assert together == {"predictions": single}
    mixed = await post(http, "/vertex", instances=[{"inputs": TEXTS}, {"inputs": "a"}])
    assert [len(each) for each in mixed["predictions"]] == [3, 1]
    labels = await post(http, "/vertex", "small", instances=[{"inputs": text} for text in TEXTS])
    assert labels["predictions"][1] == await post(http, "/predict", "small", inputs=TEXTS[1])
    ranks = await post(
        http, "/vertex", "ranker", instances=[{"query": "q", "texts": TEXTS}, {"query": "r", "texts": ["b"]}]
    )
    assert ranks["predictions"][0] == await post(http, "/rerank", "ranker", query="q", texts=TEXTS)
    assert len(ranks["predictions"][1]) == 1
    ids = [[1, 5, 2], [1, 2], [1, 6, 7, 2]]
    of_ids = await post(http, "/vertex", instances=[{"inputs": each, "normalize": False} for each in ids])
    assert [each[0][0] for each in of_ids["predictions"]] == [sum(each) for each in ids]
    for unlike in ({"truncate": True}, {"dimensions": 3}):
        both = [{"inputs": "a", "dimensions": 2, "truncate": False}, {"inputs": "b", "dimensions": 2, **unlike}]
        assert "differ in more" in await refusal(http, "/vertex", instances=both)
    assert "stand in texts" in await refusal(http, "/vertex", instances=[{"query": "q", "documents": TEXTS}])
    assert "65 rows; 1 to 64 are taken" in await refusal(http, "/vertex", instances=[{}] * 65)
    assert "64 are taken" in await refusal(http, "/vertex", instances=[{"inputs": ["a"] * 40}] * 2)
    assert "instances is empty" in await refusal(http, "/vertex", instances=[])


async def test_empty_texts_are_texts(http: httpx.AsyncClient, known: Tokenizer) -> None:
    """But OpenAI's API takes none."""
    vectors = await post(http, "/embed", inputs=["", "a"], normalize=False)
    assert vectors[0][0] == sum(known.encode("").ids)
    ranks = await post(http, "/rerank", "ranker", query="q", texts=["", "b"], raw_scores=True)
    assert {each["index"]: each["score"] for each in ranks}[0] == sum(known.encode("q", "").ids)
    assert len((await post(http, "/tokenize", inputs=""))[0]) == 2
    assert "a text is empty" in await refusal(http, "/v1/embeddings", input="")


async def test_a_body_that_is_a_text(http: httpx.AsyncClient, known: Tokenizer) -> None:
    """Triton's form of a request without JSON."""
    text = TEXTS[1].encode()
    size = {"inference-header-content-length": "0"}
    answer = await http.post("/v2/models/emu/infer", content=text, headers=size)
    assert answer.status_code == 200, answer.text
    length = int(answer.headers["inference-header-content-length"])
    outputs = {each["name"]: each for each in json.loads(answer.content[:length])["outputs"]}
    assert outputs["embedding"]["parameters"]["binary_data_size"] == 16
    binary = answer.content[length:]
    at = 0
    for name, output in outputs.items():
        size_of = output["parameters"]["binary_data_size"]
        if name == "embedding":
            values = np.frombuffer(binary[at : at + size_of], "<f4")
            assert values.tolist() == [sum(known.encode(TEXTS[1]).ids)] * 4
        at += size_of
    assert at == len(binary)


async def test_paths_of_other_servers(http: httpx.AsyncClient) -> None:
    body = {"model": "emu", "input": "a"}
    wanted = (await http.post("/v1/embeddings", json=body)).json()
    assert (await http.post("/openai/v1/embeddings", json=body)).json() == wanted
    assert (await http.get("/openai/v1/models")).json() == (await http.get("/v1/models")).json()
    assert (await http.get("/v1/models/emu")).json()["id"] == "emu"
    assert (await http.get("/v1/models/none")).status_code == 404
    assert (await http.get("/api-doc/openapi.json")).json()["openapi"] == "3.1.0"
    broken = await http.post("/embed", content=b"{")
    assert (broken.status_code, broken.json()["error_type"]) == (400, "Validation")
    empty = await http.post("/embed", json={"model": "emu", "inputs": []})
    assert (empty.status_code, empty.json()["error_type"]) == (400, "Empty")
    named = await http.post("/v2/rerank", json={"model": "ranker", "query": "q", "documents": ["d"]},
                            headers={"x-request-id": "mine"})  # fmt: skip
    assert named.json()["id"] == "rerank-mine"


async def test_rankings_in_infinitys_words(http: httpx.AsyncClient) -> None:
    """Its clients send raw_scores in each request, as other servers' never do beside documents."""
    asked = {"query": "one query", "documents": TEXTS, "return_documents": True}
    usual = await post(http, "/rerank", "ranker", **asked)
    answer = await post(http, "/rerank", "ranker", **asked, raw_scores=False, top_n=2)
    assert set(answer) == {"id", "object", "created", "model", "results", "usage"}
    assert answer["object"] == "rerank"
    assert answer["created"] > 1_700_000_000
    assert answer["usage"] == usual["usage"]
    for each, other in zip(answer["results"], usual["results"], strict=False):
        assert each == {**other, "document": other["document"]["text"]}
    assert len(answer["results"]) == 2
    assert (
        "document"
        not in (await post(http, "/rerank", "ranker", query="q", documents=TEXTS, raw_scores=True))["results"][0]
    )
    v1 = await post(http, "/v1/rerank", "ranker", **asked, raw_scores=False)
    assert v1["results"][0]["document"] == {"text": TEXTS[v1["results"][0]["index"]]}


async def test_paths_of_nim(served: Gateway, http: httpx.AsyncClient) -> None:
    ready = await http.get("/v1/health/ready")
    assert (ready.status_code, ready.json()) == (200, {"object": "health.response", "message": "ready", "ready": True})
    assert (await http.get("/v1/health/live")).json() == {"object": "health.response", "message": "live", "live": True}
    assert set((await http.get("/v1/version")).json()) == {"release", "api"}


async def test_metrics_beside_the_api(served: Gateway, http: httpx.AsyncClient) -> None:
    await post(http, "/embed", inputs="a")
    for path in ("/metrics", "/v1/metrics"):
        plain = await http.get(path)
        assert plain.headers["content-type"].startswith("text/plain")
        families = {family.name for family in text_string_to_metric_families(plain.text)}
        assert {"arlo_queued", "arlo_computed_tokens"} <= families
        packed = await http.get(path, headers={"accept": "application/openmetrics-text"})
        assert packed.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert packed.text.endswith("# EOF\n")
    async with httpx.AsyncClient(base_url=f"http://{served.http}") as admin:
        of_admin = {family.name for family in text_string_to_metric_families((await admin.get("/metrics")).text)}
    assert families == of_admin


async def test_further_names_of_models(workers: Workers, tokenizer: Path, tmp_path: Path) -> None:
    deployment = workers.deployment("emu", [(0, 64)])
    deployment.model.tokenizer = tokenizer.read_bytes()
    token = tmp_path / "token"
    token.write_text("secret")
    aliases = {"text-embedding-3-small": "emu", "emu": "nobody", "gone": "nobody"}
    async with gateway_of(tmp_path / "g", deployment, aliases=aliases, bearer_token_file=str(token)) as gateway:
        headers = {"authorization": "Bearer secret"}
        async with httpx.AsyncClient(base_url=f"http://{gateway.api}", headers=headers, timeout=20) as client:
            for name in ("emu", "text-embedding-3-small"):  # what is served goes first
                answer = await post(client, "/v1/embeddings", name, input="a")
                assert answer["model"] == "emu"
            listed = (await client.get("/v1/models")).json()["data"]
            assert [(each["id"], each.get("root")) for each in listed] == [
                ("emu", None),
                ("text-embedding-3-small", "emu"),
            ]
            of_it = (await client.get("/v1/models/text-embedding-3-small")).json()
            assert (of_it["id"], of_it["root"]) == ("text-embedding-3-small", "emu")
            assert (await client.get("/info?model=text-embedding-3-small")).json()["model_id"] == "emu"
            assert (await client.get("/v2/models/text-embedding-3-small/ready")).status_code == 200
            stats = (await client.get("/v2/models/text-embedding-3-small/stats")).json()["model_stats"]
            assert [each["name"] for each in stats] == ["emu"]
            gone = await client.post("/v1/embeddings", json={"model": "gone", "input": "a"})
            assert (gone.status_code, "'nobody'" in gone.text) == (404, True)
            assert (await client.get("/metrics", headers={"authorization": "Bearer other"})).status_code == 401


async def test_a_class_by_path_and_by_token(workers: Workers, tmp_path: Path) -> None:
    for name in ("any", "later"):
        (tmp_path / name).write_text(name)
    options = {
        "bearer_token_file": str(tmp_path / "any"),
        "bulk_token_file": str(tmp_path / "later"),
        "bulk_paths": ["/v1/embeddings", "/v2/models/"],
    }
    ids, tensor = [[101, 7, 102]], {"name": "input_ids", "datatype": "INT64", "shape": [1, 3], "data": [101, 7, 102]}
    kserve = {"inputs": [tensor, tensor | {"name": "attention_mask", "data": [1, 1, 1]}]}
    asked: list[tuple[str, str, dict[str, Any], bool]] = [
        ("/v1/embeddings", "any", {"input": ids}, True),
        ("/v1/embeddings", "any", {"input": ids, "priority": "interactive"}, False),
        ("/v1/embeddings", "any", {"input": ids, "priority": 0}, False),
        ("/v1/embeddings", "later", {"input": ids, "priority": "interactive"}, True),
        ("/embed", "any", {"inputs": ids}, False),
        ("/embed", "any", {"inputs": ids, "priority": 1}, True),
        ("/embed", "later", {"inputs": ids}, True),
        ("/v2/models/emu/infer", "any", kserve, True),
        ("/v2/models/emu/infer", "any", kserve | {"parameters": {"arlo_class": "interactive"}}, False),
    ]
    deployment = workers.deployment("emu", [(0, 64)])
    async with gateway_of(tmp_path / "g", deployment, **options) as gateway:
        async with httpx.AsyncClient(base_url=f"http://{gateway.api}", timeout=20) as client:
            for path, token, body, bulk in asked:
                before = (await gateway.stats()).bulk
                answer = await client.post(
                    path, json={"model": "emu", **body}, headers={"authorization": f"Bearer {token}"}
                )
                assert answer.status_code == 200, answer.text
                assert (await gateway.stats()).bulk - before == bulk, (path, token, body)
            wrong = await client.post("/embed", json={"inputs": ids}, headers={"authorization": "Bearer other"})
            assert wrong.status_code == 401


async def test_errors_of_cohere_have_the_requests_id(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v2/rerank", json={"model": "emu", "query": "a"}, headers={"x-request-id": "mine"})
    assert (answer.status_code, answer.json()["id"]) == (400, "mine")
    answer = await http.post("/v2/rerank", json={"model": "emu", "query": "a"})
    assert answer.json()["id"] == answer.headers["x-request-id"] != ""
