"""Lightning with manual optimisation: the learner takes the steps, Lightning does the rest (pip install lightning).

python examples/lightning_module.py
"""

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from autorecall import ARM, ARMConfig, load_dataset


class Recalling(L.LightningModule):  # type: ignore[misc]
    """A network that learns without forgetting."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False  # a batch takes two steps, and the learner knows when
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 10))
        self.learner = ARM(self.network, ARMConfig(learning_rate=0.05))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The learner's own; Lightning saves its state with the module."""
        return self.learner.optimizer

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> None:
        """Learn, recall, learn again."""
        numbers = self.learner.observe(*batch)
        self.log("loss", numbers["loss"], prog_bar=True)

    def test_step(self, batch: tuple[Tensor, Tensor], number: int) -> None:
        """The share of images that are recognised."""
        x, y = batch
        self.log("accuracy", (self.learner.predict(x).argmax(1) == y).float().mean())


L.seed_everything(0)
digits = load_dataset("mnist")
images, labels = torch.from_numpy(digits.train.inputs).float() / 255, torch.from_numpy(digits.train.labels)
module = Recalling()
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}

for first in (0, 2):  # one fit for each task
    task = torch.nonzero((labels == first) | (labels == first + 1)).flatten()
    batches = DataLoader(TensorDataset(images[task], labels[task]), batch_size=10, shuffle=True)
    L.Trainer(max_epochs=1, accelerator="cpu", **quiet).fit(module, batches)

images, labels = torch.from_numpy(digits.test.inputs).float() / 255, torch.from_numpy(digits.test.labels)
tests = DataLoader(TensorDataset(images[labels < 4], labels[labels < 4]), batch_size=100)
L.Trainer(accelerator="cpu", **quiet).test(module, tests)
