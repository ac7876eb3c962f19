"""Addresses of entries in words, for messages."""

from __future__ import annotations

from typing import Any

from keyed.codec.keys import decode_key, decode_key_at
from keyed.content.addresses import TIMER_EVENT, TIMER_PROCESSING, decode_time, key_of

__all__ = ["describe_entry"]


def describe_entry(prefix: bytes, sub: bytes, states: dict[str, Any]) -> str:
    """An entry's address as a user would name it.

    Args:
        prefix: Its prefix.
        sub: Its sub.
        states: Descriptions of the states with their ids, by name.

    Raises:
        CorruptionError: It is no address.
    """
    key = key_of(prefix)
    if prefix[0] >= TIMER_PROCESSING:
        domain = "event-time" if prefix[0] == TIMER_EVENT else "processing-time"
        which = f"timer {decode_key(sub[1:])!r}" if sub[0] else f"timer at {decode_time(sub, 1)}"
        return f"{domain} {which} of key {key!r}"
    number = int.from_bytes(prefix[1:3], "big")
    name, kind = f"number {number}", ""
    for state_name, state in states.items():
        if state["id"] == number:
            name, kind = repr(state_name), state["schema"]["kind"]
    namespace = decode_key_at(prefix, decode_key_at(prefix, 3)[1])[0]
    where = f"{kind or 'unknown'} state {name} of key {key!r}"
    if namespace is not None:
        where += f", namespace {namespace!r}"
    if kind == "map":
        return f"{where}, map key {decode_key(sub)!r}"
    if kind == "list":
        return f"{where}, element {int.from_bytes(sub[8:], 'big')} of batch {int.from_bytes(sub[:8], 'big')}"
    return where
