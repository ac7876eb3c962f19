"""What the command line of pytest has chosen for the test kit. Everything else leaves it as it is."""

from __future__ import annotations

#: What chooses the examples of properties and the simulations; another one each time if ``None``.
seed: int | None = None
#: How many simulations are run; each caller's own number if ``None``.
simulations: int | None = None
