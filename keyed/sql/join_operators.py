"""The joins of scripts: those of `keyed.joins` over columns."""

from __future__ import annotations

from collections.abc import Sequence

from keyed.expressions.engine import Columns
from keyed.extending import Schema
from keyed.joins.join_path import JoinPlan, Side
from keyed.joins.pairs import Pairing
from keyed.joins.select import Select
from keyed.joins.stream_join import StreamStreamJoin
from keyed.joins.table_columns import ChangeColumns, TableJoinColumns
from keyed.sql.catalog import CHANGE, PLACE, STREAM
from keyed.sql.planner import DAY_MS, JOIN, SourceJoin
from keyed.sql.sql_operators import schema_of
from keyed.vectorized import VectorizedCoFunction

#: The column that is not 0 in a row without a key: the number of its side, so that it has no partner.
NO_KEY = "#no_key"


def join_of(
    join: SourceJoin, left: Columns, right: Columns, left_keys: Sequence[str], *, has_places: bool
) -> VectorizedCoFunction:
    """Return the operator of a join.

    Args:
        join: The join.
        left: The columns of its left rows.
        right: The same of the right ones.
        left_keys: Of a join by a foreign key, the columns of the left rows' own key.
        has_places: Rows of streams have `PLACE`.
    """
    is_versions = join.kind == "stream-table"
    order = [STREAM, PLACE] if has_places else [STREAM]
    sides = []
    for columns in (left, right):
        more = order if is_versions and columns is left else []
        types = dict(schema_of(((JOIN, join.key), *columns), *more).columns)
        sides.append(Side({NO_KEY: "bigint", **types}, (NO_KEY, JOIN), (NO_KEY, JOIN)))
    either = [] if join.own_key is None else [join.own_key]
    names = [[name for name in side.columns if name not in (NO_KEY, JOIN, *either)] for side in sides]
    select = Select(names[0], names[1], either=either)
    known = sides[1].columns | sides[0].columns
    own = [(each, "bigint") for each in order] if join.kind == "stream-stream" else []
    output = Schema((*((name, known[name]) for name in (*either, *names[0], *names[1])), *own))
    plan = JoinPlan(f"{join.clause.kind} JOIN", sides, output, is_shown=False)
    pairs = Pairing(select, join.clause.kind.lower())
    if is_versions:
        return TableJoinColumns(plan, pairs, CHANGE, order=order)
    if join.kind == "stream-stream":
        assert join.clause.within is not None
        before, after, grace = join.clause.within
        grace = max(0, DAY_MS - before - after) if grace is None else grace
        return StreamStreamJoin(plan, pairs, order, before, after, grace)
    return ChangeColumns(plan, pairs, CHANGE, CHANGE, left_keys)
