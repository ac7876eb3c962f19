"""Opens local stores of each kind, and of third parties."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

from keyed.base.arguments import type_of
from keyed.content.local_store import LocalStore
from keyed.errors import DefinitionError, KeyedError, LocalStoreError
from keyed.job.functions import Store, store_name
from keyed.stores.lmdb_store import open_lmdb_store
from keyed.stores.memory_store import MemoryStore
from keyed.stores.rocks_store import open_rocks_store

#: The methods of a local store.
_METHODS = ("apply", "close", "due", "get", "items", "position", "reset", "scan", "table")


def open_store(kind: Store, path: str | os.PathLike[str]) -> LocalStore:
    """Open the local store of a kind in a folder, in any condition; ``"memory"`` needs no folder.

    Raises:
        DefinitionError: A function of another kind returns something else.
        LocalStoreError: No store can be created there.
    """
    if kind == "memory":
        return MemoryStore()
    if kind == "lmdb":
        return open_lmdb_store(path)
    return open_rocks_store(path) if kind == "rocksdb" else _opened(kind, Path(path))


def _opened(factory: Any, path: Path) -> LocalStore:
    """Open a store of a third party's, in a folder of its own."""
    name = store_name(factory)
    folder = path / f"keyed-store-{zlib.crc32(name.encode()):08x}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        store: Any = factory(folder)
    except KeyedError:
        raise
    except Exception as error:
        raise LocalStoreError(f"store={name} cannot open {folder}: {type(error).__name__}: {error}") from error
    missing = [each for each in _METHODS if not callable(getattr(store, each, None))]
    if missing:
        raise DefinitionError(
            f"store={name} returned {type_of(store)}, which has no {missing[0]}(); return a LocalStore that passes "
            "keyed.testing.store_conformance"
        )
    return store  # type: ignore[no-any-return]
