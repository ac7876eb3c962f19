"""Options of ``WITH`` that are checked alone, and those of a topic: how a new one is created, how long it is silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from keyed.base.arguments import shown
from keyed.expressions.tokens import Text
from keyed.sql.statements import WithOptions, duration_ms


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

    @classmethod
    def of(cls, options: WithOptions) -> TopicOptions:
        """Return those of a statement, whose options are checked."""
        names = ("PARTITIONS", "REPLICAS", "RETENTION_MS", "CLEANUP_POLICY", "IDLE_TIMEOUT")
        return cls("KAFKA_TOPIC" in options, *map(options.get, names))


#: A function that returns a value in the form that is used, ``None`` if it does not fit; and what it has to be.
Rule = tuple[Callable[[Any], Any], str]


def _number(least: int, most: int) -> Rule:
    def read(value: Any) -> int | None:
        number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
        is_number = isinstance(number, int) and not isinstance(number, bool)
        return number if is_number and least <= number <= most else None

    return read, f"must be a number from {least} to {most}"


def _choice(*choices: str) -> Callable[[Any], str | None]:
    return lambda value: next((each for each in choices if each.upper() == str(value).upper().replace(" ", "")), None)


def _character(value: Any) -> str | None:
    character = {"TAB": "\t", "SPACE": " "}.get(str(value).upper(), value)
    return character if isinstance(character, str) and len(character) == 1 else None


def _time(value: Any) -> int | None:
    count, _, unit = str(value).strip().partition(" ")
    return duration_ms(count, unit) or None


_POLICIES = _choice("compact", "delete", "compact,delete")
_NULLS = _choice("OPTIONAL", "WRAPPER"), "must be 'OPTIONAL' or 'WRAPPER'"
#: The rules of options by name.
RULES: dict[str, Rule] = {
    "PARTITIONS": _number(1, 100_000),
    "REPLICAS": _number(1, 2**15 - 1),
    # Kafka keeps records for ever with a retention of -1.
    "RETENTION_MS": _number(-1, 2**63 - 1),
    "CLEANUP_POLICY": (_POLICIES, "must be 'delete', 'compact' or 'compact,delete'"),
    **dict.fromkeys(("IDLE_TIMEOUT", "WINDOW_SIZE"), (_time, "is not a duration; write it as '30 SECONDS'")),
    **dict.fromkeys(("KEY_DELIMITER", "VALUE_DELIMITER"), (_character, "must be one character, TAB or SPACE")),
    **{f"{part}_PROTOBUF_NULLABLE_REPRESENTATION": _NULLS for part in ("KEY", "VALUE")},
}


def check_options(text: Text, options: WithOptions) -> None:
    """Check options, and give them the form in which they are used.

    Raises:
        SqlError: One does not fit.
    """
    for name in options.keys() & RULES.keys():
        read, rule = RULES[name]
        value = read(options[name])
        if value is None:
            text.fail(f"{name}={shown(options[name])} {rule}", options.places[name])
        options[name] = value
