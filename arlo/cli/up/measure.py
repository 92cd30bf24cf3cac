"""Latencies that `arlo up` measured while other programs used the cores: measured once more when they are free."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arlo.catalog.manifest import Manifest
    from arlo.compile import CompileOptions

BUSY = "measured_busy"  # option of a manifest: a latency was measured without a free core
_QUIET = 0.5  # load average for each core


def is_quiet() -> bool:
    """Whether most of the cores have been free for the last minute."""
    return os.getloadavg()[0] < _QUIET * len(os.sched_getaffinity(0))


def measured_again(manifest: Manifest, options: CompileOptions, slo_ms: Callable[[Manifest], int]) -> Manifest:
    """The manifest, with latencies measured now if they were measured on a busy machine that is quiet now.

    options: of the build. It rewrites the repository; every step but the measurement comes from the cache."""
    from arlo.compile import compile_model
    from arlo.compile.tools.display import display

    if not manifest.options.get(BUSY):
        return manifest
    before = slo_ms(manifest)
    if not is_quiet():
        _say(
            f"latencies were measured on a busy machine (slo_ms = {before}); a start on a quiet machine measures them "
            "again, and --slo-ms sets the SLO"
        )
        return manifest
    _say("latencies were measured on a busy machine: measuring again")
    with display(sys.stderr) as show:
        manifest = compile_model(dataclasses.replace(options, remeasure=True), show)
    manifest = dataclasses.replace(manifest, options={**manifest.options, BUSY: False})  # once is enough
    manifest.save(options.out)
    _say(f"slo_ms = {slo_ms(manifest)}, {before} before")
    return manifest


def _say(what: str) -> None:
    print(f"arlo: {what}", file=sys.stderr, flush=True)
