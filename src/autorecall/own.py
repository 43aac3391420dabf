"""Networks and learners of a user's own, by `module:name`, and what their code must be like.

Only what a person names, on the command line or in a program, is imported. What a file names never gets here: it is
compared with the classes that the program has by then (storage/extensible.py).
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import sys
import sysconfig
import traceback
import typing
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

from torch import nn

from .checks import brief, type_hints
from .config import RunConfig
from .errors import AutorecallError, ConfigError, reason
from .learners.base import Learner, LearnerConfig
from .networks import NetworkConfig
from .storage.extensible import PATH, Extensible, NotImported, is_foreign, name_of
from .storage.schema import decode, plain

Settings = TypeVar("Settings", NetworkConfig, LearnerConfig)
EXPECTED = "expected module:name, such as mypackage.nets:build"


@dataclasses.dataclass(frozen=True)
class Own:
    """What the words of a command line name."""

    network: str | None = None
    learner: str | None = None
    folder: str | None = None
    """Where modules are looked for last; if unset, in the current folder."""

    def imported(self) -> tuple[type[NetworkConfig] | None, type[LearnerConfig] | None]:
        """Both classes; from now on, settings in files that name them can be read."""
        network = None if self.network is None else own_network(self.network, self.folder)
        learner = None if self.learner is None else own_learner(self.learner, self.folder)
        return network, learner

    def put_into(self, config: RunConfig) -> RunConfig:
        """The config with this network and learner; if it has them already, with the settings that it has."""
        network, learner = self.imported()
        if network is not None and type(config.network) is not network:
            config = dataclasses.replace(config, network=_usual(network))
        if learner is not None and type(config.learner) is not learner:
            config = dataclasses.replace(config, learner=_usual(learner))
        return config


def own_network(path: str, folder: str | None = None) -> type[NetworkConfig]:
    """The settings of the network at module:name: a class derived from NetworkConfig, or anything that builds one."""
    found = _found("network", path, folder)
    if isinstance(found, type) and issubclass(found, NetworkConfig):
        check_own("network", _usual(found))
        return found
    if isinstance(found, type) and dataclasses.is_dataclass(found) and not issubclass(found, nn.Module):
        raise ConfigError(f"network is {path}, a dataclass; derive it from autorecall.NetworkConfig")
    if path.partition(":")[0].partition(".")[0] == __package__:
        raise ConfigError(f"network is {path}; of autorecall's own networks, give the settings: autorecall:MLPConfig")
    if not callable(found) or not isinstance(found, Hashable):
        raise ConfigError(
            f"network is {path}, which is a {type(found).__name__}; expected a function of (input_shape, classes), a "
            "torch module class of these, or a NetworkConfig class"
        )
    return _made_by(path, found)


@cache  # so that the same function is the same class of settings
def _made_by(path: str, function: Callable[..., object]) -> type[NetworkConfig]:
    @dataclasses.dataclass(frozen=True)
    class Made(NetworkConfig):
        def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
            return typing.cast(nn.Module, function(input_shape, classes))

    Made.__module__, _, Made.__qualname__ = path.partition(":")
    return Made


def own_learner(path: str, folder: str | None = None) -> type[LearnerConfig]:
    """The settings of the learner at module:name, a class derived from LearnerConfig."""
    found = _found("learner", path, folder)
    if not isinstance(found, type) or not issubclass(found, LearnerConfig):
        named = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
        raise ConfigError(
            f"learner is {path}, which is {named}; expected a class of settings, derived from autorecall.LearnerConfig"
        )
    check_own("learner", _usual(found))
    return found


def _found(part: str, path: str, folder: str | None) -> object:
    """What a module has under a name; modules in the current folder come after all others."""
    module, _, name = path.partition(":")
    if not PATH.fullmatch(path) or module.endswith(".py"):
        raise ConfigError(f"{part} is {brief(path)}; {EXPECTED}")
    place = folder or str(Path.cwd())
    if place not in sys.path:
        sys.path.append(place)  # last, so that no file in it takes the place of a package
    importlib.invalidate_caches()
    with blamed(f"importing {module}"):
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
            raise ConfigError(
                f"{part} is {path}, but there is no module {error.name}, neither installed nor in {place}; {EXPECTED}"
            ) from error
    try:
        return getattr(found, name)
    except AttributeError as error:
        where = getattr(found, "__file__", None) or "built in"
        raise ConfigError(f"{part} is {path}, but {module} ({where}) has no {name}; correct the name") from error


def _usual(kind: type[Settings]) -> Settings:
    """The settings of a class if none is given."""
    _check_class(kind)
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{name_of(kind)} has no default for {field.name}; give one to every setting")
    with blamed(f"{name_of(kind)}()"):
        return kind()


def check_own(part: str, config: object) -> None:
    """Refuse settings of a user's own class that config.json could not hold, or not give back."""
    expected = NetworkConfig if part == "network" else LearnerConfig
    if isinstance(config, NotImported):
        config.build()
    if not isinstance(config, expected):
        raise ConfigError(
            f"{part} is a {type(config).__name__}; expected settings of a class derived from {expected.__name__}"
        )
    if not is_foreign(type(config)):
        return
    _check_class(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        try:
            kind, stored = type_hints(type(config))[field.name], json.loads(json.dumps(plain(value)))
            is_kept = decode(kind, stored, field.name) == value
        except Exception:  # types that JSON or the schema do not know, or names that only an editor knows
            is_kept = False
        if not is_kept:
            declared = field.type if isinstance(field.type, str) else inspect.formatannotation(field.type)
            raise ConfigError(
                f"{part}.{field.name} is {brief(value)}, declared as {declared:.80}; expected what JSON can hold: "
                "finite numbers, text, true or false, tuples and dataclasses of these"
            )


def _check_class(kind: type[Extensible]) -> None:
    """A class of settings is a frozen dataclass with a `build`, because runs compare, change and store them."""
    name = name_of(kind)
    if inspect.isabstract(kind):
        raise ConfigError(f"{name} has no {', '.join(sorted(kind.__abstractmethods__))}; define it")
    if "__dataclass_params__" not in vars(kind):
        raise ConfigError(f"{name} is not a dataclass; put @dataclass(frozen=True) before the class")
    if kind.tag in (field.name for field in dataclasses.fields(kind)):  # type: ignore[arg-type]
        raise ConfigError(f"{name} has a setting called {kind.tag}, which is the name of its class in files; rename it")


def build_network(config: NetworkConfig, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network, or one sentence about what the code of a user did instead."""
    if not is_foreign(type(config)):
        return config.build(input_shape, classes)
    name = name_of(type(config))
    with blamed(name):
        network: object = config.build(input_shape, classes)
    if not isinstance(network, nn.Module):
        raise ConfigError(f"{name} gave a {type(network).__name__}; expected a torch.nn.Module")
    return network


def build_learner(config: LearnerConfig, network: nn.Module, seed: int) -> Learner:
    """The learner, or one sentence about what the code of a user did instead."""
    if not is_foreign(type(config)):
        return config.build(network, seed)
    name = name_of(type(config))
    with blamed(name):
        learner: object = config.build(network, seed)
    if not isinstance(learner, Learner):
        raise ConfigError(f"{name} gave a {type(learner).__name__}; expected an autorecall.Learner")
    return learner


@contextmanager
def blamed(what: str, *passed: type[BaseException]) -> Iterator[None]:
    """Whatever a user's code raises inside becomes one sentence that says where, except for what is to be passed on."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, (AutorecallError, MemoryError, *passed)) or "allocate" in str(error):  # torch's
            raise
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
        where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        raise ConfigError(f"{what} raised {type(error).__name__}: {reason(error)}{where}; correct it") from error


def _is_users(file: str) -> bool:
    """Whether a file is neither ours nor part of Python or an installed package."""
    return not file.startswith((str(Path(__file__).parent), "<", *sysconfig.get_paths().values()))
