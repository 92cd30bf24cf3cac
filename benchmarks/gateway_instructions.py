"""Instructions of the gateway per request, and the pieces of memory that it asks for, counted by valgrind's callgrind.

One request at a time over 4 connections, 10 to 60 tokens padded to 64, in front of an upstream that answers at once.
Unlike times, counts hardly depend on what else the machine does: what the gateway does by the clock is in them, too.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import harness

PAYLOADS = [harness.payload(length, seed=length) for length in range(10, 61)]
COUNTED = ("operator new(unsigned long)", "malloc", "recv", "send", "epoll_wait")


def calls_of(profile: str) -> Counter[str]:
    """How often each function was called, of a file that callgrind wrote; names are given once, then numbered."""
    names: dict[str, str] = {}
    calls: Counter[str] = Counter()
    called = ""
    for line in profile.splitlines():
        if match := re.match(r"(c?fn)=\((\d+)\)(?: (.*))?", line):
            if match[3]:
                names[match[2]] = match[3]
            if match[1] == "cfn":
                called = match[2]
        elif line.startswith("calls="):
            calls[names[called]] += int(line[6:].split()[0])
    return calls


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--top", type=int, default=0, metavar="N", help="functions that take most, too")
    args = parser.parse_args()
    valgrind = harness.need("valgrind", "apt-get install valgrind")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        profile = work / "profile"
        program = work / "arlo-gateway"
        options = f"--tool=callgrind --callgrind-out-file={profile} --instr-atstart=no"
        program.write_text(f'#!/bin/sh\nexec {valgrind} {options} {harness.binary("arlo-gateway")} "$@"\n')
        program.chmod(0o755)
        port = harness.free_port()
        upstream = [harness.binary("arlo-instant-upstream"), "--port", port, "--output", "embedding:FP32:1,384"]
        with harness.Program([*upstream, "--server", "transport"], log=work / "upstream.log"):
            harness.wait_for_port(port)
            backend = harness.Backend(endpoint=f"127.0.0.1:{port}", runtime="bench_len64", max_length=64)
            with harness.gateway(work, [backend] * 8, program=program) as (measured, data_port):

                def load(requests: int) -> None:
                    flags = ("--concurrency", "1", "--channels", "4", "--requests", str(requests))
                    report = harness.load(work, data_port, PAYLOADS, *flags)
                    if report["codes"] != {"0": requests}:
                        raise SystemExit(f"requests failed: {report}")

                pid = next(pid for pid in measured.pids() if "callgrind" in Path(f"/proc/{pid}/comm").read_text())
                load(300)
                for state, requests in (("on", args.requests), ("off", 0)):
                    control = ["callgrind_control", "-i", state, str(pid)]
                    subprocess.run(control, check=True, stdout=subprocess.DEVNULL)
                    if requests:
                        load(requests)
        annotate = ["callgrind_annotate", "--threshold=99", str(profile)]
        lines = subprocess.run(annotate, check=True, capture_output=True, text=True).stdout.splitlines()
        calls = calls_of(profile.read_text())
    rows = [
        (int(m[1].replace(",", "")), m[2])
        for line in lines
        if (m := re.match(r"\s*([\d,]+) \([\s\d.]+%\)\s+(.*)", line))
    ]
    figures: dict[str, Any] = {
        "instructions": round(rows[0][0] / args.requests),
        "calls": {name: round(calls[name] / args.requests, 2) for name in COUNTED},
    }
    print(f"{figures['instructions']:,} instructions a request; calls: {figures['calls']}")
    for count, name in rows[1 : args.top + 1]:
        print(f"{count / args.requests:8.0f}  {name}")
    at = harness.save(
        "gateway_instructions", " ".join(["python -m benchmarks.gateway_instructions", *sys.argv[1:]]), figures
    )
    print(f"-> {at}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
