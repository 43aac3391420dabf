"""The networks of the paper, each with the config that builds it."""

from .mlp import MLP, MLPConfig
from .resnet import ResNet18, ResNet18Config

NetworkConfig = MLPConfig | ResNet18Config

__all__ = ["MLP", "MLPConfig", "NetworkConfig", "ResNet18", "ResNet18Config"]
