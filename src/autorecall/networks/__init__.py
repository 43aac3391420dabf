"""The networks of the paper and fixed features, each with the config that builds it."""

from .base import NetworkConfig
from .descriptor import Descriptor, DescriptorConfig
from .fixed import FixedFeatures
from .fourier import Fourier, FourierConfig
from .gated import GatedMLPConfig
from .mlp import MLP, MLPConfig
from .patches import Patches, PatchesConfig
from .resnet import ResNet18, ResNet18Config
from .vae import VAE, ConvVAEConfig, MLPVAEConfig

__all__ = [
    "MLP",
    "VAE",
    "ConvVAEConfig",
    "Descriptor",
    "DescriptorConfig",
    "FixedFeatures",
    "Fourier",
    "FourierConfig",
    "GatedMLPConfig",
    "MLPConfig",
    "MLPVAEConfig",
    "NetworkConfig",
    "Patches",
    "PatchesConfig",
    "ResNet18",
    "ResNet18Config",
]
