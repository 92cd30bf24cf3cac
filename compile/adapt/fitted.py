"""Fitted heads and prompts of one task, kept in the folder that `arlo adapt` wrote, so that another task can be added
to the body later as one more entry of the tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from arlo.compile.adapt.prompts import Prompts
from arlo.compile.adapt.variant import Head
from arlo.errors import ConfigError


@dataclasses.dataclass(frozen=True, slots=True)
class Fitted:
    """A head on the unchanged body, and prompts by their number, each with a head that goes with them."""

    head: Head
    prompts: Mapping[str, Prompts] = dataclasses.field(default_factory=dict)

    def save(self, file: Path) -> None:
        """Write the head to `file` as .npz."""
        file.parent.mkdir(parents=True, exist_ok=True)
        arrays = {"labels": np.array(self.head.labels), "weight": self.head.weight, "bias": self.head.bias}
        for count, found in self.prompts.items():
            each = {"values": found.values, "weight": found.head.weight, "bias": found.head.bias}
            arrays |= {f"{count}/{name}": array for name, array in each.items()}
        temporary = file.with_suffix(".tmp.npz")
        np.savez(temporary, allow_pickle=False, **arrays)
        temporary.replace(file)

    @classmethod
    def load(cls, file: Path) -> Fitted:
        """Read the file. ConfigError when it cannot be read."""
        try:
            with np.load(file, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            labels = tuple(map(str, arrays["labels"]))
            counts = sorted({name.partition("/")[0] for name in arrays if "/" in name})
            prompts = {
                count: Prompts(
                    arrays[f"{count}/values"], Head(labels, arrays[f"{count}/weight"], arrays[f"{count}/bias"])
                )
                for count in counts
            }
            return cls(Head(labels, arrays["weight"], arrays["bias"]), prompts)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"{file} cannot be read ({error}): run `arlo adapt` again") from None


@dataclasses.dataclass(frozen=True, slots=True)
class Before:
    """Existing tasks by number; they come first. room: classes per task in their tables; 0: there are no tables
    yet."""

    tasks: Mapping[str, Fitted] = dataclasses.field(default_factory=dict)
    room: int = 0


NOTHING = Before()
