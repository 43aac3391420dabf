"""The networks of the paper, each with the config that builds it."""

from .fourier import Fourier, FourierConfig
from .gated import GatedMLPConfig
from .mlp import MLP, MLPConfig
from .resnet import ResNet18, ResNet18Config
from .vae import VAE, ConvVAEConfig, MLPVAEConfig

NetworkConfig = MLPConfig | ResNet18Config | GatedMLPConfig | FourierConfig

__all__ = [
    "MLP",
    "VAE",
    "ConvVAEConfig",
    "Fourier",
    "FourierConfig",
    "GatedMLPConfig",
    "MLPConfig",
    "MLPVAEConfig",
    "NetworkConfig",
    "ResNet18",
    "ResNet18Config",
]
