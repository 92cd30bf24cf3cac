"""`arlo cascade use`: another operating point for a cascade that is served, without a restart."""

from __future__ import annotations

import argparse
import asyncio

from arlo.cli.text import print_json
from arlo.clock import monotonic_s
from arlo.errors import ConfigError, GatewayError

AGAIN_S = 0.2


def run(args: argparse.Namespace) -> int:
    """Write it down, and wait until the gateway has it; 1 when it has not in time."""
    from arlo import config as configuration
    from arlo.control.watch.point import choose_point

    if (args.point is None) != args.reset:
        raise ConfigError("name an operating point, or give --reset for that of the configuration")
    config = configuration.load(args.config)
    if config.cascade is None:
        raise ConfigError("this configuration serves no cascade: it has no [cascade]")
    choose_point(config, config.cascade, args.point)
    from arlo.config.stages import cascade_manifest, cascade_name

    wanted = args.point or cascade_manifest(config.cascade.manifest).point(config.cascade.point).name
    address = args.admin or config.gateway.admin_address
    now = asyncio.run(_await(address, cascade_name(config.cascade), wanted, args.wait_s))
    if args.json:
        print_json({"point": wanted, "in_force": now == wanted, "now": now})
    elif now == wanted:
        print(f"{wanted} is in force")
    elif now is None:
        print(f"{wanted} is in force when `arlo serve` runs: no gateway answers at {address}")
    else:
        print(f"{wanted} is not in force after {args.wait_s:g} s, but {now}: what does the log of `arlo serve` say?")
    return 0 if now in {wanted, None} else 1


async def _await(address: str, model: str, wanted: str, wait_s: float) -> str | None:
    """The point in force; None: no gateway answers."""
    from arlo.control.gateway.admin import AdminClient

    until_s = monotonic_s() + wait_s
    async with AdminClient(address, model=model) as admin:
        while True:
            try:
                now = str((await admin.stats()).point)
            except GatewayError:
                return None
            if now == wanted or monotonic_s() > until_s:
                return now
            await asyncio.sleep(AGAIN_S)
