"""Objects that are closed at the end of their ``with`` block, or when it raises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self


@contextmanager
def closing_on_error(resource: Any) -> Iterator[None]:
    """Close an object if the block raises; otherwise it stays open."""
    try:
        yield
    except BaseException:
        resource.close()
        raise


class Closeable(ABC):
    """An object that ``with`` closes."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release what it holds. Closing again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
