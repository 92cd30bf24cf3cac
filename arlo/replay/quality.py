"""What answers are worth: right by the labels of the texts, and as the last stage of a cascade alone answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from arlo.client.classification import LOGITS, OF_CASCADES, outputs_of
from arlo.client.model import ModelInfo
from arlo.errors import ConfigError
from arlo.replay.options import DEFAULT_LONGEST, ReplayOptions
from arlo.replay.rows import MAX_ROWS
from arlo.replay.summary import Quality
from arlo.traces import Row, Trace

if TYPE_CHECKING:
    from arlo.cascade.records import Data
    from arlo.replay.result import ReplayResult

TIMEOUT_S = 60.0  # of a request of the comparison, which is sent when the load is over


class LabelledTexts:
    """A RowSource of the texts of a data file, in its order, as the target's tokenizer cuts them."""

    def __init__(self, data: Data, options: ReplayOptions, *, compare: bool) -> None:
        """Asks the target what it takes. `compare`: with the last stage. ConfigError for texts that cannot be sent,
        labels that it does not have, or no cascade to compare with; ClientError when it is not there, or does not
        classify."""
        from arlo.client.tokenizer import Tokenizer

        if options.tokenizer is None:
            raise ConfigError("--labels needs --tokenizer: its texts are what is sent")
        with options.client() as client:
            self.info: ModelInfo = client.model_info()
        outputs_of(self.info)
        self.compare = compare
        if compare and not {tensor.name for tensor in self.info.outputs}.issuperset(OF_CASCADES):
            raise ConfigError(f"--compare last goes with a cascade, and model {self.info.name} is none")
        longest, tokenizer = self.info.max_length or DEFAULT_LONGEST, Tokenizer(options.tokenizer)
        self.labels: list[str | None] = []
        self._rows: list[Row] = []
        for number, example in enumerate(data.examples[:MAX_ROWS], start=1):
            if example.text_pair is not None:
                raise ConfigError(f"text {number} is a pair, and a replay sends single texts")
            whole, cut = (tokenizer.encode([example.text], cut_to=most)[0].ids for most in (None, longest))
            self._rows.append(Row(ids=cut, text=example.text if len(whole) == len(cut) else None))
            self.labels.append(_label(example.label, self.info, number))

    def row(self, length: int, key: int) -> Row:
        """The text of this number."""
        return self._rows[key]

    def trace(self, arrivals: Trace) -> Trace:
        """The same arrivals with these texts: those that its text_id names, else one after the other."""
        ids = np.arange(len(arrivals)) if arrivals.text_id is None else arrivals.text_id
        ids = np.asarray(ids % len(self._rows), np.int64)
        lengths = np.array([len(row.ids) for row in self._rows], np.int32)
        return Trace(arrived_at_s=arrivals.arrived_at_s, length=lengths[ids], text_id=ids)


def judge(result: ReplayResult, texts: LabelledTexts, options: ReplayOptions) -> Quality:
    """What the kept answers of a replay of these texts are worth; to compare, the last stage is asked about each text
    that was answered."""
    from arlo.cascade.search.points import interval

    assert result.trace.text_id is not None
    answered = [
        (int(result.trace.text_id[index]), _name(outputs[LOGITS], texts.info))
        for index, outputs in sorted(result.responses.items())
    ]
    right = [answer == texts.labels[text] for text, answer in answered if texts.labels[text] is not None]
    accuracy = interval(np.array(right)) if right else None
    agreement = None
    if texts.compare:
        last = _last(sorted({text for text, _ in answered}), texts, options)
        same = [answer == last[text] for text, answer in answered]
        agreement = float(np.mean(same)) if same else None
    return Quality(
        answers=len(answered),
        labelled=len(right),
        accuracy=None if accuracy is None else accuracy.mean,
        accuracy_low=None if accuracy is None else accuracy.low,
        accuracy_high=None if accuracy is None else accuracy.high,
        agreement=agreement,
    )


def _last(numbers: list[int], texts: LabelledTexts, options: ReplayOptions) -> Mapping[int, str]:
    """What the last stage alone says of each text."""
    rows = [texts.row(0, number).ids for number in numbers]
    with options.client(timeout_s=TIMEOUT_S, retries=2) as client:
        found = client.classify(rows, parameters={"cascade": "last"}, timeout_s=TIMEOUT_S * (1 + len(rows) / 100))
    return {number: each.label for number, each in zip(numbers, found, strict=True)}


def _name(logits: NDArray[Any], info: ModelInfo) -> str:
    best = int(np.argmax(logits))
    return info.labels[best] if best < len(info.labels) else str(best)


def _label(label: str | int | None, info: ModelInfo, number: int) -> str | None:
    """As the target names it."""
    if label is None:
        return None
    if isinstance(label, int) and 0 <= label < len(info.labels):
        return info.labels[label]
    if info.labels and label not in info.labels:
        raise ConfigError(
            f"text {number}: the label {label!r} is none of model {info.name}'s: {', '.join(info.labels)}"
        )
    return str(label)
