"""Clicks on advertisements joined to the impressions of the five minutes before; impressions without a click too.

python -m examples.ad_clicks
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import keyed
from keyed.joins import IntervalJoin

MINUTE = 60_000
IMPRESSIONS = [
    {"ad": "shoes", "user": 1, "shown": 0 * MINUTE},
    {"ad": "shoes", "user": 2, "shown": 1 * MINUTE},
    {"ad": "hats", "user": 1, "shown": 2 * MINUTE},
    {"ad": "shoes", "user": 1, "shown": 8 * MINUTE},
]
CLICKS = [
    {"ad": "shoes", "user": 1, "clicked": 3 * MINUTE},
    {"ad": "shoes", "user": 2, "clicked": 7 * MINUTE},
    {"ad": "shoes", "user": 1, "clicked": 9 * MINUTE},
]


def attributed(impression: Any, click: Any) -> tuple[str, int, int, int | None]:
    """Return the row of an impression and the click that it led to."""
    return impression.ad, impression.user, impression.shown, None if click is None else click.clicked


def clicked(impressions: Any, clicks: Any) -> keyed.Output:
    """Return the job."""
    patient = keyed.bounded_out_of_orderness(seconds=30).with_idleness(timedelta(minutes=1))
    shown = keyed.stream(impressions, timestamp="shown", watermark=patient)
    followed = keyed.stream(clicks, timestamp="clicked", watermark=patient)
    join = IntervalJoin(attributed, lower=0, upper=timedelta(minutes=5), how="left")
    columns = "ad string, user bigint, shown bigint, clicked bigint"
    return shown.connect(followed).key_by(("ad", "user")).process(join, output=columns, name="clicked")


def main() -> None:
    """Run the job and print its results."""
    for row in clicked(IMPRESSIONS, CLICKS).run().values:
        print(row)


if __name__ == "__main__":
    main()
