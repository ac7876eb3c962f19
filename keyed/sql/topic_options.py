"""Options of ``WITH`` that concern an input: its topic, how a new one is created, and for how long it may be silent."""

from __future__ import annotations

from typing import Any

import attrs

from keyed.base.shown import shown
from keyed.expressions.sql_text import Text
from keyed.sql.statements import duration_ms

_POLICIES = ("compact", "delete", "compact,delete")
#: The lowest and highest numbers that are taken. Kafka keeps records for ever with a retention of -1.
_BOUNDS = {"PARTITIONS": (1, 100_000), "REPLICAS": (1, 2**15 - 1), "RETENTION_MS": (-1, 2**63 - 1)}


@attrs.frozen
class TopicOptions:
    """The topic of a stream or table.

    Attributes:
        is_named: The statement names it.
        partitions: Partitions of a new topic; ``None`` if the statement has none.
        replicas: Replicas of a new topic; ``None`` for the broker's default.
        retention_ms: Time for which a new topic keeps records; ``None`` for the broker's default.
        cleanup_policy: Its policy of cleaning; ``None`` for that of its kind.
        idle_ms: Silence after which the input does not hold the watermark back; ``None`` for never.
    """

    is_named: bool = False
    partitions: int | None = None
    replicas: int | None = None
    retention_ms: int | None = None
    cleanup_policy: str | None = None
    idle_ms: int | None = None


def topic_options(text: Text, options: dict[str, Any]) -> TopicOptions:
    """Return the options of a statement that concern its topic.

    Raises:
        SqlError: One is out of its range.
    """
    found: dict[str, int] = {}
    for name, (least, most) in _BOUNDS.items():
        if name not in options:
            continue
        given, at = options[name].value, options[name].at
        number = int(given) if isinstance(given, str) and given.isascii() and given.isdigit() else given
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            text.fail(f"{name}={shown(given)} must be a number from {least} to {most}", at)
        found[name] = number
    policy = None
    if "CLEANUP_POLICY" in options:
        given, at = options["CLEANUP_POLICY"].value, options["CLEANUP_POLICY"].at
        policy = str(given).lower().replace(" ", "")
        if policy not in _POLICIES:
            text.fail(f"CLEANUP_POLICY={shown(given)} must be 'delete', 'compact' or 'compact,delete'", at)
    return TopicOptions(
        "KAFKA_TOPIC" in options,
        found.get("PARTITIONS"),
        found.get("REPLICAS"),
        found.get("RETENTION_MS"),
        policy,
        time_option(text, options, "IDLE_TIMEOUT"),
    )


def time_option(text: Text, options: dict[str, Any], name: str) -> int | None:
    """Return the milliseconds of an option such as ``'30 SECONDS'``; ``None`` without it.

    Raises:
        SqlError: It is no time above 0.
    """
    if name not in options:
        return None
    given = options[name].value
    count, _, unit = str(given).strip().partition(" ")
    length = duration_ms(count, unit)
    if not length:
        text.fail(f"{name}={shown(given)} is no time; write it as '30 SECONDS'", options[name].at)
    return length
