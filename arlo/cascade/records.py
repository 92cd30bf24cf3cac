"""Every stage's answers to every text: all searches, checks and simulations run on these records.

A folder holds `data.json` (which data) and a folder for each stage and variant, named by a key of engine and data, so
outdated answers of an engine are never read. Parts are appended while recording and never changed, so an interrupted
run resumes where it left off.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import re
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.cascade.decide import Floats, Ints
from arlo.catalog.manifest import Manifest
from arlo.catalog.toml_text import write_whole
from arlo.errors import ConfigError

SPLITS = ("fit", "select", "test")
_LABEL_NONE = -1
REMEDY = ": make room, or choose a folder with --records"
_SPACE = re.compile(r"[\W\d_]+")


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """One line of a data file."""

    text: str
    text_pair: str | None
    label: str | int | None
    group: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Data:
    """Texts, in the order of the file."""

    examples: tuple[Example, ...]
    sha256: str  # of the file

    @property
    def labelled(self) -> bool:
        """Whether every text has a label."""
        return all(each.label is not None for each in self.examples)

    def labels(self, names: Sequence[str]) -> Ints:
        """The number [rows] of each text's label among `names`, -1 without a label. The file has names or numbers."""
        known = {name: i for i, name in enumerate(names)}
        out = np.full(len(self.examples), _LABEL_NONE, np.int64)
        for row, each in enumerate(self.examples):
            if each.label is None:
                continue
            number = known.get(each.label, -1) if isinstance(each.label, str) else each.label
            if not 0 <= number < len(names):
                raise ConfigError(
                    f"line {row + 1}: the label {each.label!r} is none of the cascade's: {', '.join(names)}"
                )
            out[row] = number
        return out

    def groups(self) -> NDArray[np.uint64]:
        """A number [rows] that texts of one group share. Texts without a group that differ only in case, spaces,
        digits and punctuation form one group."""
        return np.array(
            [
                _hash64(f"g:{each.group}" if each.group is not None else _SPACE.sub(" ", _whole(each).casefold()))
                for each in self.examples
            ],
            np.uint64,
        )

    def splits(self, shares: Sequence[float] = (0.4, 0.3, 0.3), seed: int = 0) -> NDArray[np.int8]:
        """The split [rows] of each text: 0 fit, 1 select, 2 test. A group stays in one split."""
        names = self.groups()
        u = np.array([_hash64(f"{seed}:{name}") for name in names], np.float64) / 2.0**64
        return np.searchsorted(np.cumsum(shares)[:-1], u, side="right").astype(np.int8)


def read_data(path: Path) -> Data:
    """Read JSON lines `{"text", "text_pair"?, "label"?, "group"?}`; ConfigError names the line."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from None
    found = []
    for number, line in enumerate(raw.splitlines(), start=1):
        if line.strip():
            found.append(_example(line, f"{path}:{number}"))
    if not found:
        raise ConfigError(f"{path} holds no texts")
    return Data(tuple(found), hashlib.sha256(raw).hexdigest())


def _example(line: bytes, where: str) -> Example:
    try:
        raw: Any = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON ({error})") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("text"), str):
        raise ConfigError(f'{where} must be an object with a string "text"')
    if unknown := set(raw) - {"text", "text_pair", "label", "group"}:
        raise ConfigError(f"{where} has an unknown field {min(unknown)!r}; known are text, text_pair, label and group")
    pair, label, group = raw.get("text_pair"), raw.get("label"), raw.get("group")
    if pair is not None and not isinstance(pair, str):
        raise ConfigError(f"{where}: text_pair must be a string")
    if label is not None and (not isinstance(label, str | int) or isinstance(label, bool)):
        raise ConfigError(f"{where}: label must be a name or a number")
    return Example(raw["text"], pair, label, None if group is None else str(group))


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """One stage's answers to rows, ascending in `row`."""

    row: Ints  # [rows], number in the data
    logits: NDArray[np.float32]  # [rows, labels], in the stage's own order
    tokens: NDArray[np.int32]  # [rows] that it was sent
    ms: NDArray[np.float32]  # [rows], from request to answer
    importance: NDArray[np.float32] | None = None  # [all tokens], row after row; None: the engine has none
    importance_ms: NDArray[np.float32] | None = None  # [rows], with importance asked for; None: never asked

    @property
    def offsets(self) -> Ints:
        """Where each row's importance begins, and the end: [rows + 1]."""
        return np.concatenate([[0], np.cumsum(self.tokens, dtype=np.int64)])

    def importance_of(self, at: int) -> NDArray[np.float32]:
        """Importance [tokens] of the row at this place. ConfigError without any."""
        if self.importance is None:
            raise ConfigError("these records have no importance: compile the stage with `--importance`, record again")
        start, end = self.offsets[at : at + 2]
        return self.importance[start:end]

    def take(self, rows: Ints) -> Recorded:
        """The records of these row numbers, in their order, without importance. ConfigError when one is missing."""
        at = np.searchsorted(self.row, rows)
        if len(rows) and (at.max() >= len(self.row) or np.any(self.row[at] != rows)):
            raise ConfigError("some texts are not recorded yet: the same `arlo fit` resumes")
        asked = None if self.importance_ms is None else self.importance_ms[at]
        return Recorded(self.row[at], self.logits[at], self.tokens[at], self.ms[at], importance_ms=asked)


