"""What local stores implement, and what the engine may rely on.

A *local store* is a disposable cache of the committed entries of one key group of one operator; the group's log is the
truth. A store only ever applies what is committed, together with its position in the log, so it can be behind the log
but never ahead of it, and losing it loses nothing.

The protocol `LocalStore` is the engine's; entries and addresses are laid out in `keyed.content.addresses`. Beyond the
signatures every store keeps these rules, and `keyed.testing.store_conformance` holds the tests for them:

- ``apply`` applies all changes and moves the position, or neither. A later change of an address wins; removing what is
  not there is no error. When it raises, the store is as before, or empty.
- ``scan`` and ``due`` are lazy and cost in proportion to what is taken from them, not to what the store holds. ``due``
  is ordered by (time, prefix, sub), ``scan`` by sub; ``items`` comes in any order.
- Iterators are good until the next ``apply``, ``reset`` or ``close``. A store is used by one thread at a time.
- ``reset`` drops everything, and ``position`` is ``None`` after it. ``close`` may be called again.
- What cannot be read or written raises `LocalStoreError`, never gives a wrong value. The engine then resets the store,
  or opens another one, and rebuilds it from the log.
"""

from __future__ import annotations

from keyed.content.blocks import Change
from keyed.content.local_store import LocalStore
from keyed.engine.group_log import GroupLog

__all__ = ["Change", "GroupLog", "LocalStore"]
