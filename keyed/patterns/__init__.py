"""Patterns: sequences of rows of one key, with the names, defaults and results of Flink CEP.

```python
import keyed
from keyed.patterns import Pattern
from keyed.rows import row

payments = [row(card="A", amount=1, at=0), row(card="A", amount=900, at=60_000)]
stolen = (
    Pattern.begin("small", where=lambda row: row.amount < 10)
    .followed_by("large", where=lambda row, match: row.amount > 100 * match["small"][0].amount)
    .within(minutes=10)
)
matches = keyed.stream(payments, timestamp="at").key_by("card").match(stolen)
print(matches.select(lambda match: match["large"][0].amount).run().values)
```

```output
[900]
```

The modules:

- ``pattern``: the definition, `Pattern`, and ``stream.key_by(...).match(pattern)``; ``steps``: its data and rules, with
  the strategies after a match.
- ``pattern_conditions``: conditions of steps, and `Match`. ``column_conditions`` computes those over columns.
- ``automaton``: compiles a pattern, and determines what a row does to a partial match.
- ``pattern_operator``: the function that runs, the rows of partial matches in state, the functions that get matches.
"""

from keyed.patterns.pattern import Pattern
from keyed.patterns.pattern_conditions import Match, OverColumns
from keyed.patterns.pattern_operator import PatternProcessFunction
from keyed.patterns.steps import AfterMatchSkipStrategy

__all__ = [
    "AfterMatchSkipStrategy",
    "Match",
    "OverColumns",
    "Pattern",
    "PatternProcessFunction",
]
