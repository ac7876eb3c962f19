"""The queries by name, and a function that runs one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import attrs

import keyed
from examples.nexmark import results
from examples.nexmark.events import Events
from examples.nexmark.nexmark_errors import NexmarkError
from examples.nexmark.queries import (
    bid_counts,
    bid_files,
    bid_statistics,
    expanded_bids,
    per_bid,
    ranked_bids,
    side_table,
    window_joins,
    winning_bids,
)

Result = Literal["append", "final", "files"]


@attrs.frozen
class Query:
    """A query.

    Attributes:
        output: Returns the output of the query over events.
        summary: Its result in a few words.
        result: Rows that are only added, a final table by key, or partitioned files.
    """

    output: Callable[[Events], keyed.Output]
    summary: str
    result: Result = "append"


QUERIES = {
    "q0": Query(per_bid.q0, "every bid"),
    "q1": Query(per_bid.q1, "every bid, its price in euros"),
    "q2": Query(per_bid.q2, "the bids for every 123rd auction"),
    "q3": Query(expanded_bids.q3, "sellers of category 10 in three states, with their auctions"),
    "q4": Query(winning_bids.q4, "average winning price of each category", "final"),
    "q5": Query(bid_counts.q5, "auctions with the most bids of each 10 s, every 2 s"),
    "q6": Query(winning_bids.q6, "average winning price of the last eleven auctions of each seller", "final"),
    "q7": Query(window_joins.q7, "bids with the highest price of each 10 s"),
    "q8": Query(window_joins.q8, "people who registered and opened an auction in the same 10 s"),
    "q9": Query(winning_bids.q9, "each auction with its winning bid", "final"),
    "q10": Query(bid_files.q10, "every bid, in files by day and minute", "files"),
    "q11": Query(bid_counts.q11, "bids of each bidder and session"),
    "q12": Query(bid_counts.q12, "bids of each bidder and 10 s of processing time"),
    "q13": Query(side_table.q13, "bids with a value of a side table"),
    "q14": Query(per_bid.q14, "bids of a range of prices, with the kind of their hour"),
    "q15": Query(bid_statistics.q15, "bids, bidders and auctions of each day by range of prices", "final"),
    "q16": Query(bid_statistics.q16, "the same of each channel", "final"),
    "q17": Query(bid_statistics.q17, "bids and prices of each auction and day", "final"),
    "q18": Query(ranked_bids.q18, "last bid of each bidder for each auction", "final"),
    "q19": Query(ranked_bids.q19, "ten highest bids of each auction", "final"),
    "q20": Query(expanded_bids.q20, "bids for auctions of category 10, with the auction"),
    "q21": Query(per_bid.q21, "bids with an id of their channel"),
    "q22": Query(per_bid.q22, "bids with the directories of their address"),
    "q23": Query(expanded_bids.q23, "bids with their bidder and the auctions of this person"),
}


def run(
    name: str,
    source: Path,
    target: Path,
    *,
    spark: Any = None,
    checkpoint: Path | None = None,
    rows_per_batch: int = 100_000,
    on_progress: Callable[[keyed.Progress], object] | None = None,
) -> keyed.RunResult:
    """Run a query over a folder of events, to their end.

    Args:
        name: Name of the query.
        source: The folder of events.
        target: The folder of the results.
        spark: The Spark session; ``None`` for the local runtime.
        checkpoint: Folder for state and positions: a run that was stopped or killed is resumed from it.
        rows_per_batch: Rows of a micro-batch of each stream, in the local runtime. On Spark it is a file.
        on_progress: Called after each batch.

    Raises:
        NexmarkError: There is no such query, the source has no events, or the target has other files.
    """
    if name not in QUERIES:
        raise NexmarkError(f"{name!r} is not a query; there are {', '.join(QUERIES)}")
    query = QUERIES[name]
    output = query.output(Events(source, spark))
    results.claim(target, name, resumes=checkpoint is not None and checkpoint.exists())
    sink: Any = target
    if query.result == "final":
        sink = results.final_table(target, output)
    elif query.result == "files":
        sink = results.partitioned(target, output)
    with ExitStack() as temporary:
        if checkpoint is None and spark is not None:
            checkpoint = Path(temporary.enter_context(tempfile.TemporaryDirectory(prefix="nexmark-")))
        size = rows_per_batch if spark is None else None
        return output.run(sink, checkpoint=checkpoint, drain=True, rows_per_batch=size, on_progress=on_progress)
