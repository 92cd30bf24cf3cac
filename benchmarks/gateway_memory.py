"""Resident memory of the gateway over a million requests in front of an instant upstream: it must stay flat."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks import harness


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        port = harness.free_port()
        command = [harness.binary("arlo-instant-upstream"), "--port", str(port), "--output", "embedding:FP32:1,384"]
        backend = harness.Backend(endpoint=f"127.0.0.1:{port}", runtime="bench_len512", max_length=512)
        payloads = [harness.payload(length, seed=length) for length in range(1, 513)]
        with harness.Program(command, log=work / "upstream.log"):
            harness.wait_for_port(port)
            with harness.gateway(work, [backend]) as (gateway, gateway_port):
                flags = ["--concurrency", "64", "--channels", "4"]
                harness.load(work, gateway_port, payloads, *flags, "--requests", "50000")
                sizes = [gateway.rss_mb()]
                rates = []
                for step in range(args.steps):
                    n = args.requests // args.steps
                    report = harness.load(work, gateway_port, payloads, *flags, "--requests", str(n))
                    if report["codes"] != {"0": n}:
                        raise SystemExit(f"requests failed: {report}")
                    sizes.append(gateway.rss_mb())
                    rates.append(n / report["duration_s"])
                    print(f"{(step + 1) * n:>9} requests  {sizes[-1]:6.1f} MB  {rates[-1]:7.0f} req/s", flush=True)
    growth_mb = max(sizes) - sizes[0]
    figures = {
        "after_warm_up_mb": sizes[0],
        "growth_mb": growth_mb,
        "rss_mb": sizes,
        "requests": args.requests,
    }
    path = harness.save("gateway_memory", "python -m benchmarks.gateway_memory " + " ".join(sys.argv[1:]), figures)
    print(f"\ngrowth over {args.requests} requests after a warm-up of 50,000: {growth_mb:.1f} MB -> {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
