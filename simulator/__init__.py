"""The simulator: a cluster's behaviour under a stream of requests, with the serving scheduler (importable as
arlo.simulator). See docs/simulator.md."""
