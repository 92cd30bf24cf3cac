"""The latency profile as a value and as a JSON file, versioned."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from arlo.catalog.manifest import Runtime
from arlo.errors import ConfigError
from arlo.profiler.staircase import Staircase, staircase

FORMAT = 1

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Measured latency of one request of `batch` rows of `length` tokens, sent to an otherwise idle worker."""

    length: int  # tokens
    batch: int  # rows
    mean_us: float  # from sending the request to its answer, at the client: with the network and Triton's own part
    p50_us: float
    p98_us: float
    samples: int
    half_width_us: float  # of the confidence interval of the mean
    compute_us: float | None = None  # mean time in the backend, by Triton's statistics
    queue_us: float | None = None  # mean time in Triton's queue
    other_load: float | None = None  # share of the machine's CPU time that others took meanwhile; None: not seen

    def check(self) -> None:
        """Raise a ConfigError for values that no measurement gives."""
        if self.length < 1 or self.batch < 1 or self.samples < 1:
            raise ConfigError("length, batch and samples must be at least 1")
        times = {"mean_us": self.mean_us, "p50_us": self.p50_us, "p98_us": self.p98_us}
        for name, value in times.items():
            if not math.isfinite(value) or value <= 0:
                raise ConfigError(f"{name} must be above 0, not {value}")
        if not math.isfinite(self.half_width_us) or self.half_width_us < 0:
            raise ConfigError(f"half_width_us must be at least 0, not {self.half_width_us}")

    def within(self, precision: float) -> bool:
        """Whether the interval, relative to the mean, is at most this wide."""
        return self.half_width_us <= precision * self.mean_us


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeProfile:
    """One runtime's points."""

    name: str
    hash: str  # of the measured runtime, see runtime_hash()
    max_length: int
    max_batch: int
    dynamic: bool
    points: tuple[Point, ...] = ()  # by length, then batch
    shorter: Point | None = None  # static: a row of fewer real tokens, padded to max_length; should take as long
    load_ms: int | None = None  # until the worker had loaded it; None: it was loaded already

    @property
    def staircase(self) -> Staircase | None:
        """The steps of latency over length at batch 1; None for a static runtime, which has one length."""
        if not self.dynamic:
            return None
        return staircase((point.length, point.mean_us) for point in self.points if point.batch == 1)

    def point(self, length: int, batch: int) -> Point | None:
        """The point measured there."""
        return next((p for p in self.points if (p.length, p.batch) == (length, batch)), None)

    def with_point(self, point: Point) -> RuntimeProfile:
        """This runtime with the point added, or replaced."""
        others = [p for p in self.points if (p.length, p.batch) != (point.length, point.batch)]
        return dataclasses.replace(self, points=tuple(sorted([*others, point], key=lambda p: (p.length, p.batch))))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a profile was measured."""

    confidence: float  # of the intervals, such as 0.95
    precision: float  # half width over mean that was asked for
    max_seconds: float  # longest time spent on one point
    threads: int | None  # of the worker; None: a worker that was not started here
    outputs: tuple[str, ...]  # that were asked for
    method: str = "one request at a time over gRPC, directly to the worker"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LatencyProfile:
    """The latency profile that `arlo compile profile` writes."""

    model: str
    device: str
    versions: dict[str, str]  # arlo, triton, the engine
    date: str  # ISO 8601, UTC; of the last point
    provenance: str  # "measured through Triton ...", or a note that it is an estimate
    how: How
    runtimes: tuple[RuntimeProfile, ...]  # in the manifest's order
    format: int = FORMAT

    @property
    def staircase(self) -> Staircase:
        """The steps over the maximum lengths of the static runtimes, at batch 1."""
        return staircase(
            (runtime.max_length, point.mean_us)
            for runtime in self.runtimes
            if not runtime.dynamic and (point := runtime.point(runtime.max_length, 1)) is not None
        )

    def runtime(self, name: str) -> RuntimeProfile | None:
        """The runtime of that name."""
        return next((runtime for runtime in self.runtimes if runtime.name == name), None)

    def with_runtime(self, runtime: RuntimeProfile) -> LatencyProfile:
        """This profile with the runtime of the same name replaced."""
        return dataclasses.replace(
            self, runtimes=tuple(runtime if r.name == runtime.name else r for r in self.runtimes)
        )

    def as_dict(self) -> dict[str, Any]:
        """The content of the file: the fields, and the staircases, which are for people and not read back."""
        raw = dataclasses.asdict(self)
        for runtime, entry in zip(self.runtimes, raw["runtimes"], strict=True):
            steps = runtime.staircase
            entry["staircase"] = dataclasses.asdict(steps) if steps else None
        raw["staircase"] = dataclasses.asdict(self.staircase)
        return raw

    def save(self, path: Path) -> None:
        """Write atomically: readers see the old file or the new one, whole."""
        temporary = path.with_name(path.name + ".tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(self.as_dict(), indent=2) + "\n")
            temporary.replace(path)
        except OSError as error:
            raise ConfigError(f"latency profile {path} cannot be written ({error.strerror})") from None

    @classmethod
    def load(cls, path: Path) -> LatencyProfile:
        """Read and check a file; ConfigError names its fault."""
        try:
            raw = json.loads(path.read_text())
        except FileNotFoundError:
            raise ConfigError(f"latency profile {path} does not exist: write it with `arlo compile profile`") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"latency profile {path} cannot be read ({error})") from None
        except json.JSONDecodeError as error:
            raise ConfigError(f"latency profile {path} is not JSON ({error}): measure again") from None
        try:
            return _profile(raw)
        except ConfigError as error:
            raise ConfigError(
                f"{path} is not a latency profile of this version of Arlo: {error}. Measure again with "
                "`arlo compile profile`"
            ) from None


def runtime_hash(runtime: Runtime) -> str:
    """Identity of a runtime for its latency: its shape, precision and files, but not its latency points."""
    identity = {
        "name": runtime.name,
        "max_length": runtime.max_length,
        "max_batch": runtime.max_batch,
        "dynamic": runtime.dynamic,
        "engine": runtime.engine,
        "precision": runtime.precision,
        "files": runtime.files,
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _profile(raw: Any) -> LatencyProfile:
    if not isinstance(raw, dict) or "runtimes" not in raw:
        raise ConfigError("it has no `runtimes`")
    if raw.get("format") != FORMAT:
        raise ConfigError(f"its format is {raw.get('format')!r}, not {FORMAT}")
    profile = _make(
        LatencyProfile,
        raw,
        "the profile",
        runtimes=lambda items: tuple(_runtime(item, index) for index, item in enumerate(items)),
        how=lambda item: _make(How, item, "how", outputs=tuple),
    )
    names = [runtime.name for runtime in profile.runtimes]
    if len(set(names)) != len(names):
        raise ConfigError(f"a runtime is listed twice: {', '.join(names)}")
    return profile


def _runtime(raw: Any, index: int) -> RuntimeProfile:
    where = f"runtimes[{index}]"

    def one(item: Any) -> Point:
        point = _make(Point, item, f"a point of {where}")
        try:
            point.check()
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        return point

    runtime = _make(
        RuntimeProfile,
        raw,
        where,
        points=lambda items: tuple(one(item) for item in items),
        shorter=lambda item: None if item is None else one(item),
    )
    if runtime.load_ms is not None and not 0 <= runtime.load_ms < 1 << 31:
        raise ConfigError(f"{where}: load_ms must be at least 0, not {runtime.load_ms}")
    places = [(point.length, point.batch) for point in runtime.points]
    if len(set(places)) != len(places):
        raise ConfigError(f"{where} has two points for one length and batch")
    return runtime


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "text"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "int | None": ((int, type(None)), "a whole number or null"),
    "float | None": ((int, float, type(None)), "a number or null"),
    "dict[str, str]": ((dict,), "a table"),
}


def _make(cls: type[T], raw: Any, where: str, **convert: Callable[[Any], Any]) -> T:
    """A dataclass from its JSON form; fields that are only for readers, such as `staircase`, are left out."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{where} is not a table")
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # T is always a dataclass here
        if field.name not in raw:
            if field.default is dataclasses.MISSING:
                raise ConfigError(f"{where} lacks `{field.name}`")
            continue
        value = raw[field.name]
        if field.name in convert:
            if value is not None and not isinstance(value, list | dict):
                raise ConfigError(f"`{field.name}` of {where} is {value!r}")
            try:
                value = convert[field.name](value)
            except TypeError:
                raise ConfigError(f"`{field.name}` of {where} is {value!r}") from None
        else:
            kinds, words = _KINDS[str(field.type)]
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise ConfigError(f"`{field.name}` of {where} must be {words}, not {value!r}")
        values[field.name] = value
    return cls(**values)
