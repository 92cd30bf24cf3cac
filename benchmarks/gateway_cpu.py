"""CPU per request and throughput of the gateway in front of an instant upstream, beside nginx `grpc_pass`.

Both stand between the same load generator and the same upstream, in turns; CPU is user + system time of the proxy's own
processes over the requests answered. Concurrency 32 over 4 connections, requests of 10 to 60 tokens padded to 64.
The gateway parses, pads, schedules and rewrites; nginx only passes bytes on.
"""

from __future__ import annotations

import argparse
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
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {work}/body;
  proxy_temp_path {work}/proxy; fastcgi_temp_path {work}/f; uwsgi_temp_path {work}/u; scgi_temp_path {work}/s;
  upstream worker {{ server 127.0.0.1:{upstream}; keepalive 64; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} http2;
    http2_max_concurrent_streams 512;
    keepalive_requests 100000000;
    location / {{ grpc_pass grpc://worker; }}
  }}
}}
"""


def measure(work: Path, program: harness.Program, port: int, requests: int, concurrency: int) -> dict[str, float]:
    payloads = [harness.payload(length, seed=length) for length in range(10, 61)]
    flags = ["--concurrency", str(concurrency), "--channels", "4", "--requests", str(requests)]
    harness.load(work, port, payloads, "--concurrency", str(concurrency), "--channels", "4", "--requests", "3000")
    before = program.cpu_s()
    report = harness.load(work, port, payloads, *flags)
    used = program.cpu_s() - before
    if report["codes"] != {"0": requests}:
        raise SystemExit(f"requests failed: {report}")
    return {"cpu_us": used / requests * 1e6, "rps": requests / report["duration_s"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=30000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=32)
    args = parser.parse_args()
    nginx = harness.need("nginx", "apt-get install nginx-light")
    found: dict[str, list[dict[str, float]]] = {"gateway": [], "nginx": [], "direct": []}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        upstream_port, nginx_port = harness.free_port(), harness.free_port()
        conf = work / "nginx.conf"
        conf.write_text(NGINX.format(workers=1, work=work, upstream=upstream_port, port=nginx_port))
        upstream_command = [harness.binary("arlo-instant-upstream"), "--port", str(upstream_port)]
        upstream_command += ["--output", "embedding:FP32:1,384"]
        with harness.Program(upstream_command, log=work / "upstream.log") as upstream:
            harness.wait_for_port(upstream_port)
            backends = [harness.Backend(endpoint=f"127.0.0.1:{upstream_port}", runtime="bench_len64", max_length=64)]
            with (
                harness.Program([nginx, "-e", "stderr", "-c", str(conf)], log=work / "nginx.log") as proxy,
                harness.gateway(work, backends) as (gateway, gateway_port),
            ):
                harness.wait_for_port(nginx_port)
                for round_ in range(args.rounds):
                    for name, program, port in (
                        ("gateway", gateway, gateway_port),
                        ("nginx", proxy, nginx_port),
                        ("direct", upstream, upstream_port),
                    ):
                        result = measure(work, program, port, args.requests, args.concurrency)
                        found[name].append(result)
                        print(
                            f"round {round_ + 1} {name:8} {result['cpu_us']:7.1f} us CPU/request"
                            f" {result['rps']:8.0f} req/s",
                            flush=True,
                        )
    figures: dict[str, Any] = {
        name: {key: statistics.median(r[key] for r in results) for key in ("cpu_us", "rps")}
        for name, results in found.items()
    }
    figures["cpu_ratio_to_nginx"] = statistics.median(
        g["cpu_us"] / n["cpu_us"] for g, n in zip(found["gateway"], found["nginx"], strict=True)
    )
    figures["concurrency"] = args.concurrency
    path = harness.save("gateway_cpu", "python -m benchmarks.gateway_cpu " + " ".join(sys.argv[1:]), figures)
    print(
        f"\ngateway {figures['gateway']['cpu_us']:.1f} us, nginx {figures['nginx']['cpu_us']:.1f} us of CPU a request: "
        f"ratio {figures['cpu_ratio_to_nginx']:.2f}; gateway {figures['gateway']['rps']:.0f} req/s -> {path}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
