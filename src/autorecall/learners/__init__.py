"""The learners: one method a file, each with its config. A new method is added to the two lists here."""

from .adi import ADI, ADIConfig
from .arm import ARM, ARMConfig
from .base import Learner, Memory
from .boundaries import BoundaryConfig
from .distill import Distill, DistillConfig
from .er import ER, ERConfig
from .er_mir import ERMIR, ERMIRConfig
from .gem import GEM, GEMConfig
from .gen import GEN, GENConfig
from .gen_mir import GENMIR, GENMIRConfig
from .icarl import ICaRL, ICaRLConfig
from .naive import Naive, NaiveConfig
from .recalling import RecallLearner, Recollection
from .slda import SLDA, SLDAConfig
from .teacher import LagConfig

LearnerConfig = (
    NaiveConfig
    | DistillConfig
    | ADIConfig
    | ARMConfig
    | ERConfig
    | ERMIRConfig
    | GEMConfig
    | ICaRLConfig
    | GENConfig
    | GENMIRConfig
    | SLDAConfig
)

__all__ = [
    "ADI",
    "ARM",
    "ER",
    "ERMIR",
    "GEM",
    "GEN",
    "GENMIR",
    "SLDA",
    "ADIConfig",
    "ARMConfig",
    "BoundaryConfig",
    "Distill",
    "DistillConfig",
    "ERConfig",
    "ERMIRConfig",
    "GEMConfig",
    "GENConfig",
    "GENMIRConfig",
    "ICaRL",
    "ICaRLConfig",
    "LagConfig",
    "Learner",
    "LearnerConfig",
    "Memory",
    "Naive",
    "NaiveConfig",
    "RecallLearner",
    "Recollection",
    "SLDAConfig",
]
