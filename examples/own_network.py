"""Your own network, your own arrays, no stored data: ARM in about 20 lines.

python examples/own_network.py
"""

import torch
from torch import nn

from autorecall import ARM, ARMConfig, load_dataset

digits = load_dataset("mnist")  # any arrays will do: images in [0, 1] and integer labels
images = torch.from_numpy(digits.train.inputs).float() / 255
labels = torch.from_numpy(digits.train.labels)

torch.manual_seed(0)
network = nn.Sequential(
    nn.Conv2d(1, 16, 5, stride=2),
    nn.ReLU(),
    nn.Conv2d(16, 32, 5, stride=2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(512, 10),
)
learner = ARM(network, ARMConfig(learning_rate=0.05))  # notices new classes by itself: no task labels

for first in (0, 2):  # digits 0 and 1, then 2 and 3
    task = torch.nonzero((labels == first) | (labels == first + 1)).flatten()
    for batch in torch.split(task[torch.randperm(len(task))], 10):
        learner.observe(images[batch], labels[batch])

guesses = learner.predict(torch.from_numpy(digits.test.inputs).float() / 255).argmax(1)
for digit in range(4):
    right = (guesses == digit)[torch.from_numpy(digits.test.labels) == digit].float().mean()
    print(f"digit {digit}: {100 * right:5.1f} % recognised")
