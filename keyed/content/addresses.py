"""Addresses of entries: their byte layout, shared by the engine, the log and the local stores.

All state is *entries*: an address, which is a pair (prefix, sub), with a value of bytes.

    prefix   of state   kind (1 byte) | state id (u16 BE) | encoded key | encoded namespace
             of timers  kind (1 byte) | encoded key
    sub      value, reducing and aggregating state    empty
             map entry                                 encoded map key
             version                                   its time, all bits flipped, so that the newest comes first
             list element                              commit sequence (u64 BE) | index in the commit (u32 BE)
             unnamed timer                             00 | time
             named timer                               01 | encoded name
    time     8 bytes: signed 64-bit milliseconds, big endian, sign bit flipped, so that byte order is time order

A broadcast state is a map whose key is null; no row has a null key. Each key group has the same entries of it.

Keys, namespaces, map keys and names are encoded by `keyed.codec.keys`, which is prefix-free; so no prefix is a proper
prefix of another one, and byte order of (prefix, sub) is byte order of prefix + sub.

Entries of every kind but ``PLAIN`` are *indexed by time*: the first 8 bytes of the value are the time at which the
entry is due (to fire, or to expire; 2^63 − 1 is never). For a timer that is the whole value; an unnamed timer's time
is in its sub as well, and the two are always equal.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from keyed.base.arguments import MAX_TIMESTAMP, time_text
from keyed.codec.keys import decode_key, decode_key_at, encode_key
from keyed.errors import CorruptionError

#: The encoded value of a null map entry, and of a version that is a deletion, for every type.
NULL = b"\xc0"
#: State without a time to live.
PLAIN = 1
#: State with a time to live in processing time.
TTL_PROCESSING = 2
#: State with a time to live in event time.
TTL_EVENT = 3
#: The kind of a state, by the clock of its time to live (`keyed.job.ttl.TimeDomain`).
KIND_OF_CLOCK = {None: PLAIN, "processing_time": TTL_PROCESSING, "event_time": TTL_EVENT}
#: Processing-time timers.
TIMER_PROCESSING = 4
#: Event-time timers.
TIMER_EVENT = 5

_SIGN = 2**63
_NO_KEY = encode_key(None)
_STATE_HEAD = Struct(">BH")
_TIME = Struct(">Q")
_LIST_SUB = Struct(">QI")
_pack_time = _TIME.pack
_unpack_time = _TIME.unpack_from


def encode_time(timestamp: int) -> bytes:
    """Encode a timestamp in milliseconds as 8 bytes whose order is the order of time."""
    return _pack_time(timestamp + _SIGN)


def decode_time(data: bytes, offset: int = 0) -> int:
    """Decode the timestamp of `encode_time` at ``offset`` of ``data``."""
    timestamp: int = _unpack_time(data, offset)[0]
    return timestamp - _SIGN


def expiry(data: bytes) -> int | None:
    """Return the expiry of an entry whose encoded due time starts ``data``; ``None`` if it never expires."""
    time = decode_time(data)
    return None if time == MAX_TIMESTAMP else time


def state_prefix(kind: int, state_id: int, key: bytes, namespace: bytes) -> bytes:
    """Build the prefix of the entries of one state, for one encoded key and one encoded namespace."""
    return _STATE_HEAD.pack(kind, state_id) + key + namespace


def broadcast_prefixes(states: dict[str, Any]) -> tuple[bytes, ...]:
    """Return the prefix of the entries of each broadcast state in `GroupMeta.states`."""
    ids = [int(state["id"]) for state in states.values() if state["schema"]["kind"] == "broadcast"]
    return tuple(state_prefix(PLAIN, state_id, _NO_KEY, _NO_KEY) for state_id in ids)


def timer_prefix(kind: int, key: bytes) -> bytes:
    """Build the prefix of all timers of one encoded key in one time domain."""
    return bytes((kind,)) + key


def timer_sub(timestamp: int) -> bytes:
    """Build the sub of an unnamed timer; there is one per time."""
    return b"\x00" + _pack_time(timestamp + _SIGN)


def named_timer_sub(name: bytes) -> bytes:
    """Build the sub of a named timer from its encoded name."""
    return b"\x01" + name


def list_sub(commit: int, index: int) -> bytes:
    """Build the sub of the list element that was the ``index``-th to be added in a commit."""
    return _LIST_SUB.pack(commit, index)


def place_sub(batch: int, index: int) -> bytes:
    """Build the sub of the list element that was the ``index``-th to be added in a batch, given by its id."""
    return list_sub(batch + 1, index)


def decode_place(sub: bytes) -> tuple[int, int]:
    """Decode the batch, by its id, and the index of a list element.

    Raises:
        CorruptionError: It is not a place in a list.
    """
    if len(sub) != _LIST_SUB.size:
        raise CorruptionError(f"{sub!r:.50} is not a place in a list")
    commit, index = _LIST_SUB.unpack(sub)
    return commit - 1, index


def version_sub(timestamp: int) -> bytes:
    """Build the sub of the version of a timestamp."""
    return _pack_time(~timestamp + _SIGN)


def decode_version_sub(sub: bytes) -> int:
    """Decode the timestamp of a version.

    Raises:
        CorruptionError: It is not a version.
    """
    if len(sub) != _TIME.size:
        raise CorruptionError(f"{sub!r:.50} is not a version of a value")
    return ~decode_time(sub)


def split_value(prefix: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Split the value of a state's entry into its encoded due time, empty if it has none, and the rest."""
    size = 0 if prefix[0] == PLAIN else _TIME.size
    return value[:size], value[size:]


