"""Translation of the errors of a Spark query into the errors that the worker raised, and the log that they name.

A worker's exception reaches the driver as text: the Python traceback, inside the message of one or two JVM exceptions.
A user needs our error and the lines of the function; the rest is in Spark's log.

The log separates Spark's output from the program's: its start-up lines, its log, the output of its Python workers. A
JVM and its workers write to the standard error of the program that starts the JVM. Inside of `to_file`, file
descriptor 2 is a log file, which a starting JVM inherits. Afterwards the program's standard error is restored. Text
that another thread of the program writes to it in these seconds also goes to the file.

The file ``log`` is in a `ScratchFolder`, which is removed when the program ends, or by a later program if it was
killed. A log that an error names is moved beside that folder, under its name with ``.log``. The three latest logs of
programs that have ended are kept for a week.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from keyed import errors
from keyed.base.scratch import ScratchFolder
from keyed.errors import KeyedError, QueryFailed

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


_OLD_SECONDS = 7 * 86_400.0
#: Number of logs of ended programs that are kept.
_KEPT = 3
#: Held while standard error is the log: a second thread would otherwise take the log for the program's own standard
#: error.
_redirecting = threading.Lock()
#: The folder of this program's log, if its JVM writes to one.
_folder: ScratchFolder | None = None


@contextmanager
def to_file() -> Iterator[None]:
    """Redirect the output of a JVM that starts inside of the context to a log file."""
    global _folder  # noqa: PLW0603 - a program has one JVM
    with _redirecting:
        if _folder is None:
            _folder = ScratchFolder("spark")
            atexit.register(_folder.close)
            _sweep(_folder.path.parent)
        # It exists already if this is the program's second JVM.
        named = _named(_folder)
        log = named if named.exists() else _folder.path / "log"
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        sys.stderr.flush()
        own = os.dup(2)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        try:
            yield
        except Exception as error:
            name_log(error)
            raise
        finally:
            sys.stderr.flush()
            os.dup2(own, 2)
            os.close(own)


def name_log(error: BaseException) -> None:
    """Add the path of Spark's log to an error. The log is kept then."""
    if _folder is None:
        return
    log, named = _folder.path / "log", _named(_folder)
    with suppress(FileNotFoundError):
        if log.stat().st_size:
            log.rename(named)
    if named.exists():
        error.add_note(f"Spark's log: {named}")


def _named(folder: ScratchFolder) -> Path:
    """Return the path of a log that an error has named."""
    return folder.path.with_suffix(".log")


def _sweep(parent: Path) -> None:
    """Delete logs of this user's ended programs except the latest."""
    files: list[tuple[float, Path]] = []
    for path in parent.glob("keyed-spark-*.log"):
        with suppress(OSError):
            status = path.lstat()
            # The folder exists while the program runs.
            if status.st_uid == os.getuid() and not path.with_suffix("").exists():
                files.append((status.st_mtime, path))
    for number, (changed, path) in enumerate(sorted(files, reverse=True)):
        if number >= _KEPT or changed < time.time() - _OLD_SECONDS:
            with suppress(OSError):
                path.unlink()


def _unlock() -> None:
    """Create a new lock in a forked process: a thread of the parent may have held the old one."""
    global _redirecting  # noqa: PLW0603 - see above
    _redirecting = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


#: The last line of a Python traceback of our error: from the start of a line to the text of the JVM.
_RAISED = re.compile(
    r"^(?:[\w.]*\b)?keyed\.errors\.(?P<name>\w+): (?P<message>.*?)"
    r"(?=^\s*at |^\s*Driver stacktrace|^\s*SQLSTATE|^\s*=== |^\s*JVM stacktrace|^\s*$|^\s*Caused by|\Z)",
    re.MULTILINE | re.DOTALL,
)
_TRACEBACK = "Traceback (most recent call last):\n"
_FOLLOWING = "\nThe above exception was the direct cause of the following exception:\n"
#: A call in a traceback: its place, and the lines of source below.
_FRAME = re.compile(r'^  File "(?P<path>[^"]*)", line .*\n(?:    .*\n)*', re.MULTILINE)
_ENGINE = "/keyed/engine/"
#: The modules that call a sink.
_WRITER = ("/query/spark_sinks.py", "/destinations/function.py")
#: A cause in a Java stack trace. The last one is the root cause.
_CAUSE = re.compile(r"^Caused by: (?P<cause>.*(?:\n(?!\s*at |\s*\.\.\. |Caused by: ).+)*)", re.MULTILINE)
_WITHOUT_REASON = re.compile(r"An error occurred while calling \S+")
_CALLING = re.compile(r"^An error occurred while calling \S+\n: ")
_SHOWN = 2000
_HINTS = {
    "OversizedAllocationException": (
        "one micro-batch has more than 2 GiB for one key group: read less input per batch (maxFilesPerTrigger, "
        "maxOffsetsPerTrigger), use more key groups, or set spark.sql.execution.arrow.maxBytesPerBatch to 64m"
    ),
    "Python worker exited unexpectedly": (
        "a Python worker ended without an exception: it was killed, for instance by the system for lack of memory, or "
        "a native library crashed. The next run on the checkpoint resumes after the last committed batch"
    ),
    "Python worker failed to connect back": (
        "a Python worker did not start within Spark's limit of ten seconds: the machine is overloaded, or the Python "
        "of the workers (PYSPARK_PYTHON) does not run. The next run on the checkpoint resumes after the last "
        "committed batch"
    ),
}


