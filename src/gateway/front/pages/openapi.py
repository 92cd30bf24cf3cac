"""Writes the HTTP API's OpenAPI document, built into the gateway at /openapi.json, and its route table:
openapi.py OUT.json ROUTES.inc. Both are generated from routes.toml; the schemas are defined here.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

TABLE = Path(__file__).resolve().parents[1] / "routes.toml"
GATEWAY, OPENAI, TEI, RERANK, KSERVE = "Gateway", "OpenAI", "TEI", "Cohere, Jina, vLLM", "KServe v2"
DIALECTS = {GATEWAY: "OpenAi", OPENAI: "OpenAi", TEI: "Tei", RERANK: "Cohere", KSERVE: "Kserve"}
INPUT_TYPES = ["query", "passage", "document", "search_query", "search_document", "classification", "clustering"]
ERRORS = {
    400: "The request is wrong, or the model cannot do it.",
    401: "The bearer token is missing or wrong.",
    404: "No such model.",
    408: "The request came too slowly.",
    413: "The body is too large.",
    415: "Another Content-Encoding than gzip and deflate.",
    422: "The request is wrong (TEI's routes).",
    424: "The model cannot do it, or failed (TEI's routes).",
    429: "Too much is asked for; retry-after-ms says when an answer may be had.",
    431: "The headers are too large.",
    500: "A worker failed.",
    501: "The model cannot do it (KServe's routes).",
    503: "No instance is in service, or the memory for requests is full.",
    504: "The deadline passed.",
}
HEADERS = {
    "x-request-id": "The client's, or made.",
    "x-total-time": "Whole ms from the request to its answer; x-compute-time is the same.",
    "x-compute-time": "Whole ms from the request to its answer.",
    "x-tokenization-time": "Whole ms that texts took to become token ids.",
    "x-queue-time": "Whole ms until a worker started.",
    "x-inference-time": "Whole ms at the worker.",
    "Server-Timing": "The same to a tenth of a ms: tokenise, queue, execute, total.",
    "x-compute-characters": "Characters of the texts, without prompts; of token ids how many they are.",
    "x-compute-tokens": "Tokens of the texts.",
    "x-arlo-stage": "Of a cascade: the highest stage that answered a row.",
    "x-arlo-escalated": "Of a cascade: rows that went on from a stage.",
    "x-arlo-degraded": "Of a cascade or a pipeline: rows whose answer is not as good as it would be with more time.",
}
BYTES = {"schema": {"type": "string", "format": "binary"}}
ANY = {400, 401, 404, 408, 413, 415, 429, 431, 503, 504}
BY_FAMILY = {OPENAI: ANY | {500}, RERANK: ANY | {500}, TEI: ANY | {422, 424}, KSERVE: ANY | {500, 501}}


def ref(name: str, kind: str = "schemas") -> Schema:
    return {"$ref": f"#/components/{kind}/{name}"}


def fields(required: str = "", /, **properties: Schema) -> Schema:
    made: Schema = {"type": "object", "properties": properties}
    return made | {"required": required.split()} if required else made


def listed(items: Schema, least: int = 0, **more: Any) -> Schema:
    return {"type": "array", "items": items, **({"minItems": least} if least else {}), **more}


def either(*schemas: Schema, **more: Any) -> Schema:
    return {**more, "anyOf": list(schemas)}


def maybe(kind: str, description: str = "", /, **more: Any) -> Schema:
    """Returns the schema of this type or null."""
    made = either({"type": kind, **more}, {"type": "null"})
    return made | {"description": description} if description else made


def flag(default: bool) -> Schema:
    return maybe("boolean") | {"default": default}


def requests() -> dict[str, Schema]:
    whole, null = {"type": "integer"}, {"type": "null"}
    truncate = (
        "NONE, START or END: what is cut off a text that is too long. true: the side that truncation_direction says, "
        "or else the model's tokenizer."
    )
    wishes = {
        "truncate": ref("Cut"),
        "truncation_direction": ref("Direction"),
        "prompt_name": ref("PromptName"),
        "input_type": maybe("string", "Where no prompt is named: what the texts are for.", enum=INPUT_TYPES),
        "priority": ref("Priority"),
        "truncate_prompt_tokens": ref("MostTokens"),
        "truncation_side": ref("Direction"),
        "add_special_tokens": flag(True),
        "utility": maybe("number", "Of a pipeline: what an answer in time is worth beside others.", minimum=0),
        "min_accuracy": maybe("number", "Of a pipeline: no less accurate way is taken.", minimum=0, maximum=1),
        "pin": maybe("string", "Of a pipeline: its stages' variants, as `small>large`."),
        "tenant": maybe("string", "Of a pipeline: whose rows they are, of those whom its configuration names."),
    }
    of_scores = {name: schema for name, schema in wishes.items() if name != "add_special_tokens"}
    task = maybe("string", "Of a model that several tasks share: which one.")
    vectors = {
        "dimensions": maybe("integer", "Vectors are cut to so many numbers.", minimum=1),
        "normalize": flag(True),
        **wishes,
        "truncate": ref("Truncate"),
    }
    one_or_two = listed(ref("AnyText"), 1, maxItems=2)
    side = either(ref("AnyText"), ref("AnyTexts"))
    text_block = fields("type text", type={"enum": ["text"]}, text=ref("AnyText"))
    parameter = either({"type": "string"}, {"type": "number"}, {"type": "boolean"})
    output = fields("name", name={"type": "string"}, parameters=ref("Parameters"))
    return {
        "Text": {"type": "string", "minLength": 1},
        "AnyText": {"type": "string"},
        "AnyTexts": listed(ref("AnyText"), 1),
        "TokenIds": listed(whole | {"minimum": 0}, 1, description="With their special tokens, taken as they are."),
        "Input": either(
            ref("Text"), listed(ref("Text"), 1), ref("TokenIds"), listed(ref("TokenIds"), 1),
            description="A text, a list of texts, token ids, or a list of such.",
        ),
        "Inputs": either(
            ref("AnyText"), ref("AnyTexts"), ref("TokenIds"), listed(ref("TokenIds"), 1),
            description="A text, a list of texts, token ids, or a list of such.",
        ),
        "MostTokens": either(whole | {"const": -1}, whole | {"minimum": 1}, null,
                             description="vLLM's: a text is cut to so many tokens; -1: to what the model takes."),
        "Cut": either({"type": "boolean"}, {"type": "string", "enum": ["NONE", "START", "END"]}, null,
                      description=truncate),
        "Truncate": either({"type": "boolean"}, {"type": "string", "enum": ["NONE", "START", "END", "CHUNK"]}, null,
                           description=truncate + " CHUNK: it is cut into windows, and its vector is their mean."),
        "Direction": maybe("string", enum=["left", "right", "Left", "Right"]),
        "Priority": either({"type": "string", "enum": ["interactive", "bulk"]}, whole, null,
                           description="A number above 0 is bulk."),
        "PromptName": maybe("string", "Of a prompt that goes before each text."),
        "Model": maybe("string", "May be left out where one model is served."),
        "OpenAiEmbeddingsRequest": fields(
            "input", model=ref("Model"), input=ref("Input"),
            encoding_format=maybe("string", "bytes: vLLM's octet-stream; the header `metadata` says what is where.",
                                  enum=["float", "base64", "bytes", "bytes_only"]),
            embedding_type=maybe("string", "NIM's; binary: the signs of the numbers.",
                                 enum=["float", "binary", "ubinary"]),
            embed_dtype=maybe("string", enum=["float32"]), endianness=maybe("string", enum=["little", "native"]),
            **vectors,
        ),
        "CohereEmbedRequest": fields(
            model=ref("Model"), texts=either(ref("AnyTexts"), null),
            inputs=either(listed(fields("content", content=listed(text_block, 1)), 1), null)
            | {"description": "In place of texts: a vector of each."},
            embedding_types=either(listed({"enum": ["float", "base64", "binary", "ubinary"]}, 1, maxItems=4), null),
            output_dimension=maybe("integer", minimum=1), max_tokens=maybe("integer", minimum=1), **vectors,
        ),
        "ScoreRequest": either(
            *(fields(f"{first} {second}", **{first: side, second: side}, model=ref("Model"), use_activation=flag(True),
                     **of_scores)
              for first, second in (("queries", "documents"), ("text_1", "text_2"))),
            description="One text for all others, or as many as those.",
        ),
        "ClassifyRequest": fields(
            "input", input=side, model=ref("Model"), use_activation=flag(True),
            raw_scores=flag(False) | {"description": "infinity's; with it the answer is in infinity's form."},
            task=task, **of_scores,
        ),
        "VertexRequest": fields(
            "instances", model=ref("Model"),
            instances=listed(
                either(*(ref(f"{name}Request") for name in ("Embed", "Predict", "TeiRerank", "Similarity"))), 1
            ),
        ),
        "EmbedRequest": fields("inputs", inputs=ref("Inputs"), model=ref("Model"), **vectors),
        "EmbedAllRequest": fields("inputs", inputs=ref("Inputs"), model=ref("Model"), **wishes),
        "SparseRequest": fields(model=ref("Model")),
        "SimilarityRequest": fields(
            "inputs",
            inputs=fields("source_sentence sentences", source_sentence=ref("AnyText"), sentences=ref("AnyTexts")),
            parameters=either(fields(**vectors), null), model=ref("Model"),
        ),
        "PredictRequest": fields(
            "inputs",
            inputs=either(ref("AnyText"), one_or_two | {"minItems": 2}, listed(one_or_two, 1),
                          description="A text, a pair of texts, or a list of lists of one or of two."),
            raw_scores=flag(False), task=task, model=ref("Model"), **of_scores,
        ),
        "TeiRerankRequest": fields(
            "query texts", query=ref("Text"), texts=ref("AnyTexts"), raw_scores=flag(False), return_text=flag(False),
            model=ref("Model"), **of_scores,
        ),
        "RerankRequest": fields(
            "query documents", query=ref("Text"),
            documents=listed(either(ref("AnyText"), {"type": "object"}), 1),
            rank_fields=either(listed(ref("Text"), maxItems=64, uniqueItems=True), null)
            | {"description": "Of documents that are objects: what is ranked. Left out: their field text."},
            top_n=maybe("integer", "0, or left out: all.", minimum=0),
            return_documents=flag(False), raw_scores=flag(False), use_activation=flag(True), truncation=flag(True),
            model=ref("Model"), **of_scores,
        ),
        "TokenizeRequest": fields(
            "inputs", inputs=side, add_special_tokens=flag(True),
            prompt_name=ref("PromptName"), model=ref("Model"),
        ),
        "DecodeRequest": fields(
            "ids", ids=either(ref("TokenIds"), listed(listed(whole | {"minimum": 0}), 1)),
            skip_special_tokens=flag(True), model=ref("Model"),
        ),
        "Parameters": either({"type": "object", "maxProperties": 256, "additionalProperties": parameter}, null),
        "Tensor": fields(
            "name datatype shape", name={"type": "string"}, datatype={"type": "string"},
            shape=listed(whole, maxItems=8), parameters=ref("Parameters"),
            data=listed({}, description="Flat or nested. Left out where parameters.binary_data_size says how many of "
                        "the bytes behind the JSON are its."),
        ),
        "InferRequest": fields(
            "inputs", id=maybe("string"), parameters=ref("Parameters"),
            inputs=listed(ref("Tensor"), 1, maxItems=256), outputs=either(listed(output, maxItems=256), null),
        ),
    }  # fmt: skip


def answers() -> dict[str, Schema]:
    word, whole = {"type": "string"}, {"type": "integer"}
    number = maybe("number", "null: the model's number is not finite.")
    scored = fields("score label", score=number, label=word)
    token = fields(
        "id text special start stop", id=whole, text=word, special={"type": "boolean"},
        start=maybe("integer", "Character of the text with its prompt; null: of none."),
        stop=maybe("integer"),
    )  # fmt: skip
    vector = fields(
        "object index embedding", object={"const": "embedding"}, index=whole,
        embedding=either(ref("Vector"), word | {"contentEncoding": "base64", "description": "Little-endian FP32."}),
        pieces=whole | {"description": "Windows of a text that was cut with CHUNK."},
    )  # fmt: skip
    openai_error = fields("message type param code", message=word, type=word, param={}, code={})
    return {
        "Usage": fields("prompt_tokens total_tokens", prompt_tokens=whole, total_tokens=whole),
        "Vector": listed(number),
        "Vectors": listed(ref("Vector")),
        "VectorsOfTokens": listed(ref("Vectors")),
        "OpenAiEmbeddings": fields(
            "object data model usage", object={"const": "list"}, data=listed(vector), model=word, usage=ref("Usage")
        ),
        "Models": fields(
            "object data", object={"const": "list"}, data=listed(ref("ServedModel"))
        ),
        "CohereEmbeddings": fields(
            "id response_type embeddings texts meta", id=word, response_type=word, texts=listed(word),
            embeddings=either({"type": "object", "additionalProperties": listed({})}, ref("Vectors")),
            meta={"type": "object"},
        ),
        "Scores": fields(
            "id object created model data usage", id=word, object={"const": "list"}, created=whole, model=word,
            usage=ref("Usage"), data=listed(fields("index object score", index=whole, object={"const": "score"},
                                                   score=number)),
        ),
        "Classes": fields(
            "id object created model data usage", id=word, object=word, created=whole, model=word, usage=ref("Usage"),
            data=listed(either(ref("Labels"), fields("index label probs num_classes", index=whole, label=word,
                                                     probs=ref("Vector"), num_classes=whole))),
        ),
        "Predictions": fields("predictions", predictions=listed(ref("OwnAnswer"))),
        "ServedModel": fields(
            "id object created owned_by", id=word, object={"const": "model"}, created=whole, owned_by=word,
            root=word | {"description": "Of a further name: the model that is meant."},
        ),
        "Labels": listed(scored),
        "LabelsOrLists": either(ref("Labels"), listed(ref("Labels"))),
        "TeiRanks": listed(fields("index score", index=whole, score=number, text=word)),
        "Ranks": fields(
            "id model results", id=word, model=word, usage=ref("Usage"), meta={"type": "object"},
            results=listed(fields("index relevance_score", index=whole, relevance_score=number,
                                  document=either(fields("text", text=word), word | {"description": "infinity's."}))),
            object={"const": "rerank", "description": "infinity's."}, created=whole,
        ),
        "EitherRanks": either(ref("TeiRanks"), ref("Ranks")),
        "Tokens": listed(listed(token)),
        "DecodedTexts": listed(word),
        "OwnAnswer": either(
            *(ref(name) for name in ("Vectors", "LabelsOrLists", "Vector", "EitherRanks")),
            description="Of embedders, classifiers, `source_sentence` and `sentences`, and of a `query`.",
        ),
        "Info": fields("model_id model_type max_input_length", model_id=word, model_type={"type": "object"},
                       max_input_length=whole, max_client_batch_size=whole),
        "InferResponse": fields("model_name outputs", id=word, model_name=word, model_version=word,
                                parameters={"type": "object"}, outputs=listed(ref("Tensor"))),
        "Index": listed({"type": "object"}),
        "Object": {"type": "object"},
        "Health": fields("status", status={"type": "string", "enum": ["ready", "not ready"]}),
        "NimHealth": fields("object message", object={"const": "health.response"}, message=word,
                            ready={"type": "boolean"}, live={"type": "boolean"}),
        "NimVersion": fields("release api", release=word, api=word),
        "Error": either(
            fields("error", error=openai_error), fields("error", error=word, error_type=word),
            fields("message id", message=word, id=word),
            description="In the words of the API that was asked: OpenAI's, TEI's or KServe's, Cohere's.",
        ),
    }  # fmt: skip


def parameters() -> dict[str, Schema]:
    name = {"type": "string", "minLength": 1, "pattern": "^[^/?#]+$"}
    hexadecimal = "^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"

    def header(name: str, description: str, schema: Schema) -> Schema:
        return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}

    return {
        "Timeout": header("x-request-timeout-ms", "How long the client waits, in place of the model's default.",
                          {"type": "integer", "minimum": 1, "maximum": 2**32 - 1}),
        "RequestId": header("x-request-id", "Comes back, and stands in logs and traces.",
                            {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[!-~]+$"}),
        "Traceparent": header("traceparent", "W3C's; goes on to the worker.",
                              {"type": "string", "pattern": hexadecimal}),
        "JsonSize": header("Inference-Header-Content-Length", "Bytes of the JSON, where tensors follow it.",
                           {"type": "integer", "minimum": 1}),
        "AnyModel": {"name": "model", "in": "query", "required": False, "schema": {"type": "string", "minLength": 1}},
        "Named": {"name": "model", "in": "path", "required": True, "schema": name},
        "Version": {"name": "version", "in": "path", "required": True, "schema": name, "description": "There is 1."},
    }  # fmt: skip


def routes() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yields each route: its family, method and path, and the rest of its row."""
    for family, rows in tomllib.loads(TABLE.read_text()).items():
        for key, row in rows.items():
            method, *paths = key.split()
            yield from ((family, method, path, row) for path in paths)


