"""q0, q1, q2, q14, q21, q22: each bid by itself, as functions over whole columns without state."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

import keyed
from examples.nexmark.columns import BID, Columns, euros, pc, with_columns
from examples.nexmark.events import Events

_CHANNELS = pa.array(["apple", "google", "facebook", "baidu"])


def q0(events: Events) -> keyed.Output:
    """Return every bid."""
    return _each(events, lambda bids: bids, f"{BID}, dateTime timestamp_ntz, extra string", "extra")


def q1(events: Events) -> keyed.Output:
    """Return every bid with its price in euros."""
    output = "auction bigint, bidder bigint, price decimal(23,3), dateTime timestamp_ntz, extra string"
    return _each(events, lambda bids: with_columns(bids, price=euros(bids["price"])), output, "extra")


def q2(events: Events) -> keyed.Output:
    """Return the bids for some auctions."""

    def every_123rd(bids: pa.Table) -> pa.Table:
        return bids.filter(pa.array(bids["auction"].to_numpy() % 123 == 0))

    return _each(events, every_123rd, "auction bigint, price bigint")


def q14(events: Events) -> keyed.Output:
    """Return the bids of a range of prices with the kind of their hour and the number of "c" in `extra`."""

    def described(bids: pa.Table) -> pa.Table:
        thousandths = pc.multiply(bids["price"], 908)
        bids = bids.filter(pc.and_(pc.greater(thousandths, 1_000_000_000), pc.less(thousandths, 50_000_000_000)))
        hour = pc.hour(bids["dateTime"])
        is_day = pc.and_(pc.greater_equal(hour, 8), pc.less_equal(hour, 18))
        is_night = pc.or_(pc.less_equal(hour, 6), pc.greater_equal(hour, 20))
        kind = pc.if_else(is_day, "dayTime", pc.if_else(is_night, "nightTime", "otherTime"))
        count = pc.count_substring(bids["extra"], "c").cast(pa.int64())
        return with_columns(bids, price=euros(bids["price"]), bidTimeType=kind, c_counts=count)

    output = "auction bigint, bidder bigint, price decimal(23,3), bidTimeType string, dateTime timestamp_ntz"
    return _each(events, described, f"{output}, extra string, c_counts bigint", "extra")


def q21(events: Events) -> keyed.Output:
    """Return the bids with an id of their channel: by its name, or from the address."""

    def with_id(bids: pa.Table) -> pa.Table:
        by_name = pc.index_in(pc.utf8_lower(bids["channel"]), _CHANNELS).cast(pa.string())
        in_url = pc.struct_field(pc.extract_regex(bids["url"], r"(?:&|^)channel_id=(?P<id>[^&]*)"), "id")
        id_ = pc.coalesce(by_name, in_url)
        return with_columns(bids, channel_id=id_).filter(pc.is_valid(id_))

    return _each(events, with_id, f"{BID}, channel string, channel_id string", "channel", "url")


def q22(events: Events) -> keyed.Output:
    """Return the bids with the first three directories of their address."""

    def with_folders(bids: pa.Table) -> pa.Table:
        pattern = r"^[^/]*//[^/]*/(?P<a>[^/]*)/(?P<b>[^/]*)/(?P<c>[^/]*)"
        dirs = pc.extract_regex(bids["url"], pattern)
        return with_columns(bids, **{f"dir{n}": pc.struct_field(dirs, name) for n, name in enumerate("abc", start=1)})

    return _each(
        events, with_folders, f"{BID}, channel string, dir1 string, dir2 string, dir3 string", "channel", "url"
    )


def _each(events: Events, function: Callable[[pa.Table], pa.Table], output: str, *more: str) -> keyed.Output:
    """Return the output of a function without state, over the bids with some more columns."""
    bids = events.bids("auction", "bidder", "price", *more).key_by("auction")
    return bids.process(Columns(function), output=output, order="arrival")