def raise_translated(error: BaseException, query: str) -> NoReturn:
    """Raise the typed error for the failure of a query.

    Spark's exception is not printed with it, because it repeats the error in hundreds of lines; it is the error's
    ``__context__``. An exception of this program, for instance of a sink, is the cause.
    """
    failure = translated(error, query)
    if failure is error:
        raise failure
    if not _is_sparks(error):
        raise failure from error
    lines = _sinks_lines(error)
    if lines and isinstance(failure, QueryFailed):
        failure.add_note(f"In the sink:\n{lines}")
    name_log(failure)
    raise failure from None


def translated(error: BaseException, query: str) -> KeyedError:
    """Return the typed error for the failure of a query.

    Args:
        error: Spark's exception.
        query: The failed query or operation, for the message of an error that is not one of ours.

    Returns:
        The error that a worker raised, if it was one of ours, with the lines of the user's function as a note;
        `QueryFailed` otherwise.
    """
    if isinstance(error, KeyedError):
        return error
    text = str(error)
    matches = list(_RAISED.finditer(text))
    for match in reversed(matches):
        cls = getattr(errors, match["name"], None)
        if isinstance(cls, type) and issubclass(cls, KeyedError):
            # The command below the message is a note, which the new error has too.
            failure: KeyedError = cls(match["message"].strip().removesuffix(errors.remedy(cls)).rstrip())
            lines = _users_lines(text[: match.start()])
            if lines:
                failure.add_note(f"In the worker:\n{lines}")
            return failure
    hint = "".join(f"{hint}\n" for sign, hint in _HINTS.items() if sign in text)
    return QueryFailed(f"{query} failed: {hint}{essence(error, text)}")


def is_gone(error: BaseException) -> bool:
    """Return true if the JVM ends or has ended before this process: it also gets the signals of a process group."""
    return has_no_jvm(error) or (_is_sparks(error) and "Cannot call methods on a stopped SparkContext" in str(error))


def has_no_jvm(error: BaseException) -> bool:
    """Return true if a call of Spark failed because its JVM has ended."""
    if isinstance(error, ConnectionError | EOFError) or type(error).__name__ == "Py4JNetworkError":
        return True
    # py4j does not find a class in a JVM that no longer answers.
    return _is_sparks(error) and " does not exist in the JVM" in str(error)


def has_lost_jvm(error: BaseException, query: StreamingQuery) -> bool:
    """Return true if a call of a query failed because its JVM has ended, also during that call.

    Then py4j has logged that the connection broke, and its error has no reason. The next call tries to connect.
    """
    if not has_no_jvm(error) and _is_sparks(error) and _WITHOUT_REASON.fullmatch(str(error)):
        try:
            bool(query.isActive)
        except Exception as again:  # noqa: BLE001 - any other error is not the one in question
            return has_no_jvm(again)
    return has_no_jvm(error)


def jvm_ended(query: str) -> QueryFailed:
    """Return the error of a query whose JVM has ended."""
    failure = QueryFailed(
        f"{query} failed: Spark's JVM has ended: it was killed, for instance by the system for lack of memory, or it "
        "crashed. Start this program again; the next run on the checkpoint resumes after the last committed batch"
    )
    name_log(failure)
    return failure


def _is_sparks(error: BaseException) -> bool:
    return any(cls.__module__.startswith(("pyspark.", "py4j.")) for cls in type(error).__mro__)


def _users_lines(text: str) -> str:
    """Return the user's calls in the traceback of the cause of our exception, with which ``text`` ends."""
    before, cause, _ = text.rpartition(_FOLLOWING)
    if not cause:
        return ""
    frames = _FRAME.finditer(before[before.rfind(_TRACEBACK) :])
    return "".join(frame[0] for frame in dropwhile(lambda frame: _ENGINE in frame["path"], frames)).rstrip()


def _sinks_lines(error: BaseException) -> str:
    """Return the calls of a user's sink in the traceback of an error that Spark raised in this program."""
    frames = list(traceback.extract_tb(error.__traceback__))
    writer = max((number for number, frame in enumerate(frames) if frame.filename.endswith(_WRITER)), default=None)
    after = [] if writer is None else frames[writer + 1 :]
    users = takewhile(lambda frame: "/pyspark/" not in frame.filename, after)
    return "".join(traceback.format_list(list(users))).rstrip()


def essence(error: BaseException, text: str) -> str:
    """Return the relevant part of a long message: the last Python traceback, the root cause, or the beginning."""
    # The rest is the query's plan and the JVM's stack.
    text = re.split(r"^(?:=== Streaming Query ===|Driver stacktrace|JVM stacktrace)", text, flags=re.MULTILINE)[0]
    causes = _CAUSE.findall(text)
    start = text.rfind(_TRACEBACK)
    if start >= 0:
        text = f"{type(error).__name__}: {text[start:]}"
    elif causes:
        text = causes[-1]
    else:
        text = f"{type(error).__name__}: {_CALLING.sub('', text)}"
    text = re.split(r"^\s*at ", text, maxsplit=1, flags=re.MULTILINE)[0].strip()
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}\n...\n{text[-_SHOWN // 2 :]}"
