"""How a chain is run: what `keyed.run` and `keyed.start` are asked for, as the runtimes get it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar

import attrs

from keyed.errors import DefinitionError
from keyed.results import Progress, RestoreProgress


class RunOptions(TypedDict, total=False):
    """The keywords of `keyed.run`, which says what they are."""

    checkpoint: str | os.PathLike[str] | None
    drain: bool | None
    on_progress: Callable[[Progress], object] | None
    on_restore: Callable[[RestoreProgress], object] | None
    local_dir: str | os.PathLike[str] | None
    group_access: bool
    tables: str | os.PathLike[str] | None
    record: str | os.PathLike[str] | None
    query_name: str | None
    rows_per_batch: int | None
    processing_time: Callable[[], int] | None


class StartOptions(RunOptions, total=False):
    """The keywords of `keyed.start`."""

    trigger: str | Mapping[str, Any] | None


@attrs.frozen(kw_only=True)
class Options:
    """The options of a run with their defaults, as the runtimes get them."""

    checkpoint: str | os.PathLike[str] | None = None
    drain: bool | None = None
    on_progress: Callable[[Progress], object] | None = None
    on_restore: Callable[[RestoreProgress], object] | None = None
    local_dir: str | os.PathLike[str] | None = None
    group_access: bool = False
    rows_per_batch: int | None = None
    processing_time: Callable[[], int] | None = None
    trigger: str | Mapping[str, Any] | None = None
    query_name: str | None = None
    tables: str | os.PathLike[str] | None = None
    record: str | os.PathLike[str] | None = None

    def refuse(self, remedies: Mapping[str, str]) -> None:
        """Refuse options that a runtime does not have.

        Args:
            remedies: By option, what is used in its place.

        Raises:
            DefinitionError: One of them is given.
        """
        for name, remedy in remedies.items():
            value = getattr(self, name)
            if value is not None:
                raise DefinitionError(f"{name}={value!r} {remedy}")


F = TypeVar("F", bound=Callable[..., Any])


def options_of(given: RunOptions | StartOptions, kind: type[RunOptions]) -> Options:
    """Return the options that were given.

    Raises:
        TypeError: One is not of this kind.
    """
    for name in given:
        if name not in kind.__annotations__:
            raise TypeError(f"{name!r} is no option; there are {', '.join(kind.__annotations__)}")
    return Options(**given)


def shows(kind: type[RunOptions]) -> Callable[[F], F]:
    """Let the signature of a function that takes options name them, for ``help`` and notebooks.

    Type checkers and editors read them from ``Unpack``; what looks at the function itself would see ``**options``.
    """
    defaults = {field.name: field.default for field in attrs.fields(Options)}
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=hint.__forward_arg__)
        for name, hint in kind.__annotations__.items()
    ]

    def shown(function: F) -> F:
        signature = inspect.signature(function)
        *others, _ = signature.parameters.values()
        vars(function)["__signature__"] = signature.replace(parameters=[*others, *options])
        return function

    return shown
