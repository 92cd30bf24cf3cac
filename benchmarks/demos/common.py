"""Code shared by the demos: Arlo's commands, `arlo serve`, and texts that are sent to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arlo.client.errors import ClientError
from arlo.clock import monotonic_s
from arlo.errors import ArloError, EnvironmentProblem

PORTS = """
[workers]
count = 1
run_dir = "run"

[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"

[control]
http_address = "127.0.0.1:0"
"""


def say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


def command(*words: str | Path, fine: Sequence[int] = (0,)) -> None:
    """Run one of Arlo's commands and pass its output on. EnvironmentProblem when its exit code is not in `fine`."""
    line = [sys.executable, "-m", *map(str, words)]
    if subprocess.run(line, check=False).returncode not in fine:
        raise EnvironmentProblem(f"this failed: {' '.join(line)}")


@contextlib.contextmanager
def served(work: Path, sections: str) -> Iterator[dict[str, Any]]:
    """Run `arlo serve` with these sections and one worker; yields its message when it is ready."""
    config = work / "serve.toml"
    config.write_text(sections + PORTS)
    line = [sys.executable, "-m", "arlo.cli", "serve", str(config), "--json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if not (ready := process.stdout.readline()):
                raise EnvironmentProblem(f"`{' '.join(line)}` did not come up; it says why above")
            yield json.loads(ready)
        finally:
            process.terminate()
            process.wait()


async def send(ask: Callable[[str], Awaitable[None]], texts: Sequence[str], rate: float) -> dict[str, Any]:
    """Send texts at random moments, on average `rate` a second; 0: one after the other. Errors of `ask` are counted."""
    gaps = np.random.default_rng(1).exponential(1 / rate, len(texts)) if rate else np.zeros(len(texts))
    times: list[float] = []
    failures: Counter[str] = Counter()

    async def one(text: str, at: float) -> None:
        await asyncio.sleep(max(0.0, at - monotonic_s()))
        begun = at if rate else monotonic_s()
        try:
            await ask(text)
        except ClientError as error:
            failures[type(error).__name__] += 1
        else:
            times.append(1000 * (monotonic_s() - begun))

    moments = zip(texts, monotonic_s() + np.cumsum(gaps), strict=True)
    if rate:
        await asyncio.gather(*(one(text, at) for text, at in moments))
    else:
        for text, at in moments:
            await one(text, at)
    about = {"rate": rate, "roots": len(texts), "answered": len(times), "failed": failures.total()}
    return {**about, "failures": dict(failures), **summary(times)}


def summary(times: Sequence[float]) -> dict[str, float]:
    values = np.asarray(times or [float("nan")])
    named = {"p50_ms": 0.5, "p98_ms": 0.98, "p99_ms": 0.99}
    return {"mean_ms": float(values.mean()), **{name: float(np.quantile(values, q)) for name, q in named.items()}}


def ended(demo: Callable[[], int]) -> int:
    """Run a demo, report its errors and return its exit code."""
    try:
        return demo()
    except ArloError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("stopped; what is finished is kept")
        return 130
