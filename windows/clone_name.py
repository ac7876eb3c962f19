"""The name ``windows`` of `keyed.windows` in a clone, where the folder is at the top: the same modules, loaded once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

_OTHER = "windows."


class _SameModules(MetaPathFinder, Loader):
    """Finds ``windows.x`` as the module `keyed.windows.x`."""

    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        return spec_from_loader(fullname, self) if fullname.startswith(_OTHER) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """See `importlib.abc.Loader`."""
        module = import_module(f"keyed.{spec.name}")
        self._specs[module.__name__] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec; the module has run already."""
        module.__spec__ = self._specs.pop(module.__name__)


def use_clone_name() -> None:
    """Make ``windows`` another name of `keyed.windows`."""
    sys.meta_path.insert(0, _SameModules())
    sys.modules["windows"] = import_module("keyed.windows")
