"""Where the data of a run come from: all settings that decide what is read, in one value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .. import data
from ..config import RunConfig
from ..data.folders import lists_classes, unread_in
from ..errors import ConfigError, DataError
from .text import complain

NAMED = 5  # of the files that were left out
KINDS = 3  # of files that are no images


@dataclass(frozen=True)
class Source:
    """What to read, and how."""

    dataset: str
    folder: Path | None
    image_size: int | None
    test_share: float | None
    val_share: float | None
    skip_broken: bool

    def load(self, progress: bool = False, may_download: bool = True) -> data.Dataset:
        """The data."""
        return data.load(
            self.dataset,
            self.folder,
            self.image_size,
            progress=progress,
            may_download=may_download,
            test_share=self.test_share,
            val_share=self.val_share,
            skip_broken=self.skip_broken,
        )

    def fingerprint(self) -> str | None:
        """That of the data, or None if it needs a download; a folder that was given must have them."""
        try:
            return self.load(may_download=False).fingerprint()
        except DataError:
            if self.folder is not None:
                raise
            return None


def source_of(config: RunConfig, folder: Path | str | None) -> Source:
    """The source of a run's data; `folder` is what --data named."""
    # mnist comes with the package: --data is for the others, but may be given anyway.
    place = None if folder is None or config.dataset == "mnist" else Path(folder)
    return Source(config.dataset, place, config.image_size, config.test_share, config.val_share, config.skip_broken)


def refuse_among_classes(out: Path, option: str, folder: Path | None) -> None:
    """A run must not be where its pictures would be taken for a class of the data that an option names."""
    if folder is not None and lists_classes(folder, out):
        raise ConfigError(
            f"--out {out} lies among the class folders of {option}, where it would be taken for a class; choose "
            "another --out"
        )


def report_unread(folder: Path) -> None:
    """Say what is in the class folders and is not read: somebody may count on it."""
    suffixes, deeper = unread_in(folder)
    parts = []
    if suffixes:
        kinds = ", ".join(suffix for suffix, _ in suffixes.most_common(KINDS)) + ", …" * (len(suffixes) > KINDS)
        parts.append(f"{suffixes.total():,} file{'s' * (suffixes.total() > 1)} that are no images here ({kinds})")
    if deeper:
        parts.append(f"{deeper:,} deeper folder{'s' * (deeper > 1)}")
    if parts:
        complain(f"not read, in the class folders: {' and '.join(parts)}")


def report_left_out(dataset: data.Dataset) -> None:
    """Say how many files could not be read, and name the first."""
    broken = dataset.left_out
    if broken:
        more = f" and {len(broken) - NAMED:,} more" if len(broken) > NAMED else ""
        images = "image that cannot" if len(broken) == 1 else "images that cannot"
        complain(f"left out {len(broken):,} {images} be read: {', '.join(broken[:NAMED])}{more}")
