"""`arlo config check` and `arlo config show`."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from arlo.cli.text import print_json

DESCRIPTION = """Check or show a configuration file (docs/configuration.md describes every key)."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `config` with `check` and `show`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "config",
        help="check or show a configuration file",
        description=DESCRIPTION,
        epilog="examples:\n  arlo config check serve.toml\n  arlo config show serve.toml --json | jq .dispatch.policy",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    check = actions.add_parser(
        "check",
        help="say whether `arlo serve` would take it",
        description="Check the keys, the files they name, and the allocation against the repository's manifest.",
        epilog="examples:\n  arlo config check serve.toml\n  arlo config check serve.toml --keys-only",
    )
    check.add_argument("file", type=Path, metavar="FILE", help="the TOML file")
    check.add_argument("--keys-only", action="store_true", help="do not look at the files that it names")
    check.add_argument("--json", action="store_true", help="print what was found as JSON")
    show = actions.add_parser(
        "show",
        help="print every key with its value, defaults included",
        description="Print every key with its value, defaults included and paths made absolute, as TOML or JSON.",
        epilog="examples:\n  arlo config show serve.toml\n  arlo config show serve.toml --json",
    )
    show.add_argument("file", type=Path, metavar="FILE", help="the TOML file")
    show.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Check or show."""
    from arlo import config as configuration

    loaded = configuration.load(args.file)
    if args.action == "show":
        values = effective(loaded)
        if args.json:
            print_json(values)
        else:
            print(to_toml(values), end="")
        return 0
    found: dict[str, Any] = {"file": str(args.file), "ok": True}
    if not args.keys_only:
        from arlo.cli.recommend import load_manifest
        from arlo.config.gateway import gateway_message
        from arlo.control.mode import mode_of

        gateway_message(loaded)
        mode = mode_of(loaded, load_manifest(loaded))
        found["model"] = mode.models[0]
        if mode.whole is not None:
            found[mode.kind] = mode.whole
        if len(mode.models) > 1:
            found["models"] = mode.models
        found["serves"] = mode.choice.text
        found["instances"] = dict(mode.first.instances if mode.first is not None else ())
    found["workers"] = loaded.worker_count
    if args.json:
        print_json(found)
    else:
        print(f"{args.file}: ok, {loaded.worker_count} worker(s)")
        if "serves" in found:
            print(f"  {found['serves']}")
        for name, count in found.get("instances", {}).items():
            print(f"  {count} x {name}")
    return 0


def effective(loaded: Any) -> dict[str, Any]:
    """Section -> key -> value, with defaults, in the words of the file; keys without a value are left out. `model` is a
    list of sections where there are several."""
    from arlo.config.model import SECTIONS

    models = [{"default_timeout_ms": model.timeout_ms, **_keys(model)} for model in loaded.models]
    given = {name: getattr(loaded, name) for name in SECTIONS}
    sections: dict[str, Any] = {name: _keys(section) for name, section in given.items() if section is not None}
    if loaded.cascade is not None:
        del sections["model"]  # its stages are
        sections["cascade"]["default_timeout_ms"] = loaded.cascade.timeout_ms
    elif loaded.pipeline is not None:
        del sections["model"]  # its variants are
    else:
        sections["model"] = models if loaded.more_models else models[0]
    if loaded.workers.kind == "local":
        sections["workers"]["count"] = loaded.worker_count
    return sections


def _keys(section: Any) -> dict[str, Any]:
    from arlo.config.load import toml_key

    values = {toml_key(key.name): _plain(getattr(section, key.name)) for key in dataclasses.fields(section)}
    return {key: value for key, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, dict):
        return {str(key): item for key, item in value.items()}
    return value


def to_toml(sections: dict[str, Any]) -> str:
    """The sections as TOML."""
    parts = []
    for name, given in sections.items():
        for values in given if isinstance(given, list) else [given]:
            head = f"[[{name}]]" if isinstance(given, list) else f"[{name}]"
            parts.append(f"{head}\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in values.items()))
    return "\n".join(parts)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return repr(value)
