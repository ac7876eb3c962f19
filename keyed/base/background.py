"""Work in a thread beside the rows: one owner, one status, one end."""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from enum import Enum
from weakref import WeakSet

import attrs

from keyed.errors import KeyedError, StateAccessError

_log = logging.getLogger(__name__)
#: Seconds from a failure to the next attempt: at first, and at most. The delay doubles with each failure.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 10.0
#: Seconds of consecutive failures after which the work ends.
PATIENCE = 86_400.0
#: Seconds for which a process that exits waits for its threads.
_EXIT_WAIT = 5.0
#: Parameters of glibc's ``mallopt`` and their values, by the variable of the environment that sets each too:
#: ``M_ARENA_MAX``, and ``M_MMAP_THRESHOLD`` in bytes.
_MALLOC = {"MALLOC_ARENA_MAX": (-8, 2), "MALLOC_MMAP_THRESHOLD_": (-3, 128 << 10)}


def keep_little_free_memory() -> None:
    """Let glibc's allocator keep little of what this process has freed; other allocators stay as they are.

    glibc has up to eight arenas for each processor, and memory that a thread has freed stays with its arena. And once
    a large block was freed, it places those of that size between small ones. A server whose requests run in many
    threads would grow by both for hours. With this its threads share two arenas, and blocks of 128 kB are mapped.
    """
    with suppress(OSError, AttributeError):
        set_parameter = ctypes.CDLL(None).mallopt
        for variable, parameter in _MALLOC.items():
            if variable not in os.environ:
                set_parameter(*parameter)


class Status(Enum):
    """The life cycle of work that runs beside the rows."""

    STARTING = "starting"
    """It has not succeeded once yet."""
    FOLLOWING = "following"
    """It has succeeded."""
    FAILED = "failed"
    """It ended with an error, which every later use raises."""
    CLOSED = "closed"
    """Its owner closed it, or it belongs to the process that this one was forked from."""

    @property
    def number(self) -> int:
        """Its number in metrics: 0 starting, 1 following, 2 failed, 3 closed."""
        return list(Status).index(self)


class WorkEnded(Exception):
    """Raised by a step to end its thread; `Background.start` may start another one."""


