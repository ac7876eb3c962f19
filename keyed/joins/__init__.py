"""Joins: library code on the public names of `keyed`, as a third party could write it.

- `lookups`: rows enriched by an external function, which is asked for many keys at once. `async_lookup`: such a
  function whose calls run beside one another.
"""

from keyed.joins.async_lookup import AsyncLookup
from keyed.joins.lookups import LookupJoin, lookup_join

__all__ = ["AsyncLookup", "LookupJoin", "lookup_join"]
