"""CPU per request and throughput of the gateway in front of an instant upstream, beside nginx `grpc_pass`.

Both stand between the same load generator and the same upstream, in turns; CPU is user + system time of the proxy's own
processes over the requests answered. Requests of 10 to 60 tokens, padded to 64, over 4 connections: at equal offered
rates (Poisson), and at saturation (closed loop). The gateway runs as it ships (policy, in-flight limit), with eight
instances. It parses, pads, schedules and rewrites; nginx only passes bytes on. `--before PROGRAM` puts an earlier build
of the gateway in the same turns.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import harness

NGINX = """
daemon off;
worker_processes {workers};
error_log stderr error;
pid {work}/nginx.pid;
events {{ worker_connections 16384; }}
http {{
  access_log off;
  client_body_temp_path {work}/body;
  proxy_temp_path {work}/proxy; fastcgi_temp_path {work}/f; uwsgi_temp_path {work}/u; scgi_temp_path {work}/s;
  upstream worker {{ server 127.0.0.1:{upstream}; keepalive 1024; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} http2;
    http2_max_concurrent_streams 512;
    keepalive_requests 100000000;
    location / {{ grpc_pass grpc://worker; }}
  }}
}}
"""


INSTANCES = 8
PAYLOADS = [harness.payload(length, seed=length) for length in range(10, 61)]


def measure(
    work: Path, program: harness.Measured, port: int, *, rate: int, seconds: float, concurrency: int
) -> dict[str, float] | None:
    """CPU of a request in microseconds and answered requests per second; rate 0: as many as go through. None when
    this machine, which sends and executes too, does not carry the rate: some requests were not answered."""

    def run(seconds: float) -> dict[str, Any]:
        if rate:
            return harness.paced_load(work, port, PAYLOADS, "--channels", "4", rate=rate, seconds=seconds)
        flags = ["--concurrency", str(concurrency), "--channels", "4", "--seconds", str(seconds)]
        return harness.load(work, port, PAYLOADS, *flags)

    run(0.5)
    before = program.cpu_s()
    report = run(seconds)
    used = program.cpu_s() - before
    answered = report["codes"].get("0", 0)
    if set(report["codes"]) != {"0"}:
        if rate:
            return None
        raise SystemExit(f"requests failed: {report}")
    return {"cpu_us": used / answered * 1e6, "rps": answered / report["duration_s"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rates", type=int, nargs="+", default=[1000, 5000, 15000, 0], help="requests/s; 0: saturation"
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=32, help="at saturation")
    parser.add_argument("--before", type=Path, metavar="PROGRAM", help="the arlo-gateway of an earlier build")
    args = parser.parse_args()
    nginx = harness.need("nginx", "apt-get install nginx-light")
    found: dict[tuple[int, str], list[dict[str, float]]] = {}
    too_fast: set[int] = set()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        upstream_port, nginx_port = harness.free_port(), harness.free_port()
        conf = work / "nginx.conf"
        conf.write_text(NGINX.format(workers=1, work=work, upstream=upstream_port, port=nginx_port))
        upstream_command = [harness.binary("arlo-instant-upstream"), "--port", str(upstream_port)]
        upstream_command += ["--output", "embedding:FP32:1,384"]
        with harness.Program(upstream_command, log=work / "upstream.log") as upstream:
            harness.wait_for_port(upstream_port)
            backend = harness.Backend(endpoint=f"127.0.0.1:{upstream_port}", runtime="bench_len64", max_length=64)
            with contextlib.ExitStack() as stack:
                enter = stack.enter_context
                proxy = enter(harness.Program([nginx, "-e", "stderr", "-c", str(conf)], log=work / "nginx.log"))
                harness.wait_for_port(nginx_port)
                contenders = [
                    ("gateway", *enter(harness.gateway(work, [backend] * INSTANCES))),
                    ("nginx", proxy, nginx_port),
                    ("direct", upstream, upstream_port),
                ]
                if args.before is not None:
                    (before := work / "before").mkdir()
                    earlier = enter(harness.gateway(before, [backend] * INSTANCES, program=args.before))
                    contenders.insert(1, ("before", *earlier))
                for round_ in range(args.rounds):
                    for rate in (rate for rate in args.rates if rate not in too_fast):
                        for name, program, port in contenders:
                            result = measure(
                                work, program, port, rate=rate, seconds=args.seconds, concurrency=args.concurrency
                            )
                            if result is None:
                                too_fast.add(rate)
                                print(
                                    f"round {round_ + 1} {rate:>6}/s {name:8} more than this machine carries",
                                    flush=True,
                                )
                                break
                            found.setdefault((rate, name), []).append(result)
                            print(
                                f"round {round_ + 1} {rate or 'all':>6}/s {name:8} {result['cpu_us']:7.1f} us CPU"
                                f" a request {result['rps']:8.0f} req/s",
                                flush=True,
                            )
    rows = []
    for rate in (rate for rate in args.rates if rate not in too_fast):
        row: dict[str, Any] = {"rate": rate or "saturation"}
        for name, *_ in contenders:
            row[name] = {key: statistics.median(r[key] for r in found[rate, name]) for key in ("cpu_us", "rps")}
        for name in ("nginx", "before"):
            turns = zip(found[rate, "gateway"], found.get((rate, name), ()), strict=False)
            if ratios := [gateway["cpu_us"] / other["cpu_us"] for gateway, other in turns]:
                row[f"cpu_ratio_to_{name}"] = statistics.median(ratios)
        rows.append(row)
        print(
            f"{row['rate']:>10}: gateway {row['gateway']['cpu_us']:.1f} us, nginx {row['nginx']['cpu_us']:.1f} us of"
            f" CPU a request: ratio {row['cpu_ratio_to_nginx']:.2f}"
            + (f", to the earlier build {row['cpu_ratio_to_before']:.2f}" if args.before is not None else "")
            + f"; gateway {row['gateway']['rps']:.0f} req/s"
        )
    figures = {
        "rates": rows,
        "not_carried": sorted(too_fast),
        "concurrency_at_saturation": args.concurrency,
        "instances": INSTANCES,
    }
    path = harness.save("gateway_cpu", "python -m benchmarks.gateway_cpu " + " ".join(sys.argv[1:]), figures)
    print(f"-> {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