class Records:
    """A folder of records of one data file."""

    def __init__(self, folder: Path, data: Data) -> None:
        """Open or create the folder. ConfigError when it holds records of other data."""
        self._folder, self._data = folder, data
        path = folder / "data.json"
        wanted = {"format": 1, "sha256": data.sha256, "rows": len(data.examples)}
        try:
            if path.exists():
                if json.loads(path.read_bytes()) != wanted:
                    raise ConfigError(f"{folder} holds records of other data: choose another folder with --records")
            else:
                folder.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(wanted) + "\n")
        except OSError as error:
            raise ConfigError(f"{path} cannot be used ({error.strerror}): choose a folder with --records") from None
        except ValueError:
            raise ConfigError(f"{path} is damaged: delete {folder}, and record again") from None

    def key(self, stage: str, engine: str, variant: str = "") -> str:
        """Name of the folder of a stage's records. `engine`: engine_hash(); `variant`: how its texts were pruned."""
        digest = hashlib.sha256("\0".join([engine, self._data.sha256, variant]).encode()).hexdigest()[:12]
        return f"{re.sub(r'[^A-Za-z0-9_-]', '_', stage)}-{digest}"

    def variants(self) -> list[tuple[str, str, float, str]]:
        """(source stage, stage, alpha, how) of the pruned texts whose recording has begun."""
        path = self._folder / "pruned.json"
        try:
            raw = json.loads(path.read_bytes()) if path.exists() else []
            return [(str(a), str(b), float(alpha), str(how)) for a, b, alpha, how in raw]
        except OSError as error:
            raise ConfigError(f"{path} cannot be read ({error.strerror})") from None
        except (ValueError, TypeError):
            raise ConfigError(f"{path} is damaged: delete it, and record again with --alphas") from None

    def note_variant(self, variant: tuple[str, str, float, str]) -> None:
        """Note that pruned texts are about to be recorded."""
        known = self.variants()
        if variant not in known:
            write_whole(self._folder / "pruned.json", json.dumps([*known, variant]), REMEDY)

    def rows(self, key: str) -> Ints:
        """Numbers of the texts that are recorded, ascending."""
        parts = [_arrays(path)["row"] for path in self._parts(key)]
        return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)

    def append(self, key: str, part: Recorded) -> None:
        """Add rows. A reader sees the part whole or not at all."""
        number = 1 + max((int(path.stem.split("-")[1]) for path in self._parts(key)), default=-1)
        arrays = {f.name: v for f in dataclasses.fields(part) if (v := getattr(part, f.name)) is not None}
        content = io.BytesIO()
        np.savez(content, **arrays)
        write_whole(self._folder / key / f"part-{number:06d}.npz", content.getvalue(), REMEDY)

    def load(self, key: str) -> Recorded | None:
        """All records; None if there are none. ConfigError names a damaged file."""
        parts = [_arrays(path) for path in self._parts(key)]
        if not parts:
            return None
        if len({part["logits"].shape[1] for part in parts}) > 1:
            raise ConfigError(
                f"{self._folder / key} holds answers of several numbers of labels: delete it, record again"
            )
        joined = {name: np.concatenate([part[name] for part in parts]) for name in ("row", "logits", "tokens", "ms")}
        _, first = np.unique(joined["row"], return_index=True)
        values = {name: array[first] for name, array in joined.items()}
        if all("importance_ms" in part for part in parts):
            values["importance_ms"] = np.concatenate([part["importance_ms"] for part in parts])[first]
        if any("importance" not in part for part in parts):
            return Recorded(**values)
        flat = np.concatenate([part["importance"] for part in parts])
        starts = np.concatenate([[0], np.cumsum(joined["tokens"], dtype=np.int64)])
        pieces = [flat[starts[i] : starts[i + 1]] for i in first]
        return Recorded(**values, importance=np.concatenate(pieces))

    def _parts(self, key: str) -> list[Path]:
        return sorted((self._folder / key).glob("part-*.npz"))


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of one part; ConfigError when the file is damaged."""
    try:
        with path.open("rb") as raw, np.load(raw) as file:  # which would leave a damaged file open
            arrays = {name: file[name] for name in file.files}
        rows = len(arrays["row"])
        whole = arrays["logits"].ndim == 2 and all(len(arrays[name]) == rows for name in ("logits", "tokens", "ms"))
        if not whole or len(arrays.get("importance", ())) not in (0, arrays["tokens"].sum()):
            raise ValueError("its arrays do not go together")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigError(f"{path} is damaged ({error}): delete it, and `arlo fit` asks for its texts again") from None
    return arrays


def engine_hash(manifest: Manifest) -> str:
    """Hash of everything that determines a stage's answers: tensors, runtimes, file hashes. Latencies are left out."""
    parts = {
        "model": manifest.model,
        "inputs": [dataclasses.asdict(each) for each in manifest.inputs],
        "outputs": [dataclasses.asdict(each) for each in manifest.outputs],
        "runtimes": [
            [r.name, r.max_length, r.dynamic, r.engine, r.precision, sorted(r.files.items())] for r in manifest.runtimes
        ],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def ms_by_row(recorded: Recorded, *, importance: bool = False) -> Floats:
    """Milliseconds [rows] without the noise of single calls: the median of rows of about as many tokens (16 a step),
    which never falls with the tokens. `importance`: times with importance requested, if those were measured."""
    ms = recorded.importance_ms if importance and recorded.importance_ms is not None else recorded.ms
    step = recorded.tokens // 16
    ends, which = np.unique(step, return_inverse=True)
    medians = np.array([np.median(ms[which == i]) for i in range(len(ends))], np.float64)
    return np.asarray(np.maximum.accumulate(medians)[which])


def _whole(example: Example) -> str:
    return example.text if example.text_pair is None else f"{example.text}\0{example.text_pair}"


def _hash64(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "little")
