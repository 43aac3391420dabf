"""Images that a learner keeps: a uniform sample of all it has seen, and how they are stored."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from ...errors import InputError
from ...storage.state import State, integer, labels, tensor
from ..base import Memory

MOST_TASKS = 2**62


class Reservoir:
    """A uniform sample of all images seen so far (Vitter 1985, algorithm R).

    The k-th image, counting from 1, takes a slot drawn from 1 … k, if there is such a slot. Everything is drawn and
    kept on the CPU, so a seed means the same on every device.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.seen = 0
        self.images: Tensor | None = None  # packed; None before the first batch
        self.labels = torch.zeros(0, dtype=torch.int64)
        self.tasks = torch.zeros(0, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def add(self, x: Tensor, y: Tensor, task: int, generator: torch.Generator) -> list[int]:
        """Offer a batch, image by image; return the slots that hold a new image."""
        changed = []
        for image, label in zip(x.detach(), y.tolist(), strict=True):
            slot = self.seen if self.seen < self.capacity else _below(self.seen + 1, generator)
            self.seen += 1
            if slot < self.capacity:
                self._put(slot, image[None], label, task)
                changed.append(slot)
        return changed

    def shrink(self, capacity: int, generator: torch.Generator) -> None:
        """Keep at most this many, each equally likely."""
        self.capacity = min(self.capacity, capacity)
        if self.images is not None and len(self) > capacity:
            kept = torch.randperm(len(self), generator=generator)[:capacity]
            self.images, self.labels, self.tasks = self.images[kept], self.labels[kept], self.tasks[kept]

    def draw(self, count: int, before_task: int, generator: torch.Generator) -> Tensor:
        """Slots of up to `count` different images from tasks before this one."""
        earlier = torch.nonzero(self.tasks < before_task).flatten()
        return earlier[torch.randperm(len(earlier), generator=generator)[:count]]

    def batch(self, slots: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """The images and labels in these slots, with the dtype and device of `like`."""
        assert self.images is not None
        return unpack(self.images[slots], like), self.labels[slots].to(like.device)

    def memory(self) -> Memory:
        """What is kept; labels are not counted, as in the paper."""
        return memory_of([] if self.images is None else [self.images])

    def state_dict(self) -> dict[str, object]:
        """Everything that is kept."""
        counts: dict[str, object] = {"capacity": self.capacity, "seen": self.seen}
        images = None if self.images is None else self.images.clone()  # slots are overwritten in place
        return counts | {"images": images, "labels": self.labels.clone(), "tasks": self.tasks.clone()}

    def load_state_dict(self, state: State, classes: int) -> None:
        """Restore what `state_dict` returned, as a copy: slots are overwritten in place."""
        self.capacity, self.seen = integer(state["capacity"], most=self.capacity), integer(state["seen"])
        self.labels = labels(state["labels"], classes, min(self.capacity, self.seen)).clone()
        self.tasks = labels(state["tasks"], MOST_TASKS, len(self.labels)).clone()
        self.images = None if state["images"] is None else kept_images(state["images"], len(self.labels)).clone()
        if self.images is None and self.seen:
            raise InputError("a saved state has labels and no images; it is damaged")

    def _put(self, slot: int, image: Tensor, label: int, task: int) -> None:
        packed = pack(image.cpu())
        self.images = packed[:0] if self.images is None else self.images
        if packed.dtype != self.images.dtype:  # the first image that is not made of bytes
            packed, self.images = unpack(packed, image.cpu()), unpack(self.images, image.cpu())
        if slot == len(self):
            self.images = torch.cat([self.images, packed])
            self.labels = torch.cat([self.labels, torch.tensor([label])])
            self.tasks = torch.cat([self.tasks, torch.tensor([task])])
        else:
            self.images[slot], self.labels[slot], self.tasks[slot] = packed[0], label, task


def kept_images(value: object, count: int) -> Tensor:
    """A part of a saved state that must be so many packed images."""
    found = tensor(value)
    right = found.dtype == torch.uint8 or found.is_floating_point()
    if not right or found.dim() < 2 or len(found) != count:
        raise InputError(
            f"a saved state has {found.dtype} of shape {tuple(found.shape)} where {count} images belong; it is damaged"
        )
    return found


def refuse_other_shapes(parts: list[Tensor]) -> None:
    """All images of a saved state must have one shape."""
    if len({part.shape[1:] for part in parts}) > 1:
        raise InputError("a saved state has images of several shapes; it is damaged")


def pack(images: Tensor) -> Tensor:
    """Images as bytes if they were made from bytes, k / 255, so nothing is lost; others unchanged.

    >>> pack(torch.tensor([[0.0, 0.2, 1.0]])), pack(torch.tensor([[-1.0, 0.5]]))
    (tensor([[  0,  51, 255]], dtype=torch.uint8), tensor([[-1.0000,  0.5000]]))
    """
    packed = (255 * images).round().clamp(0, 255).to(torch.uint8)
    return packed if torch.equal(unpack(packed, images), images) else images.clone()


def unpack(packed: Tensor, like: Tensor) -> Tensor:
    """Packed images as floating point numbers, with the dtype and device of `like`."""
    # Divided on the CPU, where it is kept: an accelerator may round differently.
    return (packed.to(like.dtype) / 255).to(like.device) if packed.dtype == torch.uint8 else packed.to(like)


def memory_of(packed: list[Tensor]) -> Memory:
    """Images as kept: one byte per value if they are made of bytes, as in the paper."""
    return Memory(sum(map(len, packed)), sum(images.numel() * images.element_size() for images in packed))


def _below(bound: int, generator: torch.Generator) -> int:
    return int(torch.randint(bound, (), generator=generator))


def share_of_each(kept_images: int, count: int, what: str) -> int:
    """How many images each of so many classes or tasks may keep; says so if that has become none."""
    if kept_images < count:
        warnings.warn(
            f"kept_images is {kept_images} but there are {count} {what} now, so that no image is kept from here on; "
            "raise kept_images",
            stacklevel=5,
        )
    return kept_images // count
