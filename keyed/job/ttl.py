"""Time domains, and the time to live of state (Flink's ``TimeDomain`` and ``StateTtlConfig``)."""

from __future__ import annotations

import enum
from datetime import timedelta
from typing import Unpack

import attrs

from keyed.base.arguments import Duration, Units, duration_of, shows_units, type_of
from keyed.errors import StateDefinitionError


class TimeDomain(enum.Enum):
    """The clock that a timer or a time to live runs on (Flink's ``TimeDomain``)."""

    EVENT_TIME = "event_time"
    PROCESSING_TIME = "processing_time"


class UpdateType(enum.Enum):
    """The operations that refresh an entry with a time to live (Flink's ``StateTtlConfig.UpdateType``)."""

    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"


class StateVisibility(enum.Enum):
    """The visibility of expired entries that were not removed yet (Flink's ``StateTtlConfig.StateVisibility``)."""

    NEVER_RETURN_EXPIRED = "never_return_expired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "return_expired_if_not_cleaned_up"


@attrs.frozen(init=False)
class StateTtl:
    """Time to live of each value, list element or map entry: it expires when last update + ttl ≤ clock.

    In processing time the clock is that of the batch. In event time it is the watermark, and an update is stamped with
    the later of the watermark and the timestamp of its element or event-time timer. While event-time timers fire, time
    passes from one to the next, however far the watermark moves at once: a timer finds state that expires later than
    itself.

    Args:
        duration: At least 1 ms: milliseconds or a `timedelta`, or units as keywords, ``StateTtl(hours=2)``.
        time_domain: The clock.
        update: What refreshes an entry.
        visibility: `RETURN_EXPIRED_IF_NOT_CLEANED_UP` keeps an entry readable to the end of the batch in which it
            expires.

    Raises:
        DefinitionError: The duration is missing, given twice, or below 1 ms.
    """

    milliseconds: int
    time_domain: TimeDomain
    update: UpdateType
    visibility: StateVisibility

    @shows_units
    def __init__(
        self,
        duration: Duration | None = None,
        *,
        time_domain: TimeDomain = TimeDomain.PROCESSING_TIME,
        update: UpdateType = UpdateType.ON_CREATE_AND_WRITE,
        visibility: StateVisibility = StateVisibility.NEVER_RETURN_EXPIRED,
        **units: Unpack[Units],
    ) -> None:
        total = duration_of(duration, "StateTtl", least=1, **units)
        self.__attrs_init__(total, TimeDomain(time_domain), UpdateType(update), StateVisibility(visibility))


def ttl_of(ttl: StateTtl | timedelta | None) -> StateTtl | None:
    """Return the time to live of a parameter ``ttl``, which may be the duration alone.

    Raises:
        StateDefinitionError: It is neither a `StateTtl` nor a `timedelta`.
    """
    if ttl is None or isinstance(ttl, StateTtl):
        return ttl
    if not isinstance(ttl, timedelta):
        raise StateDefinitionError(f"ttl={ttl!r} is {type_of(ttl)}; give a keyed.StateTtl or a timedelta")
    return StateTtl(ttl)


def history_ttl(milliseconds: int) -> StateTtl:
    """Return the time to live of a version in event time, from the timestamp of the next one on. It may be 0."""
    ttl = StateTtl(1, time_domain=TimeDomain.EVENT_TIME)
    object.__setattr__(ttl, "milliseconds", milliseconds)
    return ttl
