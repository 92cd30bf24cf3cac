"""The simulator against reality: one trace, replayed on an emulated cluster and in the simulator.

The cluster is real but for the GPUs: `arlo-loadgen` sends at the trace's instants, `arlo-gateway` dispatches, ten
Triton processes execute, each runtime for as long as a latency profile says. All times are ten times those of the
profile (latencies, SLO; rates are a tenth), so that a small machine carries the load.

    python -m benchmarks.testbed              three loads, two policies: cluster beside simulator
    python -m benchmarks.testbed --schemes    ST, DT, INFaaS and Arlo over the request rate (Fig. 6 and 7)
    python -m benchmarks.testbed --scaling    workers come and go by the real control plane (Fig. 8); times as they are

Written: benchmarks/results/testbed.json, testbed_schemes.json, testbed_scaling.json; `load()` and `rows()` read them.
"""

from __future__ import annotations

from benchmarks.testbed.results import load, rows

__all__ = ["load", "rows"]