def table() -> str:
    """Returns the routes as rows of `Route` (http/routes.h)."""
    made = ""
    for family, method, path, row in routes():
        pattern = path.replace("{model}", "**").replace("{version}", "*")
        by = f"make_{row['task']}, nullptr" if "task" in row else f"nullptr, say_{row['say']}"
        dialect, public = row.get("dialect", DIALECTS[family]), str(row.get("open", False)).lower()
        made += f'{{"{method}", "{pattern}", Dialect::k{dialect}, {public}, {by}}},\n'
    return made


def operation(family: str, method: str, path: str, row: dict[str, Any]) -> Schema:
    body, public = row.get("body"), row.get("open", False)
    names = [name for name, part in (("Named", "{model}"), ("Version", "{version}")) if part in path]
    names += row.get("params", [])
    if body:
        names += [*(["AnyModel"] if family in (TEI, RERANK) else []), "Timeout", "RequestId", "Traceparent"]
    good: Schema = {"description": "The answer."}
    if "answer" in row:
        good["content"] = {"application/json": {"schema": ref(row["answer"])}}
    if "types" in row:
        good["content"] = {kind: {"schema": {"type": "string"}} for kind in row["types"]}
    if "bytes" in row:
        good["content"]["application/octet-stream"] = BYTES
    codes = {400, 408, 413, 431} if public else BY_FAMILY.get(family, ANY)
    made: Schema = {
        "tags": [family],
        "operationId": (method.lower() + path).replace("/", "_").translate({ord(c): None for c in "{}"}),
        "summary": row["summary"],
        "parameters": [ref(name, "parameters") for name in names],
        "security": [] if public else [{}, {"bearer": []}],
    }
    if body:
        good["headers"] = {name: ref(name, "headers") for name in HEADERS}
        schemas = [ref(name) for name in body.split()]
        content = {"application/json": {"schema": schemas[0] if len(schemas) == 1 else either(*schemas)}}
        made["requestBody"] = {
            "required": True,
            "content": content | ({"application/octet-stream": BYTES} if row.get("bytes") == "both" else {}),
        }
    if row.get("both"):
        codes = BY_FAMILY[TEI] | BY_FAMILY[RERANK]
    made["responses"] = {"200": good} | {str(code): ref(f"E{code}", "responses") for code in sorted(codes)}
    if "unready" in row:
        made["responses"]["503"] = good | {"description": row["unready"]}
    return made


