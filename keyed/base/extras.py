"""Optional packages: imports of them, the command that installs them, and objects of their classes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyed.errors import DefinitionError, ExtraNotInstalled

if TYPE_CHECKING:
    import pyarrow as pa


def check_alone() -> None:
    """Check that the distribution ``keyed``, another project, is not installed over or under this one.

    Raises:
        ImportError: It is.
    """
    if "__file__" not in globals():
        # The code came over Spark Connect.
        return
    site = Path(__file__).resolve().parents[2]
    if any(site.glob("keyed-*.dist-info")):
        raise ImportError(
            f"{site} has the distributions keyed (for animations) and keyed-streams, and each has overwritten "
            "files of the other: pip uninstall keyed keyed-streams, then pip install keyed-streams",
            name="keyed",
        )


def install(name: str) -> str:
    """Return the command that installs an extra, for messages."""
    return f"pip install 'keyed-streams[{name}]'"


@contextmanager
def extra(name: str, use: str) -> Iterator[None]:
    """Import packages of an extra inside of this context.

    Args:
        name: Name of the extra.
        use: The feature that needs it, for the message.

    Raises:
        ExtraNotInstalled: One of the packages is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "keyed").partition(".")[0]
        if package == "keyed":
            raise
        message = f"{use} needs the package {package}, which is not installed: {install(name)}"
        raise ExtraNotInstalled(message, name=error.name) from error


def is_instance(thing: Any, module: str, *classes: str) -> bool:
    """Return whether an object is of classes of a package, without importing it. Attributes of the object do not count.

    Args:
        thing: The object.
        module: Name of the module with the classes.
        classes: Names of the classes.
    """
    loaded = sys.modules.get(module)
    return any(issubclass(type(thing), getattr(loaded, name, ())) for name in classes)


def arrow_table(data: Any) -> pa.Table | None:
    """Return a table of pandas, polars or Arrow as an Arrow table, and ``None`` for any other object.

    Raises:
        DefinitionError: Arrow does not support its columns, or it has an index that holds data.
    """
    if is_instance(data, "polars", "LazyFrame"):
        data = data.collect()
    library = "pandas" if is_instance(data, "pandas", "DataFrame") else "polars"
    if library == "polars" and not is_instance(data, "polars", "DataFrame"):
        if is_instance(data, "pyarrow", "RecordBatch"):
            return sys.modules["pyarrow"].Table.from_batches([data])  # type: ignore[no-any-return]
        return data if is_instance(data, "pyarrow", "Table") else None
    import pyarrow as pa

    # An index of integers without a name is one of row numbers, also after a filter.
    if library == "pandas" and len(data) and (data.index.names != [None] or data.index.dtype.kind not in "iu"):
        raise DefinitionError("the DataFrame's index would be lost: give frame.reset_index(), or that with drop=True")
    try:
        return data.to_arrow() if library == "polars" else pa.Table.from_pandas(data, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DefinitionError(
            f"the {library} DataFrame has columns that Arrow does not support ({error}); give each column one type and "
            "a unique name"
        ) from error
