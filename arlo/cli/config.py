"""`arlo config`: check a configuration, show it, choose the operating point that it serves."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
from pathlib import Path
from typing import Any

from arlo.catalog.toml_text import to_toml
from arlo.cli.text import print_json
from arlo.clock import monotonic_s
from arlo.errors import ConfigError, GatewayError

DESCRIPTION = """Check or show a configuration file (docs/configuration.md describes every key), or choose the operating
point of the cascade that it serves."""

WAIT_S = 10.0  # for the gateway to have a new operating point
AGAIN_S = 0.2


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `config` with its actions."""
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
    use = actions.add_parser(
        "use",
        help="another operating point for a cascade that is served, without a restart",
        description="Choose the operating point of a cascade that `arlo serve` serves: no row waits, no worker moves.\n"
        "The choice is kept in workers.run_dir, over restarts; run this where that is.",
        epilog="examples:\n  arlo config use serve.toml eo\n  arlo config use serve.toml --reset",
    )
    use.add_argument("file", type=Path, metavar="FILE", help="the TOML file that `arlo serve` runs with")
    use.add_argument("point", nargs="?", metavar="POINT", help="its name in cascade.json")
    use.add_argument("--admin", metavar="HOST:PORT", help="address of the gateway (default: the configuration's)")
    use.add_argument("--reset", action="store_true", help="go back to the point of the configuration")
    use.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Check, show or use."""
    from arlo import config as configuration

    loaded = configuration.load(args.file)
    if args.action == "use":
        return _use(args, loaded)
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
        found["instances"] = mode.first or {}
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


def _use(args: argparse.Namespace, config: Any) -> int:
    """Write the point to the file, and wait until the gateway has it; 1 if it does not in time."""
    from arlo.control.watch.point import choose_point

    if (args.point is None) != args.reset:
        raise ConfigError("name an operating point, or give --reset for that of the configuration")
    if config.cascade is None:
        raise ConfigError("this configuration serves no cascade: it has no [cascade]")
    choose_point(config, config.cascade, args.point)
    from arlo.config.stages import cascade_manifest, cascade_name

    wanted = args.point or cascade_manifest(config.cascade.manifest).point(config.cascade.point).name
    address = args.admin or config.gateway.admin_address
    now = asyncio.run(_await(address, cascade_name(config.cascade), wanted))
    if args.json:
        print_json({"point": wanted, "in_force": now == wanted, "now": now})
    elif now == wanted:
        print(f"{wanted} is in force")
    elif now is None:
        print(f"{wanted} is in force when `arlo serve` runs: no gateway answers at {address}")
    else:
        print(f"{wanted} is not in force after {WAIT_S:g} s, but {now}: what does the log of `arlo serve` say?")
    return 0 if now in {wanted, None} else 1


async def _await(address: str, model: str, wanted: str) -> str | None:
    """The point in force; None: no gateway answers."""
    from arlo.control.gateway.admin import AdminClient

    until_s = monotonic_s() + WAIT_S
    async with AdminClient(address, model=model) as admin:
        while True:
            try:
                now = str((await admin.stats()).point)
            except GatewayError:
                return None
            if now == wanted or monotonic_s() > until_s:
                return now
            await asyncio.sleep(AGAIN_S)


def effective(loaded: Any) -> dict[str, Any]:
    """Section -> key -> value, with defaults, spelled as in the file; keys without a value are left out. `model` is a
    list of sections if there are several."""
    from arlo.config.model import SECTIONS

    models = [{"default_timeout_ms": model.timeout_ms, **_keys(model)} for model in loaded.models]
    given = {name: getattr(loaded, name) for name in SECTIONS}
    sections: dict[str, Any] = {name: _keys(section) for name, section in given.items() if section is not None}
    if loaded.cascade is not None:
        del sections["model"]  # its stages are the models
        sections["cascade"]["default_timeout_ms"] = loaded.cascade.timeout_ms
    elif loaded.pipeline is not None:
        del sections["model"]  # its variants are the models
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
    """The value in a form that JSON and TOML can hold."""
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
