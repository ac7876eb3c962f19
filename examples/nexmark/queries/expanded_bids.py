"""q3, q20, q23: joins whose sides stay forever, as interval joins without a bound that matters."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import keyed
from examples.nexmark.events import Events
from keyed.joins import IntervalJoin, Select

_EVER = timedelta(days=36_500)
_ITEM = (
    "itemName string, description string, initialBid bigint, reserve bigint, auction_dateTime timestamp_ntz, "
    "expires timestamp_ntz, seller bigint, category bigint, auction_extra string"
)
_ITEM_COLUMNS = (
    "itemName",
    "description",
    "initialBid",
    "reserve",
    "dateTime",
    "expires",
    "seller",
    "category",
    "extra",
)
_PERSON_COLUMNS = ("id", "name", "emailAddress", "creditCard", "city", "state", "extra")


def _join(join: Any) -> IntervalJoin:
    return IntervalJoin(join, lower=-_EVER, upper=_EVER)


def q3(events: Events) -> keyed.Output:
    """Return the sellers in three states of auctions of category 10, with the auction."""
    people = events.people("id", "name", "city", "state", states=("OR", "ID", "CA"))
    both = people.connect(events.auctions("id", "seller", category=10)).key_by("id", "seller")
    return both.process(
        _join(Select(("name", "city", "state"), ("id",))), output="name string, city string, state string, id bigint"
    )


def q20(events: Events) -> keyed.Output:
    """Return the bids for auctions of category 10 with all columns of both."""
    columns = ("auction", "bidder", "price", "channel", "url", "dateTime", "extra")
    bids = events.bids(*columns)
    both = bids.connect(events.auctions("id", *_ITEM_COLUMNS, category=10)).key_by("auction", "id")
    bid = "auction bigint, bidder bigint, price bigint, channel string, url string, bid_dateTime timestamp_ntz"
    expanded = _join(Select(columns, _ITEM_COLUMNS))
    return both.process(expanded, output=f"{bid}, bid_extra string, {_ITEM}")


def q23(events: Events) -> keyed.Output:
    """Return the bids with their bidder and each auction that this person sells."""
    columns = ("bidder", "price", "channel", "url", "extra")
    bid = "bidder bigint, price bigint, channel string, url string, bid_extra string"
    person = "person_id bigint, name string, emailAddress string, creditCard string, city string, state string"
    names = [each.split()[0] for each in f"{bid}, {person}, person_extra".split(", ")]
    bidders = events.bids(*columns).connect(events.people(*_PERSON_COLUMNS)).key_by("bidder", "id")
    with_bidder = _join(Select(columns, _PERSON_COLUMNS))
    bids_of_people = bidders.process(with_bidder, output=f"{bid}, {person}, person_extra string", name="bidders")
    items = bids_of_people.connect(events.auctions(*_ITEM_COLUMNS)).key_by("person_id", "seller")
    with_item = _join(Select(names, _ITEM_COLUMNS))
    return items.process(with_item, output=f"{bid}, {person}, person_extra string, {_ITEM}", name="items")
