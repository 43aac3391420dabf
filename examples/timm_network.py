"""A network of timm, or of torchvision: any nn.Module that maps a batch to logits (pip install timm).

python examples/timm_network.py
"""

import torch

from autorecall import MeanShift, MeanShiftConfig, load_dataset
from autorecall.integrations.torchvision import make_importable

make_importable()  # beside a torch for the CPU; timm imports torchvision, whose usual package is for CUDA
import timm  # noqa: E402

digits = load_dataset("mnist")
images = torch.from_numpy(digits.train.inputs).float() / 255
labels = torch.from_numpy(digits.train.labels)

torch.manual_seed(0)
network = timm.create_model(
    "test_resnet", in_chans=1, num_classes=10
)  # with random weights; pretrained=True for others
learner = MeanShift(network, MeanShiftConfig(learning_rate=0.05))  # quick; ARM and all others take the network, too

for first in (0, 2):  # digits 0 and 1, then 2 and 3
    task = torch.nonzero((labels == first) | (labels == first + 1)).flatten()
    for batch in torch.split(task[torch.randperm(len(task))[:500]], 10):
        learner.observe(images[batch], labels[batch])

some = torch.randperm(len(digits.test))[:1000]
guesses = learner.predict(torch.from_numpy(digits.test.inputs)[some].float() / 255).argmax(1)
for digit in range(4):
    right = (guesses == digit)[torch.from_numpy(digits.test.labels)[some] == digit].float().mean()
    print(f"digit {digit}: {100 * right:5.1f} % recognised")
