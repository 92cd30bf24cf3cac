"""The simulator: what a cluster would do with a stream of requests, by the scheduler that serves (importable as
arlo.simulator). docs/simulator.md."""
