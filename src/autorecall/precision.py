"""Whether half precision works on this machine.

Some hypervisors announce instructions (AMX, bfloat16) that they do not allow: torch's layers are then killed by an
illegal instruction, and the interpreter with them. A child process finds out.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import torch

HALVES = (torch.float16, torch.bfloat16)
SECONDS = 120  # for a child that only imports torch and runs two layers
BEGUN = b"begun"  # what the child says once it has torch

PROBE = """
import sys, torch
from torch import nn

print("begun", flush=True)
kind = getattr(torch, sys.argv[1])
torch.set_num_threads(1)
for layer, x in (
    (nn.Linear(64, 64), torch.rand(16, 64)),
    (nn.Conv2d(16, 32, 3), torch.rand(4, 16, 8, 8)),
    (nn.Conv2d(16, 32, 3), torch.rand(4, 16, 8, 8).contiguous(memory_format=torch.channels_last)),
):
    layer.to(kind)(x.to(kind).requires_grad_()).sum().backward()
"""


@cache
def works(dtype: torch.dtype) -> bool:
    """Whether torch's layers survive this dtype on the processor; a child process is asked, once."""
    if dtype not in HALVES or not sys.executable:  # without an interpreter there is no child to ask
        return True
    try:
        child = subprocess.run(_command(dtype), capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as late:
        return BEGUN not in (late.stdout or b"")
    except (OSError, ValueError):
        return True
    # A host that embeds Python may be no interpreter, and says nothing about torch.
    return child.returncode == 0 or BEGUN not in child.stdout


def _command(dtype: torch.dtype) -> list[str]:
    return [sys.executable, "-c", PROBE, str(dtype).removeprefix("torch.")]
