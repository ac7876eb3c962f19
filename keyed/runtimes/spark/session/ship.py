"""Ships keyed to a Spark Connect server, whose workers need not have it installed.

Functions that Spark Connect sends to a server refer to their modules by name, and the server's Python workers import
them. Each function is therefore wrapped in a `Shipped` object, which sends the sources of keyed ahead of it: when a
worker unpickles the object, it first makes those sources importable, from memory, and then finds the function in them.
Only this module is pickled by value, because it does the unpacking; it imports only the standard library.

The user's own modules are pickled by value too: those that define the function's class, its bases, and the functions
and classes that it holds, such as the condition of a join or the aggregate of a window.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import operator
import os
import sys
import sysconfig
import zlib
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType
from typing import Any


class SourceFinder(MetaPathFinder, ExecutionLoader):
    """Imports modules from sources in memory.

    Args:
        digest: Identity of the sources.
        sources: Module name → a flag for packages, and the source.
    """

    def __init__(self, digest: str, sources: dict[str, tuple[bool, str]]) -> None:
        self.keyed_digest = digest
        self._sources = sources

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if fullname not in self._sources:
            return None
        return importlib.util.spec_from_loader(
            fullname, self, origin=self.get_filename(fullname), is_package=self._sources[fullname][0]
        )

    def get_filename(self, fullname: str) -> str:
        """See `importlib.abc.ExecutionLoader`."""
        ending = "/__init__" if self._sources[fullname][0] else ""
        return f"<shipped>/{fullname.replace('.', '/')}{ending}.py"

    def get_source(self, fullname: str) -> str:
        """See `importlib.abc.InspectLoader`."""
        return self._sources[fullname][1]


def unpack(digest: str, packed: bytes) -> None:
    """Make shipped sources importable in this process, in place of earlier shipped or installed ones."""
    for finder in list(sys.meta_path):
        shipped = getattr(finder, "keyed_digest", None)
        if shipped == digest:
            return
        if shipped is not None:
            sys.meta_path.remove(finder)
    sources = {name: (bool(kind), source) for name, (kind, source) in json.loads(zlib.decompress(packed)).items()}
    for name in [name for name in sys.modules if name in sources]:
        del sys.modules[name]
    sys.meta_path.insert(0, SourceFinder(digest, sources))


class SourceArchive:
    """Sources to be shipped: unpickling the archive makes them importable.

    Args:
        digest: Identity of the sources.
        packed: The sources, packed by `_archive`.
    """

    def __init__(self, digest: str, packed: bytes) -> None:
        self._digest = digest
        self._packed = packed

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (self._digest, self._packed)


def _unpacked(digest: str, packed: bytes) -> Any:
    """Unpack an archive, and return it as an object of the module that has just become importable, to be sent on."""
    unpack(digest, packed)
    from keyed.runtimes.spark.session.ship import SourceArchive

    return SourceArchive(digest, packed)


class Shipped:
    """A function or object that is unpickled after the sources that it needs.

    Args:
        archive: The sources.
        content: The function or object.
    """

    def __init__(self, archive: SourceArchive, content: Any) -> None:
        self._archive = archive
        self._content = content

    def __call__(self, *arguments: Any) -> Any:
        return self._content(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        # The parts of a tuple are unpickled in order: the archive is unpacked before the content is imported.
        return operator.getitem, ((self._archive, self._content), 1)


def shipped(archive: SourceArchive | None, content: Any) -> Any:
    """Return ``content`` with the sources that it needs, if sources have to be shipped."""
    if archive is None:
        return content
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    return Shipped(archive, content)


@cache
def _archive() -> SourceArchive:
    sources: dict[str, tuple[bool, str]] = {}
    root = Path(str(sys.modules["keyed"].__file__)).parent
    # In a clone `keyed.windows` is a link.
    for path in sorted(Path(folder, name) for folder, _, names in os.walk(root, followlinks=True) for name in names):
        if path.suffix != ".py":
            continue
        parts = ["keyed", *path.relative_to(root).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        sources[".".join(parts[:-1] if is_package else parts)] = (is_package, path.read_text())
    packed = zlib.compress(json.dumps(sources, sort_keys=True).encode())
    return SourceArchive(hashlib.sha256(packed).hexdigest(), packed)


def archive_for(functions: Iterable[object]) -> SourceArchive:
    """Return the archive for a query over Spark Connect, and register its functions' modules to be pickled by value."""
    from pyspark import cloudpickle

    functions = list(functions)
    modules = {cls.__module__.partition(".")[0] for function in functions for cls in type(function).__mro__}
    modules |= {name for name in _pickled_modules(functions) if not _is_installed(name)}
    for name in modules - set(sys.stdlib_module_names) - {"keyed", "__main__"}:
        cloudpickle.register_pickle_by_value(sys.modules[name])  # type: ignore[no-untyped-call]
    return _archive()


def _pickled_modules(functions: list[object]) -> set[str]:
    """Return the top modules of the functions and classes that functions of operators are pickled with."""
    from pyspark import cloudpickle

    modules = set()

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type | FunctionType):
                modules.add(str(obj.__module__).partition(".")[0])
            return super().reducer_override(obj)  # type: ignore[no-untyped-call]

    # `check_serializable` reports values that cannot be pickled.
    with suppress(Exception):
        Pickler(io.BytesIO()).dump(functions)  # type: ignore[no-untyped-call]
    return modules & set(sys.modules)


def _is_installed(module: str) -> bool:
    """Return true if a module belongs to an installed package, which the server needs too."""
    file = getattr(sys.modules[module], "__file__", None)
    places = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    return file is None or any(Path(place) in Path(file).parents for place in places)
