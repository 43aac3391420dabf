"""Any torch Dataset through a DataLoader: augmented as they come, two tasks, nothing stored.

python examples/data_loader.py
"""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from autorecall import ARM, ARMConfig, load_dataset


class Digits(Dataset[tuple[Tensor, int]]):
    """A map-style dataset with a transform; yours, or one of torchvision's, does as well."""

    def __init__(self, train: bool) -> None:
        digits = load_dataset("mnist")
        self.split, self.train = digits.train if train else digits.test, train

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.from_numpy(self.split.inputs[index]).float() / 255  # in [0, 1], where recall expects images
        if self.train:
            right, down = torch.randint(-1, 2, (2,)).tolist()
            image = image.roll((down, right), (1, 2))
        return image, int(self.split.labels[index])


torch.manual_seed(0)
train, test = Digits(train=True), Digits(train=False)
network = nn.Sequential(nn.Flatten(), nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 10))
learner = ARM(network, ARMConfig(learning_rate=0.05))

for first in (0, 2):  # digits 0 and 1, then 2 and 3
    rows = [row for row, label in enumerate(train.split.labels) if first <= label < first + 2]
    for x, y in DataLoader(Subset(train, rows), batch_size=10, shuffle=True):
        learner.observe(x, y)

right = dict.fromkeys(range(4), 0)
for x, y in DataLoader(Subset(test, range(2000)), batch_size=100):
    guesses = learner.predict(x).argmax(1)
    for digit in right:
        right[digit] += int(((guesses == y) & (y == digit)).sum())
for digit, count in right.items():
    print(f"digit {digit}: {100 * count / (test.split.labels[:2000] == digit).sum():5.1f} % recognised")
print("kept besides the network:", learner.memory())
