"""The page of the site that shows the HTTP API's OpenAPI document: `page()`. The document is that of the gateway."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

SOURCE = Path(__file__).resolve().parents[2] / "src/gateway/front/pages/openapi.py"
HEAD = """# HTTP API: every path

What the gateway says at `/openapi.json` ([the document](openapi.json)), as a page; what it means stands in
[HTTP API](http.md). Every path under `/v1/` is there under `/openai/v1/`, too.
"""


def document() -> Schema:
    """The OpenAPI document, as the gateway has it built in."""
    spec = importlib.util.spec_from_file_location("arlo_openapi", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Schema = module.document()
    return made


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]


def _kind(schema: Schema) -> str:
    """The type in words; of a schema with a name a link to it."""
    if "$ref" in schema:
        return f"[{_name(schema['$ref'])}](#schema-{_name(schema['$ref'])})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_kind, schema["anyOf"])))
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if schema.get("type") == "array":
        limits = _limits(schema, "minItems", "maxItems", "")
        return f"list{limits} of {_kind(schema['items'])}"
    kind = str(schema.get("type", "anything"))
    return kind + _limits(schema, "minimum", "maximum", "") + _limits(schema, "minLength", "maxLength", " characters")


def _limits(schema: Schema, least: str, most: str, unit: str) -> str:
    words = [f"{mark} {schema[key]}" for mark, key in (("≥", least), ("≤", most)) if key in schema]
    return f" ({', '.join(words)}{unit})" if words else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _fields(schema: Schema) -> list[str]:
    """The fields of an object as a table."""
    required = schema.get("required", [])
    lines = ["| field | | |", "|---|---|---|"]
    for name, each in schema["properties"].items():
        words = [each["description"]] if "description" in each else []
        words += ["required"] if name in required else []
        words += [f"default `{json.dumps(each['default'])}`"] if "default" in each else []
        lines.append(f"| `{name}` | {_cell(_kind(each))} | {_cell('; '.join(words))} |")
    return lines


def _contents(content: Schema) -> str:
    parts = [f"{_kind(each['schema'])} (`{kind}`)" for kind, each in content.items()]
    return ", or ".join(parts)


def _operation(method: str, path: str, each: Schema) -> list[str]:
    lines = [f"### `{method.upper()} {path}`", "", each["summary"] + "."]
    if "requestBody" in each:
        lines += ["", f"Body: {_contents(each['requestBody']['content'])}."]
    names = [_name(parameter["$ref"]) for parameter in each["parameters"]]
    if names:
        lines += ["", f"Parameters: {', '.join(f'[{name}](#parameter-{name})' for name in names)}."]
    good = each["responses"]["200"]
    lines += ["", f"200: {_contents(good['content']) if 'content' in good else good['description']}."]
    others = [code for code in each["responses"] if code != "200"]
    lines += ["", f"Else {', '.join(others)}: [why](#statuses)." + ("" if each["security"] else " Needs no token.")]
    return [*lines, ""]


def page(made: Schema) -> str:
    """The document as Markdown: operations by family, statuses, headers, parameters, schemas."""
    parts = made["components"]
    families: dict[str, list[str]] = {}
    for path, methods in made["paths"].items():
        for method, each in methods.items():
            families.setdefault(each["tags"][0], []).extend(_operation(method, path, each))
    lines = [HEAD]
    for family, operations in families.items():
        lines += [f"## {family}", "", *operations]
    lines += ["## Statuses", "", "| | |", "|---|---|"]
    lines += [
        f"| {name.removeprefix('E')} | {_cell(each['description'])} |" for name, each in parts["responses"].items()
    ]
    lines += ["", "## Headers of answers", "", "| | |", "|---|---|"]
    lines += [f"| `{name}` | {_cell(each.get('description', ''))} |" for name, each in parts["headers"].items()]
    lines += ["", "## Parameters", ""]
    for name, each in parts["parameters"].items():
        where = f"`{each['name']}`, of the {each['in']}: {_kind(each['schema'])}"
        lines += [f"### {name} {{#parameter-{name}}}", "", f"{where}. {each.get('description', '')}".rstrip(), ""]
    lines += ["## Schemas", ""]
    for name, each in parts["schemas"].items():
        lines += [f"### {name} {{#schema-{name}}}", ""]
        lines += [each["description"], ""] if "description" in each else []
        lines += [*_fields(each), ""] if "properties" in each else [f"{_kind(each)}.", ""]
        for option in each.get("anyOf", ()):
            lines += [*_fields(option), ""] if "properties" in option else []
    return "\n".join(lines)
