"""The error tree of the Python side.

ArloError
├── ConfigError        a configuration, manifest or command line is wrong; says what to change      exit code 2
├── EnvironmentProblem a package, program or file that is needed is missing; says how to get it     exit code 3
├── CompileError       a compile step failed; names the step                                        exit code 4
├── WorkerError        a worker did not start, load or answer; carries the end of its log           exit code 5
├── GatewayError       the gateway did not start or refused a deployment                            exit code 6
└── ClientError        see arlo.client.errors                                                       exit code 7

Exit codes are given in one place, `exit_code`; gRPC codes are mapped in one place, `arlo.client.errors`.
"""

from __future__ import annotations


class ArloError(Exception):
    """Base of all errors that Arlo raises on purpose. The message says what to do."""

    exit_code = 1


class ConfigError(ArloError):
    """A configuration, manifest or command line is wrong."""

    exit_code = 2


def need(good: bool, message: str) -> None:
    """ConfigError with this message, unless it is `good`."""
    if not good:
        raise ConfigError(message)


class EnvironmentProblem(ArloError):  # noqa: N818  # EnvironmentError is a name of Python's own
    """A package, program or file that is needed is missing."""

    exit_code = 3


def how_to_install(*packages: str) -> str:
    """The command that brings these packages.

    PyPI's PyTorch for Linux carries CUDA, several GB; that of PyTorch's own index is for the CPU.
    """
    if "torch" in packages:
        index = "--extra-index-url https://download.pytorch.org/whl/cpu"
        return f"pip install 'arlo-serve[up,compile]' {index} (for a GPU: without --extra-index-url)"
    known = {"onnx", "onnxscript", "onnx_ir", "onnxruntime", "transformers", "a Triton server"}
    return "pip install " + ("'arlo-serve[up]'" if {*packages} <= known else " ".join(packages))


class CompileError(ArloError):
    """A compile step failed."""

    exit_code = 4


class WorkerError(ArloError):
    """A worker did not start, load or answer."""

    exit_code = 5


class GatewayError(ArloError):
    """The gateway did not start or refused a deployment."""

    exit_code = 6