def paths() -> dict[str, Schema]:
    made: dict[str, Schema] = {}
    for family, method, path, row in routes():
        made.setdefault(path, {})[method.lower()] = operation(family, method, path, row)
    return made


def document() -> Schema:
    ided = {"x-request-id": ref("x-request-id", "headers")}
    said = {"application/json": {"schema": ref("Error")}}
    responses = {f"E{code}": {"description": why, "content": said, "headers": ided} for code, why in ERRORS.items()}
    extra = {401: "WWW-Authenticate", 429: "retry-after-ms", 503: "retry-after", 504: "x-should-retry"}
    for code, name in extra.items():
        responses[f"E{code}"]["headers"] = ided | {name: {"schema": {"type": "string"}}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Arlo",
            "version": "0.1.0",
            "description": "Text in, in the forms of OpenAI, TEI, Cohere and KServe. Unknown fields are ignored.",
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in (GATEWAY, OPENAI, TEI, RERANK, KSERVE)],
        "paths": paths(),
        "components": {
            "schemas": requests() | answers(),
            "responses": responses,
            "headers": {name: {"description": why, "schema": {"type": "string"}} for name, why in HEADERS.items()},
            "parameters": parameters(),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(document(), ensure_ascii=False, separators=(",", ":")) + "\n")
    Path(sys.argv[2]).write_text(table())
