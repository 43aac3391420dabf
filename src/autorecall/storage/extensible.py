"""Settings that users may derive classes of: their names in files, and those whose class is not here."""

from __future__ import annotations

import re
import sys
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import ClassVar, NoReturn

from ..checks import brief
from ..errors import ConfigError

PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class Extensible(ABC):
    """The base of settings of which users derive classes of their own.

    In files, autorecall's own are named by `kind` or `method`, whichever `tag` says, and others by where they are
    defined, as module:name. Such a name is compared with the classes that the program has; nothing is imported.
    """

    tag: ClassVar[str]


@dataclass(frozen=True)
class NotImported:
    """Settings of a user's class that this program does not have: they can be compared and shown, and nothing else."""

    part: str
    """network or learner."""
    values: Mapping[str, object]

    @property
    def name(self) -> str:
        """What the class is called in files."""
        return next(str(self.values[tag]) for tag in ("kind", "method") if tag in self.values)

    def build(self, *_: object) -> NoReturn:
        """Refuse: a file alone must not make a program import anything."""
        name = self.name
        refused = f"the {self.part} of this run is {brief(name)}, which is not autorecall's own"
        if not can_be_imported(name):
            raise ConfigError(f"{refused}; use it from the Python program that defines it")
        raise ConfigError(f"{refused}, and a file alone imports nothing; if you trust it, add --{self.part} {name}")


def can_be_imported(name: str) -> bool:
    """Whether this is a class of a module, by its name in files, and not one of autorecall's own or of a program."""
    return PATH.fullmatch(name) is not None and not name.startswith("__main__:")


def refuse_not_imported(*parts: object) -> None:
    """Refuse settings of classes that the program does not have, before anything is done with them."""
    for part in parts:
        if isinstance(part, NotImported):
            part.build()


def is_foreign(kind: type) -> bool:
    """Whether this is a class of settings that a user derived."""
    return issubclass(kind, Extensible) and kind.__module__.partition(".")[0] != __name__.partition(".")[0]


def name_of(kind: type) -> str:
    """What a class is called in files."""
    if not is_foreign(kind):
        return str(getattr(kind, "kind", getattr(kind, "method", "")))
    return f"{_module_of(kind)}:{kind.__qualname__}"


def _module_of(kind: type) -> str:
    """The module of a class; of one in a program, that which an import of the program's file would make."""
    program = sys.modules["__main__"]
    if kind.__module__ != "__main__":
        return kind.__module__
    spec = getattr(program, "__spec__", None)
    if spec is not None:  # of python -m
        return str(spec.name).removesuffix(".__main__")
    file = getattr(program, "__file__", None)
    return PurePath(file).stem if file else "__main__"
