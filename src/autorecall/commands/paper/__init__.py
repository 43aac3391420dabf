"""The tables, figures and studies of the paper, and our own: which runs each needs, and how it is written from them."""

from __future__ import annotations

from .bytes import Bytes
from .choosing import Choosing
from .figures import Accuracy, Diversity, History, Suppressed
from .findings import Findings
from .gradients import Gradients
from .leftover import LeftoverStudy
from .recalled import RecalledImages
from .same_features import SameFeatures
from .starts import RecallStarts
from .study import Study
from .tables import Ablation, Choices, Distillation, MainTable, PublishedOrder, Selection

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        MainTable("mnist", "Sequential MNIST", 10),
        MainTable("cifar10", "Sequential CIFAR10", 10),
        MainTable("miniimagenet", "Sequential MiniImageNet", 1),
        Distillation(),
        Ablation(),
        Gradients(),
        RecalledImages(),
        History(),
        Accuracy(),
        Diversity(),
        Suppressed(),
        Selection(),
        Findings(),
        PublishedOrder(),
        Choices(),
        RecallStarts(),
        SameFeatures(),
        Bytes(),
        LeftoverStudy(),
        Choosing(),
    )
}
