"""Our own format as Parquet: the columns of the CSV form. pyarrow is an extra and is imported only here."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from arlo.errors import ConfigError, EnvironmentProblem
from arlo.traces.trace import COLUMNS, MOST_TOKENS, Trace

_MAGIC = b"PAR1"


def is_parquet(path: Path) -> bool:
    """By the first bytes; a file that is not there yet, by its name."""
    if not path.exists():
        return path.suffix.lower() in {".parquet", ".pq"}
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def pyarrow(module: str = "pyarrow") -> Any:
    """pyarrow or a module of it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:  # it is not there, or does not go with this NumPy
        raise EnvironmentProblem(f"Parquet needs pyarrow: pip install 'arlo-serve[parquet]' ({error})") from None


def parquet_columns(path: Path) -> list[str]:
    """The names of a file's columns."""
    return [str(name) for name in _open(path).schema_arrow.names]


def read_parquet(path: Path) -> Trace:
    """A trace. ConfigError says what is wrong with the file."""
    file = _open(path)
    names = file.schema_arrow.names
    missing = [name for name in COLUMNS[:2] if name not in names]
    if missing:
        raise ConfigError(f"{path} has no column {missing[0]}: a trace needs the columns arrived_at_s,length")
    table = file.read(columns=[name for name in COLUMNS if name in names])
    columns = {}
    for name, wanted in zip(COLUMNS, ("floating", "integer", "integer"), strict=True):
        if name not in names:
            continue
        column = table.column(name)
        types = pyarrow("pyarrow.types")
        number = types.is_integer(column.type) or (wanted == "floating" and types.is_floating(column.type))
        if not number:
            raise ConfigError(f"{path}: column {name} holds {column.type}, not {wanted} numbers")
        if column.null_count:
            raise ConfigError(f"{path}: column {name} has {column.null_count} empty values")
        columns[name] = column.to_numpy()
    length = columns["length"]
    if len(length) and length.max() > MOST_TOKENS:
        raise ConfigError(f"{path}: column length has {length.max()}: no request is longer than {MOST_TOKENS} tokens")
    try:
        return Trace(
            arrived_at_s=columns["arrived_at_s"], length=length.astype(np.int32), text_id=columns.get("text_id")
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


class ParquetWriter:
    """Writes a trace in parts; a context manager."""

    def __init__(self, path: Path) -> None:
        arrow = pyarrow()
        self._arrow = arrow
        self._schema = arrow.schema([(COLUMNS[0], arrow.float64()), (COLUMNS[1], arrow.int32())])
        self._writer = pyarrow("pyarrow.parquet").ParquetWriter(path, self._schema, compression="zstd")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def write(self, arrived_at_s: NDArray[np.float64], length: NDArray[np.int32]) -> None:
        """One more part, later than those before it."""
        self._writer.write_table(self._arrow.table([arrived_at_s, length], schema=self._schema))


def _open(path: Path) -> Any:
    parquet = pyarrow("pyarrow.parquet")
    try:
        return parquet.ParquetFile(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors or OSErrors
        raise ConfigError(f"cannot read the Parquet file {path}: {error}") from None
