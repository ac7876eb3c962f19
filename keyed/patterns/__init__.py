"""Patterns: sequences of rows of one key, for writers of jobs. Library code on the public names of `keyed`.

The modules:

- `pattern`: the definition, `Pattern`; `steps`: its data and rules; `after_match`: strategies after a match.
- `pattern_conditions`: conditions of steps, and `Match`. `column_conditions` computes those over columns.
- `automaton`: compiles a pattern, and determines what a row does to a partial match.
- `shared_buffer`: the rows of partial matches in state. `pattern_operator`: the function that runs.
- `pattern_stream`: ``stream.key_by(...).match(pattern)``; `pattern_functions`: the functions that get matches.
"""

from keyed.patterns.after_match import AfterMatchSkipStrategy
from keyed.patterns.pattern import Pattern
from keyed.patterns.pattern_conditions import Match, OverColumns
from keyed.patterns.pattern_functions import PatternContext, PatternProcessFunction
from keyed.patterns.pattern_operator import PartialMatch, PatternOperator
from keyed.patterns.pattern_stream import PatternStream

__all__ = [
    "AfterMatchSkipStrategy",
    "Match",
    "OverColumns",
    "PartialMatch",
    "Pattern",
    "PatternContext",
    "PatternOperator",
    "PatternProcessFunction",
    "PatternStream",
]
