"""The optimizer of a learner that is given none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch.optim import SGD

Method = TypeVar("Method", bound=Callable[..., Any])
FURTHER = ("momentum", "weight_decay", "maximize", "differentiable", "fused")  # what plain SGD does not have


def _bare(method: Method) -> Method:
    """torch's own method, without what keeps its compiler away from it."""
    return cast(Method, getattr(method, "__wrapped__", method))


# torch's own step. Once an SGD was made anywhere, SGD.step also calls the hooks of a step, as ours does.
TORCHS_STEP = _bare(SGD.step) if getattr(SGD.step, "hooked", False) else SGD.step


class PlainSGD(SGD):
    """torch's SGD, to the bit. As long as it is plain, and on a CPU, it does not import torch's compiler."""

    add_param_group = _bare(SGD.add_param_group)
    load_state_dict = _bare(SGD.load_state_dict)
    state_dict = _bare(SGD.state_dict)
    zero_grad = _bare(SGD.zero_grad)

    def step(self, closure: Any = None) -> Any:
        """p ← p − η·gradient. If `param_groups` were changed to anything more, torch's own step."""
        if closure is not None or not all(map(_is_plain, self.param_groups)):
            return TORCHS_STEP(self, closure)
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.add_(p.grad, alpha=-group["lr"])
        return None


def _is_plain(group: dict[str, Any]) -> bool:
    on_processor = all(p.device.type == "cpu" for p in group["params"])  # elsewhere torch takes all of them at once
    return on_processor and isinstance(group["lr"], float) and not any(group[name] for name in FURTHER)
