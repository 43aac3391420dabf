"""The memory layout of images: the fastest, unless torch's own convolutions die of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from autorecall import Naive

CHILD = """
import sys
import torch
from torch import nn
from tests.learners.worlds import learner

torch.set_num_threads(1)
torch.manual_seed(0)
layers = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 8, 1, 2), nn.Flatten(), nn.Linear(8 * 25, 6)
network = nn.Sequential(*layers)
for method in sys.argv[1:]:
    student = learner(method, network)
    for number in range(10):
        x = torch.rand(10, 3, 12, 12).contiguous(memory_format=torch.channels_last)
        student.observe(x, torch.arange(10) % 2 + number // 2 * 2 % 6)
print("alive")
"""


def test_a_convolution_that_kills_torch_does_not_kill_a_learner() -> None:
    words = [sys.executable, "-c", CHILD, "naive", "arm", "gen", "er"]
    root = Path(__file__).parents[2]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, cwd=root)
    assert (ended.returncode, ended.stdout) == (0, "alive\n"), ended.stderr[-500:]


@pytest.mark.parametrize(
    ("layer", "dies"),
    [
        (nn.Conv2d(4, 8, 1, 2), True),
        (nn.Conv2d(7, 8, (1, 1), (1, 2)), True),
        (nn.Conv2d(16, 8, 1, 3, groups=4), True),
        (nn.Conv2d(8, 8, 1, 2), False),
        (nn.Conv2d(4, 8, 1), False),
        (nn.Conv2d(4, 8, 3, 2), False),
        (nn.Linear(4, 8), False),
    ],
)
def test_images_have_the_usual_layout_where_the_other_is_dangerous(layer: nn.Module, dies: bool) -> None:
    student = Naive(nn.Sequential(nn.Conv2d(3, 4, 1), layer))
    for channels in (1, 3):
        x = torch.rand(2, channels, 4, 5)
        for given in (x, x.contiguous(memory_format=torch.channels_last)):
            laid_out = student._laid_out(given)
            assert torch.equal(laid_out, x)
            if dies:
                assert laid_out.stride() == (20 * channels, 20, 5, 1)
            else:
                assert laid_out.is_contiguous(memory_format=torch.channels_last)
