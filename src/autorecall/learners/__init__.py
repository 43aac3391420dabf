"""The learners: one method per file, each with its config. Every module here is imported; there is no list."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
