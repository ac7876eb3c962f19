"""Asynchronous look-ups: calls that run beside one another, bounded in number and time (Flink's async I/O)."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

from keyed import DefinitionError, milliseconds_of

K = TypeVar("K")
V = TypeVar("V")


class AsyncLookup(Generic[K, V]):
    """Looks keys up with a coroutine, many at a time: what Flink has as ``AsyncDataStream.orderedWait``.

    Make it once, in the program, and call it where a function has the keys of a batch: in ``process_batch`` of a
    `keyed.VectorizedFunction`, or as the function of `lookup_join`. The call returns when all are there, so nothing is
    under way when a batch is committed: a batch that fails is run again whole, with all its look-ups. What the function
    changes elsewhere is therefore done once or more often, and what it gives may differ from the first time. Results
    that are kept in state, as `lookup_join` does, are not asked for again once their batch is committed.

    Args:
        function: ``async def function(key)``, gives what belongs to the key. All its calls run in one event loop, so
            clients may be kept; make them in the first call, because the object is sent to workers before that.
        concurrency: Calls that run at a time, at most.
        timeout: How long one call may take, in milliseconds or as a `timedelta`; ``None`` for ever.
        retries: How often a call that failed, or took too long, is made again.
        pause: Time before the first of these; it doubles with each.

    Raises:
        DefinitionError: A parameter breaks a rule.
    """

    def __init__(
        self,
        function: Callable[[K], Awaitable[V]],
        *,
        concurrency: int = 100,
        timeout: Any = 10_000,
        retries: int = 0,
        pause: Any = 100,
    ) -> None:
        if not callable(function):
            raise DefinitionError(f"function={function!r} is not callable; give an async function of a key")
        if type(concurrency) is not int or concurrency < 1:
            raise DefinitionError(f"concurrency={concurrency!r} must be an int above 0")
        if type(retries) is not int or retries < 0:
            raise DefinitionError(f"retries={retries!r} must be an int, 0 or more")
        self._function = function
        self._concurrency = concurrency
        self._seconds = None if timeout is None else milliseconds_of(timeout, "timeout") / 1000
        self._retries = retries
        self._pause = milliseconds_of(pause, "pause") / 1000
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"AsyncLookup({getattr(self._function, '__name__', self._function)!s}, concurrency={self._concurrency})"

    def __getstate__(self) -> dict[str, Any]:
        # A worker has an event loop of its own.
        return {**self.__dict__, "_loop": None}

    def __call__(self, keys: Iterable[K]) -> dict[K, V]:
        """Look keys up, each once however often it is there, and return what was found, in their order.

        Raises:
            Exception: What the last attempt for a key raised, with a note of the key; `TimeoutError`, which names the
                key, if it took too long. The other calls are cancelled.
        """
        wanted = list(dict.fromkeys(keys))
        if not wanted:
            return {}
        if self._loop is None:
            # A loop of its own, because the program may be running one already (a notebook does).
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="keyed-async-lookup", daemon=True).start()
        found = asyncio.run_coroutine_threadsafe(self._all(wanted), self._loop).result()
        return dict(zip(wanted, found, strict=True))

    async def _all(self, keys: list[K]) -> list[V]:
        """Look all keys up; the first failure cancels the rest."""
        ahead = iter(range(len(keys)))
        found: list[Any] = [None] * len(keys)

        async def work() -> None:
            for index in ahead:
                found[index] = await self._one(keys[index])

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._concurrency, len(keys))):
                    group.create_task(work())
        except ExceptionGroup as failed:
            # What the function raised; inside `except*` Python 3.11.2 wraps it again.
            raise failed.exceptions[0] from None
        return found

    async def _one(self, key: K) -> V:
        for attempt in range(self._retries + 1):
            try:
                async with asyncio.timeout(self._seconds):
                    answer = self._function(key)
                    if not inspect.isawaitable(answer):
                        raise DefinitionError(
                            f"{self!r}: the function is not async: make it async def, or use it without AsyncLookup"
                        )
                    return await answer
            except Exception as error:
                if attempt == self._retries:
                    what = f"looking up {key!r}, attempt {attempt + 1} of {self._retries + 1}"
                    if isinstance(error, TimeoutError):
                        # On its way out of the event loop it becomes another object, without notes.
                        raise TimeoutError(f"{str(error) or f'no answer within {self._seconds} s'} ({what})") from error
                    error.add_note(what)
                    raise
            await asyncio.sleep(self._pause * 2**attempt)
        raise AssertionError
