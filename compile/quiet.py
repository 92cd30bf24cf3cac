"""Keep the known chatter of torch, transformers and the exporter off the screen, and nothing else.

Each pattern below was seen, understood and found harmless for encoders. Every other warning is passed on as a note.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import warnings
from collections.abc import Iterator
from typing import Any

_KNOWN_WARNINGS = re.compile(
    r"axis name: .* will not be used"  # two inputs share an axis, which is what we mean
    r"|isinstance\(treespec, LeafSpec\)"  # torch on its own pytree classes
    r"|torch\.jit\.\w+` is deprecated|legacy TorchScript"
    r"|builtin type \w+ has no __module__ attribute"  # SWIG modules
    r"|is deprecated .*torch\.(utils|export|onnx)"
)
_KNOWN_LOGS = re.compile(
    r"torchvision is not installed"  # the exporter offers operators for it
    r"|Skipping constant folding for op"  # with several outputs: it stays in the graph
    r"|Some weights of|You are using .* layernorm|pooler"  # loading is checked by name in export and verify
)

_LOGGERS = ("torch", "torch.onnx", "torch.fx.experimental.symbolic_shapes", "transformers", "onnxscript", "onnx_ir")


class _Collect(logging.Handler):
    def __init__(self, notes: list[str]) -> None:
        super().__init__(level=logging.WARNING)
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if not _KNOWN_LOGS.search(text):
            self._notes.append(f"{record.name}: {text}")


@contextlib.contextmanager
def known_noise_silenced() -> Iterator[list[str]]:
    """Collect warnings and log records of torch and transformers; yields the list of those that are not known."""
    notes: list[str] = []
    collector = _Collect(notes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Both set up their loggers when they are imported: that must be over before the handlers are exchanged.
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that there is no torch, for one
        with contextlib.suppress(ImportError):
            import torch  # noqa: F401
        bars: Any = None
        with contextlib.suppress(ImportError):
            from transformers.utils import logging as bars

        loggers = [logging.getLogger(name) for name in _LOGGERS]
        before = [(logger, logger.handlers, logger.propagate) for logger in loggers]
        bar_was_on = bars is not None and bars.is_progress_bar_enabled()
        if bar_was_on:
            bars.disable_progress_bar()
        for logger in loggers:
            logger.handlers, logger.propagate = [collector], False
        try:
            yield notes
        finally:
            for logger, handlers, propagate in before:
                logger.handlers, logger.propagate = handlers, propagate
            if bar_was_on:
                bars.enable_progress_bar()
            notes.extend(
                f"{warning.category.__name__}: {warning.message}"
                for warning in caught
                if not _KNOWN_WARNINGS.search(str(warning.message))
            )
