"""Standard output whose reader may exit, as in ``keyed scan ... | head``."""

from __future__ import annotations

import os
import select
import signal
import sys

#: The status that a shell reports for programs that end by SIGPIPE, as ``cat`` and ``grep`` do.
BROKEN_PIPE_STATUS = 128 + signal.SIGPIPE
#: The status of a program ended by Ctrl-C.
INTERRUPTED_STATUS = 128 + signal.SIGINT


def check_reader() -> None:
    """Check that standard output is not a pipe or socket without a reader.

    Commands that wait for changes call it: without a change they would never write, and never notice.

    Raises:
        BrokenPipeError: The reader is gone.
    """
    try:
        number = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        return
    poll = select.poll()
    poll.register(number, 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        raise BrokenPipeError


def discard_stdout() -> None:
    """Discard the buffers of standard output and standard error, so that the exit prints nothing."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
