"""The latency profile: measure every runtime on a real worker, through Triton, and report the results.

measure() the points -> LatencyProfile (format.py) -> with_profile(manifest, profile), which planning and gateway read.
"""

from arlo.profiler.apply import with_profile
from arlo.profiler.format import FORMAT, How, LatencyProfile, Point, RuntimeProfile, runtime_hash
from arlo.profiler.job import ProfileOptions, Progress, profile_runtimes
from arlo.profiler.staircase import Staircase, staircase

__all__ = [
    "FORMAT",
    "How",
    "LatencyProfile",
    "Point",
    "ProfileOptions",
    "Progress",
    "RuntimeProfile",
    "Staircase",
    "profile_runtimes",
    "runtime_hash",
    "staircase",
    "with_profile",
]