def state_id_of(prefix: bytes) -> int | None:
    """Return the id of the state of a prefix; ``None`` for the prefix of timers.

    Raises:
        CorruptionError: It is not a prefix.
    """
    if prefix[:1] >= bytes((TIMER_PROCESSING,)):
        return None
    if len(prefix) < _STATE_HEAD.size:
        raise CorruptionError(f"{prefix!r} is not a prefix of an entry")
    state_id: int = _STATE_HEAD.unpack_from(prefix)[1]
    return state_id


def namespace_of(prefix: bytes) -> Any:
    """Return the user's namespace in the prefix of a state.

    Raises:
        CorruptionError: It has no namespace.
    """
    _, offset = decode_key_at(prefix, _STATE_HEAD.size)
    return decode_key_at(prefix, offset)[0]


def key_of(prefix: bytes) -> Any:
    """Return the user's key in a prefix.

    Raises:
        CorruptionError: It holds no key.
    """
    return decode_key_at(prefix, 1 if prefix[0] >= TIMER_PROCESSING else _STATE_HEAD.size)[0]


def describe_entry(prefix: bytes, sub: bytes, states: dict[str, Any]) -> str:
    """Return an entry's address as a user would name it.

    Args:
        prefix: Its prefix.
        sub: Its sub.
        states: Descriptions of the states with their ids, by name.

    Raises:
        CorruptionError: It is not an address.
    """
    key = key_of(prefix)
    number = state_id_of(prefix)
    if number is None:
        domain = "event-time" if prefix[0] == TIMER_EVENT else "processing-time"
        which = f"timer {decode_key(sub[1:])!r}" if sub[0] else f"timer at {time_text(decode_time(sub, 1))}"
        return f"{domain} {which} of key {key!r}"
    name, kind = f"number {number}", ""
    for state_name, state in states.items():
        if state["id"] == number:
            name, kind = repr(state_name), state["schema"]["kind"]
    namespace = namespace_of(prefix)
    where = f"{kind or 'unknown'} state {name} of key {key!r}"
    if namespace is not None:
        where += f", namespace {namespace!r}"
    if kind == "broadcast":
        return f"broadcast state {name}, map key {decode_key(sub)!r}"
    if kind == "map":
        return f"{where}, map key {decode_key(sub)!r}"
    if kind == "versioned":
        return f"{where}, version of {decode_version_sub(sub)}"
    if kind == "list":
        batch, index = decode_place(sub)
        return f"{where}, element {index} of batch {batch}"
    return where
