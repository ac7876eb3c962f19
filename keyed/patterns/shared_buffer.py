"""The rows of partial matches, which share what they have in common (Flink's ``SharedBuffer``).

Each row is kept once, under a number that ascends. A *node* is a row that a step has taken: the step, the row, the node
before it, and how many partial matches and later nodes point to it. Nodes form a tree, so a node determines all rows of
a match. A row that several nodes hold has the number of them in ``uses``.
"""

from __future__ import annotations

from typing import Any

from keyed import MapState

Node = tuple[str, int, int | None, int]


class SharedBuffer:
    """The buffer of a key.

    Args:
        rows: The rows by number.
        nodes: The nodes by number.
        uses: The number of nodes of each row that has more than one.
    """

    def __init__(self, rows: MapState[int, Any], nodes: MapState[int, Node], uses: MapState[int, int]) -> None:
        self._rows = rows
        self._nodes = nodes
        self._uses = uses

    def keep(self, number: int, row: Any, uses: int) -> None:
        """Keep a row for a number of nodes."""
        self._rows.put(number, row)
        if uses > 1:
            self._uses.put(number, uses)

    def add(self, node: int, step: str, row: int, before: int | None, references: int) -> None:
        """Add a node; the caller counts it as a reference to the node before it."""
        self._nodes.put(node, (step, row, before, references))

    def refer(self, node: int, more: int) -> None:
        """Add references to a node, or remove them: without any it is removed."""
        following: int | None = node
        while following is not None and more:
            step, row, before, references = self._nodes[following]
            if references + more > 0:
                self._nodes.put(following, (step, row, before, references + more))
                return
            self._nodes.remove(following)
            uses = self._uses.get(row, 1)
            if uses == 1:
                self._rows.remove(row)
            elif uses == 2:
                self._uses.remove(row)
            else:
                self._uses.put(row, uses - 1)
            following, more = before, -1

    def path(self, node: int) -> list[tuple[str, int]]:
        """Return the steps and numbers of the rows of a match."""
        path: list[tuple[str, int]] = []
        following: int | None = node
        while following is not None:
            step, row, following, _ = self._nodes[following]
            path.append((step, row))
        path.reverse()
        return path

    def rows(self, node: int | None) -> dict[str, list[Any]]:
        """Return the rows of a match by step."""
        rows: dict[str, list[Any]] = {}
        for step, number in () if node is None else self.path(node):
            rows.setdefault(step, []).append(self._rows[number])
        return rows
