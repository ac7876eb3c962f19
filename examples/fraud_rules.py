"""Payments checked against rules that change while the job runs, and against a pattern.

python -m examples.fraud_rules
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import keyed
from keyed.patterns import Pattern

LIMITS = keyed.MapState(str, float, name="limits")
PAYMENTS: list[Any] = [
    [{"card": "c1", "time": 0, "amount": 20.0}, {"card": "c2", "time": 10_000, "amount": 900.0}],
    [{"card": "c1", "time": 60_000, "amount": 600.0}, {"card": "c3", "time": 70_000, "amount": 30.0}],
    [{"card": "c2", "time": 90_000, "amount": 700.0}, {"card": "c3", "time": 95_000, "amount": 800.0}],
]
RULES: list[Any] = [
    [{"rule": "large", "limit": 1000.0}],
    [{"rule": "large", "limit": 500.0}],
    [{"rule": "large", "limit": None}, {"rule": "huge", "limit": 750.0}],
]


class FraudRules(keyed.KeyedBroadcastProcessFunction):
    """Reports payments above the limit of a rule, and earlier ones when a rule is added or changed."""

    largest = keyed.ValueState(float, default=0.0)

    def process_element(self, payment: Any, ctx: keyed.Context) -> Iterable[tuple[str, str, float]]:
        """Check a payment against all rules."""
        self.largest.update(max(self.largest.value(), payment.amount))
        for rule, limit in ctx.get_broadcast_state(LIMITS).items():
            if payment.amount > limit:
                yield payment.card, rule, payment.amount

    def process_broadcast_element(self, change: Any, ctx: keyed.BroadcastContext) -> None:
        """Store a rule, and check the largest payment of every card against it."""
        limits = ctx.get_broadcast_state(LIMITS)
        if change.limit is None:
            limits.remove(change.rule)
            return
        limits.put(change.rule, change.limit)

        def check(card: str, largest: keyed.ValueState[float]) -> None:
            amount = largest.value()
            if amount > change.limit:
                ctx.collect((card, change.rule, amount))

        ctx.apply_to_keyed_state(self.largest, check)


def alerts(payments: Any, rules: Any, **options: Any) -> keyed.Output:
    """Return the job."""
    changes = keyed.stream(rules).broadcast(LIMITS)
    columns = "card string, rule string, amount double"
    return (
        keyed.stream(payments).key_by("card").connect(changes).process(FraudRules(), columns, name="fraud", **options)
    )


#: A small payment tries a stolen card out, and a large one follows.
PROBED = (
    Pattern.begin("probe", where=lambda payment: payment.amount < 50)
    .followed_by("large", where=lambda payment, match: payment.amount > 10 * match["probe"][0].amount)
    .within(minutes=10)
)


def probed(payments: Any, **options: Any) -> keyed.Output:
    """Return the job that finds the pattern."""
    matches = keyed.stream(payments, timestamp="time").key_by("card").match(PROBED)
    columns = "card string, rule string, amount double"
    return matches.select(
        lambda match: (match["large"][0].card, "probed", match["large"][0].amount), output=columns, **options
    )


def in_batches(parts: list[Any]) -> Iterator[Any]:
    """Yield elements as a source that pauses between parts: each batch reads one part."""
    for part in parts:
        yield from part
        yield keyed.PAUSE


def main() -> None:
    """Run the jobs and print their results."""
    for job in (alerts(in_batches(PAYMENTS), in_batches(RULES), parallelism=2), probed(in_batches(PAYMENTS))):
        for row in job.run().values:
            print(row.card, row.rule, row.amount)


if __name__ == "__main__":
    main()
