"""Runs attacks, each as a process of its own: `python -m tests.fakes.attacks`, see __main__.py."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.fakes.attacks import floods, headers, messages, slow  # noqa: F401  # puts them on the list
from tests.fakes.attacks.hit import ATTACKS, Attack
from tests.fakes.attacks.offender import Notes, Offender

__all__ = ["ATTACKS", "Attack", "asked_anew", "run_attack"]

ROOT = Path(__file__).resolve().parents[3]


async def run_attack(
    name: str, address: str, small: bytes, wide: bytes, *, seconds: float, scale: float, most_s: float
) -> dict[str, Any]:
    """The attack's report; `cut_off` when it was not through after `most_s` and was killed."""
    told = json.dumps(
        {"address": address, "small": small.hex(), "wide": wide.hex(), "seconds": seconds, "scale": scale}
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fakes.attacks", name),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(most_s):
            said, _ = await process.communicate(told.encode())
    except TimeoutError:
        process.kill()
        await process.wait()
        return {"cut_off": True, "ends": {}, "answers": {}, "good_asked": 0, "good_answered": 0}
    if process.returncode != 0:
        raise RuntimeError(f"the attack {name} failed: exit {process.returncode}")
    report: dict[str, Any] = json.loads(said)
    return {"cut_off": False, **report}


def asked_anew(address: str, body: bytes, wait_s: float = 10.0) -> str:
    """How a good call on a new connection ends; empty: not in time."""
    host, _, port = address.rpartition(":")
    with Offender((host.strip("[]"), int(port)), Notes(), time.monotonic() + wait_s) as client:
        return client.answered(client.call(body), wait_s) or client.over
