"""The generator: a reproducible stream of people, auctions and bids as Parquet files.

Of 50 consecutive events the first is a person, the next three are auctions and 46 are bids. Events are drawn in chunks
of whole columns, and each chunk has its own random generator, so the same seed gives the same events in any number
of files. The distributions are those of Nexmark's ``GeneratorConfig``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from examples.nexmark.columns import array, pc
from examples.nexmark.nexmark_errors import NexmarkError

PERSON, AUCTION, BID = 0, 1, 2
#: Time of the first event, in milliseconds since the epoch: 2015-07-15T00:00:00 UTC.
BASE_TIME = 1_436_918_400_000
FIRST_ID = 1000
FIRST_CATEGORY = 10
#: Events of one round, and the people and auctions at its start.
TURN, PEOPLE, AUCTIONS = 50, 1, 3
SIDE_INPUT = "side_input.csv"
SIDE_ROWS = 10_000

_TIME = pa.timestamp("ms")
_FIELDS: dict[str, Any] = {
    "person": {"id": pa.int64()}
    | dict.fromkeys(("name", "emailAddress", "creditCard", "city", "state"), pa.string())
    | {"dateTime": _TIME, "extra": pa.string()},
    "auction": {"id": pa.int64(), "itemName": pa.string(), "description": pa.string()}
    | {"initialBid": pa.int64(), "reserve": pa.int64(), "dateTime": _TIME, "expires": _TIME}
    | {"seller": pa.int64(), "category": pa.int64(), "extra": pa.string()},
    "bid": {"auction": pa.int64(), "bidder": pa.int64(), "price": pa.int64(), "channel": pa.string()}
    | {"url": pa.string(), "dateTime": _TIME, "extra": pa.string()},
}
#: Columns of the events.
SCHEMA = pa.schema(
    {"event_type": pa.int32()}
    | {name: pa.struct(list(fields.items())) for name, fields in _FIELDS.items()}
    | {"dateTime": _TIME}
)

_CHUNK = 400 * TURN
_EVENTS_PER_FILE = 100_000
_HOT = 100  # hot ids are multiples of it
_ACTIVE_PEOPLE, _IN_FLIGHT, _LEAD = 1000, 100, 10
_CHANNELS = 10_000
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_FIRST = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent"),
    "Cheyenne",
)
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")

Ints = npt.NDArray[np.int64]


@attrs.frozen
class Generator:
    """A stream of events.

    Attributes:
        events: Number of events.
        rate: Events a second of event time.
        seed: Seed of all random choices.
        disorder_ms: Milliseconds by which an event may follow one with a later time; 0 for events in order.

    Raises:
        NexmarkError: A parameter is out of range.
    """

    events: int
    rate: int = 10_000
    seed: int = 0
    disorder_ms: int = 0

    def __attrs_post_init__(self) -> None:
        least = {"events": 1, "rate": 1, "seed": 0, "disorder_ms": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise NexmarkError(f"{name}={getattr(self, name)} must be at least {bound}")

    def tables(self) -> Iterator[pa.Table]:
        """Yield the events in the order in which they arrive, in tables of about 20,000."""
        waiting: pa.Table | None = None
        for first in range(0, self.events, _CHUNK):
            numbers = np.arange(first, min(first + _CHUNK, self.events), dtype=np.int64)
            rng = np.random.default_rng([self.seed, first // _CHUNK])
            table = _events(self, numbers, rng)
            if not self.disorder_ms:
                yield table
                continue
            delays = rng.integers(0, self.disorder_ms + 1, len(numbers))
            table = table.append_column("arrival", array(self.times(numbers) + delays))
            waiting = table if waiting is None else pa.concat_tables([waiting, table])
            waiting = waiting.take(array(np.argsort(waiting["arrival"].to_numpy(), kind="stable")))
            following = int(self.times(numbers[-1:] + 1)[0])
            done = int(np.searchsorted(waiting["arrival"].to_numpy(), following))
            yield waiting.slice(0, done).drop_columns(["arrival"])
            waiting = waiting.slice(done)
        if waiting is not None:
            yield waiting.drop_columns(["arrival"])

    def times(self, numbers: Ints) -> Ints:
        """Return the times of events in milliseconds since the epoch."""
        times: Ints = BASE_TIME + numbers * 1_000_000 // self.rate // 1000
        return times

    def write(self, folder: Path, files: int | None = None) -> None:
        """Write the events and the side input.

        Args:
            folder: A folder that is empty or does not exist.
            files: Number of Parquet files of equal size; by default one for 100,000 events.

        Raises:
            NexmarkError: The folder has files, or the number of files is below 1 or above that of events.
        """
        files = -(-self.events // _EVENTS_PER_FILE) if files is None else files
        if not 1 <= files <= self.events:
            raise NexmarkError(f"files={files} must be from 1 to the number of events, {self.events}")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise NexmarkError(f"{folder} exists and is not an empty folder; give another one, or remove it")
        folder.mkdir(parents=True, exist_ok=True)
        sizes = np.diff(np.arange(files + 1) * self.events // files)
        tables = self.tables()
        left = SCHEMA.empty_table()
        for number, size in enumerate(sizes):
            parts = [left]
            while sum(part.num_rows for part in parts) < size:
                parts.append(next(tables))
            table = pa.concat_tables(parts)
            unfinished = folder / ".unfinished"
            pq.write_table(table.slice(0, size), unfinished)
            unfinished.rename(folder / f"events-{number:05d}.parquet")
            left = table.slice(size)
        rows = "".join(f"{key},value-{key}\n" for key in range(SIDE_ROWS))
        (folder / SIDE_INPUT).write_text(f"key,value\n{rows}")


def _events(generator: Generator, numbers: Ints, rng: np.random.Generator) -> pa.Table:
    """Return events, the structs of other types null."""
    place = numbers % TURN
    types = np.where(place < PEOPLE, PERSON, np.where(place < PEOPLE + AUCTIONS, AUCTION, BID))
    times = generator.times(numbers)
    columns: list[Any] = [array(types, pa.int32())]
    for type_, (name, of) in enumerate((("person", _people), ("auction", _auctions), ("bid", _bids))):
        is_type = types == type_
        values = of(generator, numbers[is_type], rng) | {"dateTime": array(times[is_type], _TIME)}
        fields = [values[field] for field in _FIELDS[name]]
        rows = pa.StructArray.from_arrays(fields, fields=list(SCHEMA.field(name).type))
        index = np.cumsum(is_type) - 1
        columns.append(rows.take(array(index, mask=~is_type)))
    return pa.table([*columns, array(times, _TIME)], schema=SCHEMA)


def _last_person(numbers: Ints) -> Ints:
    return FIRST_ID + numbers // TURN


def _last_auction(numbers: Ints) -> Ints:
    turn, place = np.divmod(numbers, TURN)
    before = np.where(place == 0, (turn - 1) * AUCTIONS + AUCTIONS - 1, 0)
    inside = turn * AUCTIONS + np.clip(place, PEOPLE, AUCTIONS) - PEOPLE
    return FIRST_ID + np.maximum(np.where(place == 0, before, inside), 0)


def _some_person(numbers: Ints, rng: np.random.Generator) -> Ints:
    """Return active people, or some that will register soon."""
    last = _last_person(numbers)
    active = np.minimum(last - FIRST_ID + 1, _ACTIVE_PEOPLE)
    return last + 1 - active + rng.integers(0, active + _LEAD)


def _people(_: Generator, numbers: Ints, rng: np.random.Generator) -> dict[str, Any]:
    count = len(numbers)
    names = _joined(_sampled(_FIRST, rng, count), " ", _sampled(_LAST, rng, count))
    mails = _joined(_letters(rng, np.full(count, 7)), "@", _letters(rng, np.full(count, 5)), ".com")
    digits = rng.integers(0, 10_000, (count, 4)).astype("U4")
    cards = [array(np.char.zfill(digits[:, each], 4).astype(object), pa.string()) for each in range(4)]
    return {
        "id": array(_last_person(numbers)),
        "name": names,
        "emailAddress": mails,
        "creditCard": _joined(cards[0], " ", cards[1], " ", cards[2], " ", cards[3]),
        "city": _sampled(_CITIES, rng, count),
        "state": _sampled(_STATES, rng, count),
        "extra": _padding(rng, count, 200 - 70),
    }


def _auctions(generator: Generator, numbers: Ints, rng: np.random.Generator) -> dict[str, Any]:
    count = len(numbers)
    times = generator.times(numbers)
    horizon = generator.times(numbers + _IN_FLIGHT * TURN // AUCTIONS) - times
    first = _prices(rng, count)
    hot = _last_person(numbers) // _HOT * _HOT
    return {
        "id": array(_last_auction(numbers)),
        "itemName": _letters(rng, np.full(count, 20)),
        "description": _letters(rng, np.full(count, 100)),
        "initialBid": array(first),
        "reserve": array(first + _prices(rng, count)),
        "expires": array(times + 1 + rng.integers(0, np.maximum(2 * horizon, 1)), _TIME),
        "seller": array(np.where(rng.random(count) < 0.75, hot, _some_person(numbers, rng))),
        "category": array(FIRST_CATEGORY + rng.integers(0, 5, count)),
        "extra": _padding(rng, count, 500 - 180),
    }


def _bids(generator: Generator, numbers: Ints, rng: np.random.Generator) -> dict[str, Any]:
    count = len(numbers)
    last = _last_auction(numbers)
    least = np.maximum(last - _IN_FLIGHT, FIRST_ID)
    in_flight = least + rng.integers(0, last - least + 1 + _LEAD)
    hot_bidder = _last_person(numbers) // _HOT * _HOT + 1
    channels, urls = _channels(generator.seed)
    is_hot = rng.random(count) < 0.5
    channel = np.where(is_hot, rng.integers(0, len(_HOT_CHANNELS), count), 0)
    channel = np.where(is_hot, channel, len(_HOT_CHANNELS) + rng.integers(0, _CHANNELS, count))
    return {
        "auction": array(np.where(rng.random(count) < 0.5, last // _HOT * _HOT, in_flight)),
        "bidder": array(np.where(rng.random(count) < 0.75, hot_bidder, _some_person(numbers, rng))),
        "price": array(_prices(rng, count)),
        "channel": channels.take(array(channel)),
        "url": urls.take(array(channel)),
        "extra": _padding(rng, count, 100 - 32),
    }


@lru_cache(maxsize=1)
def _channels(seed: int) -> tuple[Any, Any]:
    """Return the names of all channels, the hot ones first, and their addresses."""
    rng = np.random.default_rng(seed)
    count = len(_HOT_CHANNELS) + _CHANNELS
    folders = [_letters(rng, np.full(count, 5)) for _ in range(3)]
    base = _joined("https://www.nexmark.com/", folders[0], "/", folders[1], "/", folders[2], "/item.htm?query=1")
    has_id = rng.random(count) < 0.9
    has_id[: len(_HOT_CHANNELS)] = False
    ids = rng.integers(0, 2**31, count)
    suffix = array([f"&channel_id={id_}" if has else "" for id_, has in zip(ids, has_id, strict=True)])
    names = array([*_HOT_CHANNELS, *(f"channel-{number}" for number in range(_CHANNELS))])
    return names, _joined(base, suffix)


def _prices(rng: np.random.Generator, count: int) -> Ints:
    return np.round(10 ** (6 * rng.random(count)) * 100).astype(np.int64)


def _padding(rng: np.random.Generator, count: int, length: int) -> Any:
    """Return texts of about a length, at most a fifth more or less."""
    fifth = length // 5
    return _letters(rng, length + rng.integers(-fifth, fifth + 1, count))


def _letters(rng: np.random.Generator, lengths: Ints) -> Any:
    """Return texts of random lower-case letters."""
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    letters = rng.integers(97, 123, ends[-1], dtype=np.uint8)
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(ends.tobytes()), pa.py_buffer(letters.tobytes()))


def _sampled(values: tuple[str, ...], rng: np.random.Generator, count: int) -> Any:
    return array(values).take(array(rng.integers(0, len(values), count)))


def _joined(*parts: Any) -> Any:
    return pc.binary_join_element_wise(*parts, "")
