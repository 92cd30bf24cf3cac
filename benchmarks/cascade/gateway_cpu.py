"""What a cascade costs the gateway: CPU of a row that its first stage answers, and of one that goes on once, beside a
row of a plain model.

    python -m benchmarks.cascade.gateway_cpu

The upstream answers at once with 24 logits. The three are served by one gateway each, in turns, at saturation (closed
loop, four connections), each row by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import harness
from tests.fakes import gateway as fakes

LABELS = 24
INSTANCES = 8
CONTENDERS = {"plain": None, "exits": 0.0, "goes on": 1.0001}  # -> threshold of the first stage
PAYLOADS = [harness.payload(length, seed=length) for length in range(10, 61)]


def wanted(endpoint: str, threshold: float | None) -> Any:
    """The deployment: one model, or a cascade of two of its kind."""

    def of(model: str, runtime: str) -> Any:
        backends = [harness.Backend(endpoint=endpoint, runtime=runtime, max_length=64)] * INSTANCES
        made = harness.deployment(backends, dims=LABELS, model=model)
        for instance in made.instances:
            instance.id = f"{model}.{instance.id}"
        return made

    if threshold is None:
        return of("bench", "plain_len64")
    whole, second = of("first", "first_len64"), of("second", "second_len64")
    whole.more_models.append(second.model)
    for runtime in (*whole.runtimes, *second.runtimes):
        runtime.model = runtime.name.split("_")[0]
    whole.runtimes[0].model, second.runtimes[0].model = "first", "second"
    whole.runtimes.extend(second.runtimes)
    whole.instances.extend(second.instances)
    cascade = whole.cascades.add(
        name="bench",
        slo_ms=1500,
        default_timeout_ms=60_000,
        logits="embedding",
        labels=[str(i) for i in range(LABELS)],
        point="only",
    )
    for model in ("first", "second"):
        stage = cascade.stages.add(model=model, score="max", over="min", weight=1.0)
        stage.calibrator.kind, stage.calibrator.t = "temperature", 1.3
    point = cascade.points.add(name="only", ensemble="none", to_level=True, min_words=4)
    point.prices.add().rules.add(kind="hard").t.add(length=512, value=threshold)
    return whole


@contextlib.contextmanager
def gateway(work: Path, deployment: Any) -> Iterator[tuple[harness.Measured, int]]:
    """A gateway with the settings that ship."""
    with asyncio.Runner() as runner:
        program = harness.binary("arlo-gateway")
        started = fakes.gateway_of(work, deployment, {"log_level": "warning"}, program=program)
        running = runner.run(started.__aenter__())
        try:
            yield harness.Measured(running.pid), harness.port_of(running)
        except BaseException:
            runner.run(started.__aexit__(*sys.exc_info()))
            raise
        runner.run(started.__aexit__(None, None, None))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        work = Path(folder)
        port = harness.free_port()
        command = [
            harness.binary("arlo-instant-upstream"),
            "--port",
            str(port),
            "--output",
            f"embedding:FP32:1,{LABELS}",
        ]
        stack.enter_context(harness.Program(command, log=work / "upstream.log"))
        harness.wait_for_port(port)
        programs = {
            name: stack.enter_context(gateway(work / name.replace(" ", "-"), wanted(f"127.0.0.1:{port}", threshold)))
            for name, threshold in CONTENDERS.items()
        }
        flags = ["--concurrency", "32", "--channels", "4", "--seconds"]
        for number in range(args.rounds):
            for name, (program, at) in programs.items():
                harness.load(work, at, PAYLOADS, *flags, "0.5")
                before = program.cpu_s()
                report = harness.load(work, at, PAYLOADS, *flags, str(args.seconds))
                if set(report["codes"]) != {"0"}:
                    raise SystemExit(f"requests failed: {report}")
                us = (program.cpu_s() - before) / report["codes"]["0"] * 1e6
                found[name].append(us)
                print(f"round {number + 1} {name:8} {us:6.1f} us CPU a row", flush=True)
    median = {name: statistics.median(values) for name, values in found.items()}
    ratios = {
        name: statistics.median(a / b for a, b in zip(found[name], found["plain"], strict=True))
        for name in CONTENDERS
        if name != "plain"
    }
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f} times a plain row")
    command_line = "python -m benchmarks.cascade.gateway_cpu " + " ".join(sys.argv[1:])
    path = harness.save("cascade_gateway_cpu", command_line, {"cpu_us": median, "ratio_to_plain": ratios})
    print(f"-> {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
