"""Objects that are closed at the end of their ``with`` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


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
