"""Writes the HTTP API's OpenAPI document, built into the gateway at /openapi.json, and its route table:
openapi.py OUT.json ROUTES.inc. Both are generated from routes.toml; the schemas are those of schemas.toml.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

HERE = Path(__file__).resolve().parent
TABLE = HERE.parent / "routes.toml"
SCHEMAS: dict[str, Any] = tomllib.loads((HERE / "schemas.toml").read_text())
GATEWAY, OPENAI, TEI, RERANK, KSERVE = "Gateway", "OpenAI", "TEI", "Cohere, Jina, vLLM", "KServe v2"
DIALECTS = {GATEWAY: "OpenAi", OPENAI: "OpenAi", TEI: "Tei", RERANK: "Cohere", KSERVE: "Kserve"}
BYTES = {"schema": {"type": "string", "format": "binary"}}
ANY = {400, 401, 404, 408, 413, 415, 429, 431, 503, 504}
BY_FAMILY = {OPENAI: ANY | {500}, RERANK: ANY | {500}, TEI: ANY | {422, 424}, KSERVE: ANY | {500, 501}}


def ref(name: str, kind: str = "schemas") -> Schema:
    return {"$ref": f"#/components/{kind}/{name}"}


def either(schemas: Iterable[Schema]) -> Schema:
    return {"anyOf": list(schemas)}


def expanded(of: str | dict[str, Any]) -> Schema:
    """Returns the schema that a word or a table of schemas.toml stands for."""
    if isinstance(of, dict):
        more = dict(of)
        word, outside = more.pop("is", "any"), {key: more.pop(key) for key in ("description", "default") if key in more}
        if "description" in outside:
            outside["description"] = outside["description"].format(**SCHEMAS["texts"])
        inner = expanded(word.removesuffix("?")) | more
        return (either([inner, {"type": "null"}]) if word.endswith("?") else inner) | outside
    if of.endswith("?"):
        return either([expanded(of[:-1]), {"type": "null"}])
    parts = re.split(r" \| (?![^[]*])", of)  # outside of brackets
    if len(parts) > 1:
        return either(map(expanded, parts))
    if of[0] == "[":
        made: Schema = {"type": "array", "items": expanded(of.removesuffix("+")[1:-1])}
        return made | ({"minItems": 1} if of.endswith("+") else {})
    if of[0] == "{":
        return {"type": "object", "additionalProperties": expanded(of[1:-1])}
    if of[0] == "=":
        return {"const": of[1:]}
    if of in SCHEMAS["short"]:
        return expanded(SCHEMAS["short"][of])
    return {} if of == "any" else ref(of) if of[0].isupper() else {"type": of}


def object_of(table: dict[str, Any]) -> Schema:
    properties = {name: of for name, of in table.items() if name not in ("needs", "takes")}
    for group in table.get("takes", "").split():
        properties |= SCHEMAS["groups"][group]
    made: Schema = {"type": "object", "properties": {name: expanded(of) for name, of in properties.items()}}
    return made | ({"required": table["needs"].split()} if "needs" in table else {})


def schemas() -> dict[str, Schema]:
    made = {name: expanded(of) for name, of in SCHEMAS["schemas"].items()}
    return made | {name: object_of(table) for name, table in SCHEMAS["objects"].items()}


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
        good["headers"] = {name: ref(name, "headers") for name in SCHEMAS["headers"]}
        schemas = [ref(name) for name in body.split()]
        content = {"application/json": {"schema": schemas[0] if len(schemas) == 1 else either(schemas)}}
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
    responses = {
        f"E{code}": {"description": why, "content": said, "headers": ided} for code, why in SCHEMAS["errors"].items()
    }
    parameters = {
        key: row | {"required": row["in"] == "path", "schema": expanded(row["schema"])}
        for key, row in SCHEMAS["parameters"].items()
    }
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
            "schemas": schemas(),
            "responses": responses,
            "headers": {
                name: {"description": why, "schema": {"type": "string"}} for name, why in SCHEMAS["headers"].items()
            },
            "parameters": parameters,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(document(), ensure_ascii=False, separators=(",", ":")) + "\n")
    Path(sys.argv[2]).write_text(table())
