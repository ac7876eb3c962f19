"""Addresses of entries in words, for messages."""

from __future__ import annotations

from typing import Any

from keyed.codec.keys import decode_key
from keyed.content.addresses import (
    TIMER_EVENT,
    decode_list_sub,
    decode_time,
    decode_version_sub,
    key_of,
    namespace_of,
    state_id_of,
)


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
    number = state_id_of(prefix)
    if number is None:
        domain = "event-time" if prefix[0] == TIMER_EVENT else "processing-time"
        which = f"timer {decode_key(sub[1:])!r}" if sub[0] else f"timer at {decode_time(sub, 1)}"
        return f"{domain} {which} of key {key!r}"
    name, kind = f"number {number}", ""
    for state_name, state in states.items():
        if state["id"] == number:
            name, kind = repr(state_name), state["schema"]["kind"]
    namespace = namespace_of(prefix)
    where = f"{kind or 'unknown'} state {name} of key {key!r}"
    if namespace is not None:
        where += f", namespace {namespace!r}"
    if kind == "map":
        return f"{where}, map key {decode_key(sub)!r}"
    if kind == "versioned":
        return f"{where}, version of {decode_version_sub(sub)}"
    if kind == "list":
        batch, index = decode_list_sub(sub)
        return f"{where}, element {index} of batch {batch}"
    return where
