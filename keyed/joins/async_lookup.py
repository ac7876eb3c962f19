"""Asynchronous look-ups: concurrent calls, limited in number and time (Flink's async I/O)."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from typing import Any, Generic, TypeVar

from keyed.errors import DefinitionError, StateAccessError
from keyed.extending import milliseconds_of

K = TypeVar("K")
V = TypeVar("V")
_log = logging.getLogger(__name__)
#: Seconds for which a program that ends waits for a function that blocks the event loop.
_EXIT_WAIT = 5.0


class _Loop:
    """The event loop of this process, in its own thread, because the main thread may already run one (in a notebook).

    It starts with the first call, and all look-ups of the process share it, including all copies in Spark's tasks. It
    ends with the process; a forked process starts its own.
    """

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # Completed when the loop has ended.
        self._ended: Future[None] = Future()

    def run(self, calls: Coroutine[Any, Any, V]) -> V:
        """Run a coroutine to its end. It is cancelled if the wait for it is interrupted.

        Raises:
            DefinitionError: It is called in the thread of the loop, which would block on itself.
            StateAccessError: The loop ended during the call; its cause is the error that ended it.
        """
        with self._lock:
            if threading.current_thread() is self._thread:
                calls.close()
                raise DefinitionError(
                    "an AsyncLookup was called in the function of an AsyncLookup, whose event loop would wait for "
                    "itself; await the other function there"
                )
            if self._loop is None:
                try:
                    self._start()
                except BaseException:
                    calls.close()
                    raise
            assert self._loop is not None
            running, ended = asyncio.run_coroutine_threadsafe(calls, self._loop), self._ended
        try:
            either: list[Future[Any]] = [running, ended]
            wait(either, return_when=FIRST_COMPLETED)
            if ended.done() and not _has_result(running):
                raise StateAccessError("the event loop of AsyncLookup ended within the call") from ended.exception()
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def _start(self) -> None:
        loop, ended = asyncio.new_event_loop(), Future[None]()
        thread = threading.Thread(target=self._serve, args=(loop, ended), name="keyed-async-lookup", daemon=True)
        try:
            thread.start()
        except BaseException:
            loop.close()
            raise
        self._loop, self._thread, self._ended = loop, thread, ended

    def _serve(self, loop: asyncio.AbstractEventLoop, ended: Future[None]) -> None:
        """Run the loop until `close` stops it, or a function does: by ``loop.stop()``, or by exiting the program."""
        error: BaseException | None = None
        try:
            loop.run_forever()
        except BaseException as raised:  # noqa: BLE001 - raised in the calling thread
            error = raised
        with self._lock:
            is_wanted = self._loop is not loop
            if not is_wanted:
                self._loop = self._thread = None
        if not is_wanted:
            _log.error("the event loop of AsyncLookup ended; the next call starts another one", exc_info=error)
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        # A task of the function may raise another error while it is cancelled.
        with suppress(BaseException):
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        for task in left:
            if task.done() and not task.cancelled():
                # It would be logged in addition to the error above.
                task.exception()
        loop.close()

    def close(self) -> None:
        """End the loop and its thread. The next call starts another one.

        The thread of a function that blocks the loop is left behind; it ends with the process.
        """
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            with suppress(RuntimeError):
                # It may have ended by itself, and be closed already.
                loop.call_soon_threadsafe(loop.stop)
            thread.join(_EXIT_WAIT)


def _has_result(call: Future[Any]) -> bool:
    """Return true if a call returned, or raised an error of its own."""
    return call.done() and not call.cancelled() and isinstance(call.exception(), Exception | None)


_LOOP = _Loop()


class AsyncLookup(Generic[K, V]):
    """Looks keys up with a coroutine, many at a time (Flink's `AsyncDataStream.orderedWait`).

    Create it once, in the program. Give it to `lookup_join`, or call it with the keys of a batch in
    ``process_batch``. A batch that fails repeats its look-ups, whose results may differ.

    Args:
        function: ``async def function(key)``, returns the value of a key. All calls of a process share one event loop,
            and may share a client. Create that in the first call, in a module that the function imports: the object is
            sent to workers, on Spark a copy for each task.
        concurrency: Maximal number of concurrent calls.
        timeout: Maximal duration of a call, milliseconds or a `timedelta`; `None` for ever.
        retries: Further attempts after a call failed, or took too long.
        pause: Time before the first of them; it doubles with each.

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

    def __repr__(self) -> str:
        return f"AsyncLookup({getattr(self._function, '__name__', self._function)!s}, concurrency={self._concurrency})"

    def __call__(self, keys: Iterable[K]) -> dict[K, V]:
        """Look keys up, each once even if it is repeated, and return the results in their order.

        Raises:
            Exception: The error of the last attempt for a key, with the key as a note; `TimeoutError`, which names the
                key, if it took too long. The other calls are cancelled.
        """
        distinct_keys = list(dict.fromkeys(keys))
        if not distinct_keys:
            return {}
        return dict(zip(distinct_keys, _LOOP.run(self._all(distinct_keys)), strict=True))

    async def _all(self, keys: list[K]) -> list[V]:
        """Look all keys up; the first failure cancels the rest."""
        ahead = iter(range(len(keys)))
        results: list[Any] = [None] * len(keys)

        async def work() -> None:
            for index in ahead:
                results[index] = await self._one(keys[index])

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._concurrency, len(keys))):
                    group.create_task(work())
        except ExceptionGroup as failed:
            # The function's error is raised outside of `except*`, where Python 3.11.2 would wrap it again.
            raise failed.exceptions[0] from None
        return results

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
                        # The event loop raises a new object without notes, so the text goes into the message.
                        raise TimeoutError(f"{str(error) or f'no answer within {self._seconds} s'} ({what})") from error
                    error.add_note(what)
                    raise
            await asyncio.sleep(self._pause * 2**attempt)
        raise AssertionError
