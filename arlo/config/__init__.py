"""One typed TOML configuration: `load` reads and checks it, the dataclasses in model.py document it."""

from arlo.config.keeping import HealthConfig
from arlo.config.load import load, parse
from arlo.config.model import Config, DeploymentConfig, DispatchConfig, ModelConfig, WorkersConfig
from arlo.config.ports import GatewayConfig

__all__ = [
    "Config",
    "DeploymentConfig",
    "DispatchConfig",
    "GatewayConfig",
    "HealthConfig",
    "ModelConfig",
    "WorkersConfig",
    "load",
    "parse",
]