@attrs.define(eq=False, repr=False, slots=False)
class Background:
    """A thread that calls a function repeatedly.

    Transient errors are retried with backoff, up to ten seconds apart, for a day. Each kind is logged once, and repeats
    are counted. Any other error ends the work: it is logged and kept, and `check` raises it each time.

    Args:
        name: Name of the work in log lines, and of its thread.
        step: Does the work once. Returns the seconds until it is called again, or ``None`` when nothing is left to do.
            A long step polls `is_stopping`, and raises `WorkEnded` to end early.
        is_transient: Returns true for a transient error, after which ``step`` is called again.
        patience: Seconds of consecutive failures after which the work ends.
        at_end: Called in the thread with an error that has ended the work.

    Attributes:
        name: As given.
        status: The status.
        error: The error that ended the work; ``None`` if there is none.
        trouble: The error of the last call, which is retried; ``None`` if it succeeded.
        failures: Failed calls so far.
    """

    name: str
    _step: Callable[[], float | None]
    _is_transient: Callable[[Exception], bool] = attrs.field(default=lambda _: False, kw_only=True)
    _patience: float = attrs.field(default=PATIENCE, kw_only=True)
    _at_end: Callable[[BaseException], None] = attrs.field(default=lambda _: None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        self.error: BaseException | None = None
        self.trouble: Exception | None = None
        self.failures = 0
        self._status = Status.STARTING
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._looked = threading.Event()
        self._thread: threading.Thread | None = None
        self._fresh_at: float | None = None
        # The failures since the last success: their number, the time of the first, and the kinds that were logged.
        self._repeats = 0
        self._failing_since = 0.0
        self._logged: set[type[Exception]] = set()

    @property
    def status(self) -> Status:
        """The status."""
        return Status.CLOSED if self.is_inherited else self._status

    @property
    def last_error(self) -> BaseException | None:
        """The error that ended the work, else that of the last call; ``None`` if that succeeded."""
        return self.error or self.trouble

    @property
    def last_error_text(self) -> str:
        """The type and message of `last_error`; empty without one."""
        error = self.last_error
        return "" if error is None else f"{type(error).__name__}: {error}"

    @property
    def is_inherited(self) -> bool:
        """True if this process was forked from the owner of the work."""
        return self._pid != os.getpid()

    @property
    def is_running(self) -> bool:
        """True while the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_stopping(self) -> bool:
        """True if the work has to end. A long call polls it, and then returns early or raises `WorkEnded`."""
        return self._stopping.is_set() and threading.current_thread() is self._thread

    @property
    def age(self) -> float | None:
        """Seconds since the start of the last successful call; ``None`` if none has succeeded."""
        return None if self._fresh_at is None else time.monotonic() - self._fresh_at

    def check(self) -> None:
        """Raise the error that ended the work, each time as a new exception of its type with the error as the cause.

        Raises:
            StateAccessError: The work belongs to the process that this one was forked from.
        """
        if self.is_inherited:
            raise StateAccessError(
                f"{self.name}: it runs in process {self._pid}, which this one was forked from; open it in this process"
            )
        if self.error is not None:
            raise _renewed(self.error, f"{self.name} ended with this error; close it and open it again") from self.error

    def start(self) -> None:
        """Start the thread.

        Raises:
            StateAccessError: The work has ended, or runs already.
        """
        self.check()
        with self._lock:
            if self._status is Status.CLOSED or self.is_running:
                state = "is closed" if self._status is Status.CLOSED else "runs already"
                raise StateAccessError(f"{self.name} {state}")
            self._stopping.clear()
            self._looked.clear()
            thread = self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            _running[id(self)] = self
            try:
                thread.start()
            except BaseException:
                self._thread = None
                _running.pop(id(self), None)
                raise

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the first call since the start, successful or not. Returns true if there was one."""
        return self._looked.wait(timeout)

    def stop(self, timeout: float | None = None) -> None:
        """End the thread and wait for it. `start` starts another one."""
        if self.is_inherited:
            return
        self._stopping.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(timeout)
        with self._lock:
            # Another thread may have started the next one.
            if self._thread is thread and not thread.is_alive():
                self._thread = None
                _running.pop(id(self), None)

    def close(self, timeout: float | None = None) -> None:
        """End for good. Closing again does nothing."""
        if self.is_inherited:
            return
        # First, so that no other thread starts it again.
        with self._lock:
            if self._status is not Status.FAILED:
                self._status = Status.CLOSED
        self.stop(timeout)

    def succeeded(self, since: float) -> None:
        """Record the success of a call that began at a time of `time.monotonic`, in the thread or outside of it."""
        with self._lock:
            self._fresh_at = since
            if self._status is Status.STARTING:
                self._status = Status.FOLLOWING
            repeats, self._repeats, self.trouble = self._repeats, 0, None
            self._logged.clear()
        if repeats:
            _log.warning("%s: recovered after %d failures", self.name, repeats)

    def failed(self, error: Exception, began: float) -> float:
        """Record a transient failure, also one that the step caught. Returns the seconds until the next attempt.

        Raises:
            Exception: The failure itself, once failures have lasted longer than ``patience``.
        """
        with self._lock:
            if not self._repeats:
                self._failing_since = began
            self.failures += 1
            self._repeats += 1
            self.trouble = error
            wait = min(_FIRST_WAIT * 2.0 ** min(self._repeats - 1, 16), _LONGEST_WAIT)
            is_new = type(error) not in self._logged
            self._logged.add(type(error))
        if time.monotonic() + wait - self._failing_since > self._patience:
            error.add_note(f"{self.name}: {self._repeats} attempts in {self._patience:g} s failed")
            raise error
        # The traceback's frames would keep the call's objects alive until the next success.
        error.__traceback__ = None
        if is_new:
            _log.warning("%s: %s; retrying; further failures are counted", self.name, error)
        return wait

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                try:
                    wait = self._step()
                except WorkEnded:
                    return
                except Exception as error:
                    if not self._is_transient(error):
                        raise
                    wait = self.failed(error, began)
                else:
                    self.succeeded(began)
                    if wait is None:
                        break
                self._looked.set()
                self._stopping.wait(wait)
            else:
                return
            with self._lock:
                self._status = Status.CLOSED
        except BaseException as error:  # noqa: BLE001 - raised wherever the work is used
            with self._lock:
                self.error, self._status = error, Status.FAILED
            _log.error("%s: ended", self.name, exc_info=error)
            self._at_end(error)
        finally:
            self._looked.set()
            _running.pop(id(self), None)


class Following:
    """A copy of state that work in the background keeps."""

    _work: Background

    @property
    def status(self) -> Status:
        """Starting until the first success, then following, failed or closed."""
        return self._work.status

    @property
    def trouble(self) -> str:
        """The error of the last attempt, or the one that ended following; empty if there is none."""
        return self._work.last_error_text

    @property
    def failures(self) -> int:
        """Number of failed attempts so far."""
        return self._work.failures


#: Sockets at which servers of this process listen.
_listening: WeakSet[socket.socket] = WeakSet()


def close_in_children(listening: socket.socket) -> None:
    """Close a server's socket in processes that are forked from this one: they would keep the port after its end."""
    _listening.add(listening)


def _close_listening() -> None:
    for listening in list(_listening):
        listening.close()


os.register_at_fork(after_in_child=_close_listening)
#: The instances with a thread, by identity.
_running: dict[int, Background] = {}


@atexit.register
def _end_all() -> None:
    """End the threads before the interpreter shuts down."""
    running = list(_running.values())
    for each in running:
        each.stop(0.0)
    until = time.monotonic() + _EXIT_WAIT
    for each in running:
        each.close(max(0.0, until - time.monotonic()))


def _renewed(error: BaseException, note: str) -> Exception:
    """Return a new exception of the same type with the same attributes: one that is raised twice grows a traceback."""
    if not isinstance(error, Exception):
        new: Exception = KeyedError(f"ended by {type(error).__name__}: {error}")
    else:
        try:
            new = copy(error)
        except Exception:  # noqa: BLE001 - it wants other arguments than it keeps
            new = type(error).__new__(type(error), *error.args)
        if new is error:
            new = type(error).__new__(type(error), *error.args)
        vars(new).update(vars(error))
    new.__notes__ = [*getattr(error, "__notes__", ()), note]
    return new.with_traceback(None)
