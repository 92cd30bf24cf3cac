"""The compile pipeline: a local Hugging Face folder becomes a Triton model repository with one runtime per length.

    from pathlib import Path
    from arlo.compile import CompileOptions, compile_model

    manifest = compile_model(CompileOptions(source=Path("my-model"), out=Path("repository"), lengths=(64, 128)))

The steps, one module each: resolve -> tokenizer -> export -> specialise -> build -> verify -> latency -> repository.
Each has a cache key made of content hashes, versions and options, so that a killed or repeated build reuses finished
steps. Importing this package is cheap: torch, transformers, onnx and onnxruntime are imported only inside the steps.
"""

from arlo.compile.options import DEFAULT_LENGTHS, CompileOptions, parse_lengths
from arlo.compile.pipeline import compile_model
from arlo.compile.progress import Progress
from arlo.compile.steps.resolve import DEMO_MODEL, demo_model_path

__all__ = [
    "DEFAULT_LENGTHS",
    "DEMO_MODEL",
    "CompileOptions",
    "Progress",
    "compile_model",
    "demo_model_path",
    "parse_lengths",
]
