"""The networks of the paper and fixed features, each with the config that builds it."""

from .descriptor import Descriptor, DescriptorConfig
from .fixed import FixedFeatures
from .fourier import Fourier, FourierConfig
from .gated import GatedMLPConfig
from .mlp import MLP, MLPConfig
from .patches import Patches, PatchesConfig
from .resnet import ResNet18, ResNet18Config
from .vae import VAE, ConvVAEConfig, MLPVAEConfig

NetworkConfig = MLPConfig | ResNet18Config | GatedMLPConfig | FourierConfig | DescriptorConfig | PatchesConfig

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
