"""Identities that are unique to a run."""

from __future__ import annotations

import uuid


def random_id() -> str:
    """Return 128 random bits as 32 hexadecimal digits."""
    return uuid.uuid4().hex
