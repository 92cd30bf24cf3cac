"""Write docs/metrics.md from a running gateway's metric descriptions and from the control plane's own table.

usage: tools/metrics_page.py FILE [--check]     --check: exit code 1 when FILE differs
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

CONFIG = """
[model]
repository = "."
slo_ms = 100
[deployment]
allocation = {512 = 1}
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
[workers]
run_dir = "run"
"""

HEAD = """# Metrics

<!-- Written by `make docs` from the program itself; a test fails when the two differ. -->

## Gateway

The gateway serves these at `/metrics` of its HTTP port, in Prometheus' text format; workers serve Triton's `nv_*`.
Rows are what the gateway schedules: a request of several rows counts each. `max_length` names a level; `instance`,
`worker` and `runtime` name an instance, so scrape with `honor_labels: true`.

| metric | type | meaning |
|---|---|---|
"""

CONTROL_HEAD = """
## Control plane

The control plane serves these at `/metrics` of its own HTTP port (`control.http_address`), beside `process_*` of its
process. They are read from the same document as `/status` shows, when they are asked for.

| metric | type | labels | meaning |
|---|---|---|---|
"""


def scrape(start_timeout_s: float = 20.0) -> str:
    """The text at /metrics of a gateway that is started for it."""
    with tempfile.TemporaryDirectory() as folder:
        config, ready = Path(folder, "arlo.toml"), Path(folder, "ready.json")
        config.write_text(CONFIG)
        command = [sys.executable, "-m", "arlo.cli", "serve", "gateway", str(config), "--ready-file", str(ready)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder) as process:
            end = time.monotonic() + start_timeout_s
            while not ready.exists() and process.poll() is None and time.monotonic() < end:
                time.sleep(0.02)
            try:
                if not ready.exists():
                    process.kill()
                    raise SystemExit(f"the gateway did not start: {process.stderr.read() if process.stderr else ''}")
                address = json.loads(ready.read_text())["http"]
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
                    return str(answer.read().decode())
            finally:
                process.send_signal(signal.SIGTERM)
                process.communicate()


def page(text: str) -> str:
    """The document for one scrape."""
    kinds = dict(re.findall(r"^# TYPE (arlo_\w+) (\w+)$", text, flags=re.M))
    lines = [
        f"| `{name}` | {kinds[name]} | {words} |" for name, words in re.findall(r"^# HELP (arlo_\w+) (.*)$", text, re.M)
    ]
    return HEAD + "\n".join(lines) + "\n" + control_section()


def control_section() -> str:
    """The section on the control plane's metrics."""
    from arlo.control.http.metrics import METRICS

    lines = []
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.full_name}` | {metric.kind} | {labels} | {metric.help} |\n")
    return CONTROL_HEAD + "".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    text = page(scrape())
    if arguments.check:
        if not arguments.file.is_file() or arguments.file.read_text() != text:
            print(f"{arguments.file} differs from what the program says: run `make docs`", file=sys.stderr)
            return 1
        return 0
    arguments.file.write_text(text)
    print(f"wrote {arguments.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
