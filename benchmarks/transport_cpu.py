"""CPU per call of a server that answers at once: gRPC C++ of the distribution, and src/transport on nghttp2.

The same program, small encoder requests and a fixed answer, over 4 connections; at equal offered rates (Poisson), and
at saturation (closed loop). Contenders alternate; CPU is user + system time of the server over the calls answered.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.gateway_cpu import measure

NAME = "transport_cpu"
SERVERS = ("grpc", "transport")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=int, nargs="+", default=[1000, 5000, 0], help="calls/s; 0: saturation")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=32, help="at saturation")
    args = parser.parse_args()
    found: dict[tuple[int, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for _ in range(args.rounds):
            for rate in args.rates:
                for server in SERVERS:
                    port = harness.free_port()
                    command = [harness.binary("arlo-instant-upstream"), "--port", str(port), "--server", server]
                    with harness.Program(command, log=work / "server.log") as program:
                        harness.wait_for_port(port)
                        figures = measure(
                            work, program, port, rate=rate, seconds=args.seconds, concurrency=args.concurrency
                        )
                    if figures is not None:
                        found.setdefault((rate, server), []).append(figures)
    rows: list[dict[str, Any]] = []
    for rate in args.rates:
        row: dict[str, Any] = {"rate": rate}
        for server in SERVERS:
            runs = found.get((rate, server), [])
            if runs:
                row[server] = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        if all(server in row for server in SERVERS):
            row["ratio"] = row["transport"]["cpu_us"] / row["grpc"]["cpu_us"]
        rows.append(row)
        print(row, flush=True)
    command_line = "python -m benchmarks.transport_cpu " + " ".join(sys.argv[1:])
    print(f"-> {harness.save(NAME, command_line.strip(), {'rows': rows})}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
