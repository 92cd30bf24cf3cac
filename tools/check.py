"""Run check stages in parallel lanes: tests, most of which wait, and computing stages (builds, linters, fuzzers).
Commands of computing stages should use nice, so that the time limits of concurrent tests hold.

usage: tools/check.py STAGE... [++ STAGE...]...   a STAGE is NAME=COMMAND; `++` begins a lane

The first failure ends all lanes and its whole output is shown. At the end comes each stage's duration, CPU time and
last line, then the output of the last stage of the first lane: a test runner's closing line comes last.
Logs: build/check/NAME.log.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

LOGS = Path("build/check")
TELL_EVERY_S = 60.0


class Lanes:
    """Runs lanes of stages, each lane one stage after the other; `failed` names the first stage that failed."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._lock = threading.Lock()
        self._running: dict[str, tuple[float, subprocess.Popen[bytes]]] = {}
        self.took_s: dict[str, float] = {}
        self.cpu_s: dict[str, float] = {}
        self.failed: str | None = None

    def run(self, stages: list[tuple[str, str]]) -> None:
        """Run one lane; ends early if another one failed."""
        for name, command in stages:
            with self._lock:
                if self.failed is not None:
                    return
                self.say(f"{name} begins: {command}")
                begin_s = time.monotonic()
                with (LOGS / f"{name}.log").open("wb") as log:
                    process = subprocess.Popen(
                        ["bash", "-euo", "pipefail", "-c", command],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        process_group=0,  # its children end with it; one session, so that niceness counts
                    )
                self._running[name] = (begin_s, process)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = status = os.waitstatus_to_exitcode(status)
            with self._lock:
                del self._running[name]
                self.took_s[name] = time.monotonic() - begin_s
                self.cpu_s[name] = used.ru_utime + used.ru_stime
                if self.failed is not None:
                    return
                how = "done" if status == 0 else f"FAILED with status {status}"
                self.say(f"{name} {how}, {self.took_s[name]:.0f} s, {self.cpu_s[name]:.0f} s of CPU")
                if status != 0:
                    self.failed = name
                    self._end_all()

    def tell(self) -> None:
        """Print the running stages and their times."""
        with self._lock:
            now_s = time.monotonic()
            running = ", ".join(f"{name} for {now_s - begin:.0f} s" for name, (begin, _) in self._running.items())
        if running:
            self.say(f"running: {running}")

    def stop(self) -> None:
        """End all running stages, as after a failure."""
        with self._lock:
            self.failed = self.failed or "interrupted"
            self._end_all()

    def say(self, text: str) -> None:
        """Print a line with the time since the start."""
        print(f"=== {time.monotonic() - self._start_s:5.0f} s  {text}", flush=True)

    def _end_all(self) -> None:
        for _, process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)


def parsed(arguments: list[str]) -> list[list[tuple[str, str]]]:
    """Lanes of stages: (name, command)."""
    lanes: list[list[tuple[str, str]]] = [[]]
    for argument in arguments:
        if argument == "++":
            lanes.append([])
            continue
        name, equals, command = argument.partition("=")
        if not equals:
            sys.exit(__doc__)
        lanes[-1].append((name, command))
    if not all(lanes):
        sys.exit(__doc__)
    return lanes


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip("= ")[:90] for line in reversed(lines) if line.strip()), "")


def main() -> int:
    planned = parsed(sys.argv[1:])
    LOGS.mkdir(parents=True, exist_ok=True)
    lanes = Lanes()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    threads = [threading.Thread(target=lanes.run, args=(stages,)) for stages in planned]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(TELL_EVERY_S)
                if thread.is_alive():
                    lanes.tell()
    except BaseException:
        lanes.stop()
        raise
    if lanes.failed is not None:
        print((LOGS / f"{lanes.failed}.log").read_text(errors="replace"), flush=True)
        lanes.say(f"{lanes.failed} FAILED")
        return 1
    lanes.say("all passed:")
    for name, took_s in lanes.took_s.items():
        print(f"    {name:<14} {took_s:5.0f} s {lanes.cpu_s[name]:6.0f} s CPU   {last_line(LOGS / f'{name}.log')}")
    print((LOGS / f"{planned[0][-1][0]}.log").read_text(errors="replace"), end="", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
