"""The error of the Nexmark programs."""

from __future__ import annotations


class NexmarkError(Exception):
    """A query, parameter or folder that cannot be used; the message names it."""
