"""Does polymorphing pay on this device? Every way to run an encoder here, by length and batch, in one command.

    python -m benchmarks.gpu --help

options.py -> plan.py (which cells, most telling first) -> run.py (opens contenders, measures, keeps each cell)
-> report.py (latency.json, profiles, plots, summary.md). docs/gpu-proof.md says how to read it.
"""
