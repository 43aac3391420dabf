"""autorecall: continual learning that keeps no data.

    learner = ARM(network, ARMConfig(...))   # any nn.Module that maps a batch to logits
    numbers = learner.observe(x, y)          # one online step: learn, recall, learn again
    logits = learner.predict(x)

Names are imported when first used, so that `autorecall --help` need not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .checkpoint import load as load
    from .checkpoint import save as save
    from .config import RunConfig as RunConfig
    from .data import Dataset as Dataset
    from .data import from_arrays as from_arrays
    from .data import from_folder as from_folder
    from .data import load_dataset as load_dataset
    from .errors import AutorecallError as AutorecallError
    from .errors import ConfigError as ConfigError
    from .errors import DataError as DataError
    from .errors import DivergedError as DivergedError
    from .errors import InputError as InputError
    from .errors import InterruptedRunError as InterruptedRunError
    from .errors import StoppedError as StoppedError
    from .experiment import Observer as Observer
    from .experiment import Result as Result
    from .experiment import run as run
    from .learners import ADI as ADI
    from .learners import ARM as ARM
    from .learners import ER as ER
    from .learners import ERMIR as ERMIR
    from .learners import GEM as GEM
    from .learners import GEN as GEN
    from .learners import GENMIR as GENMIR
    from .learners import SLDA as SLDA
    from .learners import ADIConfig as ADIConfig
    from .learners import ARMConfig as ARMConfig
    from .learners import BoundaryConfig as BoundaryConfig
    from .learners import Distill as Distill
    from .learners import DistillConfig as DistillConfig
    from .learners import ERConfig as ERConfig
    from .learners import ERMIRConfig as ERMIRConfig
    from .learners import GEMConfig as GEMConfig
    from .learners import GENConfig as GENConfig
    from .learners import GENMIRConfig as GENMIRConfig
    from .learners import ICaRL as ICaRL
    from .learners import ICaRLConfig as ICaRLConfig
    from .learners import LagConfig as LagConfig
    from .learners import Learner as Learner
    from .learners import Memory as Memory
    from .learners import Naive as Naive
    from .learners import NaiveConfig as NaiveConfig
    from .learners import Recollection as Recollection
    from .learners import SLDAConfig as SLDAConfig
    from .networks import ConvVAEConfig as ConvVAEConfig
    from .networks import FourierConfig as FourierConfig
    from .networks import GatedMLPConfig as GatedMLPConfig
    from .networks import MLPConfig as MLPConfig
    from .networks import MLPVAEConfig as MLPVAEConfig
    from .networks import ResNet18Config as ResNet18Config
    from .presets import PRESETS as PRESETS
    from .stream import Stream as Stream
    from .stream import StreamConfig as StreamConfig

_HOMES = {
    ".checkpoint": ("load", "save"),
    ".config": ("RunConfig",),
    ".data": ("Dataset", "from_arrays", "from_folder", "load_dataset"),
    ".errors": (
        "AutorecallError",
        "ConfigError",
        "DataError",
        "DivergedError",
        "InputError",
        "InterruptedRunError",
        "StoppedError",
    ),
    ".experiment": ("Observer", "Result", "run"),
    ".learners": (
        "ADI",
        "ADIConfig",
        "ARM",
        "ARMConfig",
        "BoundaryConfig",
        "Distill",
        "DistillConfig",
        "ER",
        "ERConfig",
        "ERMIR",
        "ERMIRConfig",
        "GEM",
        "GEMConfig",
        "GEN",
        "GENConfig",
        "GENMIR",
        "GENMIRConfig",
        "ICaRL",
        "ICaRLConfig",
        "LagConfig",
        "Learner",
        "Memory",
        "Naive",
        "NaiveConfig",
        "Recollection",
        "SLDA",
        "SLDAConfig",
    ),
    ".networks": ("ConvVAEConfig", "FourierConfig", "GatedMLPConfig", "MLPConfig", "MLPVAEConfig", "ResNet18Config"),
    ".presets": ("PRESETS",),
    ".stream": ("Stream", "StreamConfig"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)  # noqa: PLE0605  a list of strings, made from the table above


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'autorecall' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name], __name__), name)
