"""The command ``replay``: prints the differences that a changed function makes over the batches of a job."""

from __future__ import annotations

import argparse
import sys
from bisect import bisect_left
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from keyed.base.arguments import type_of
from keyed.cli.command import CHANGELOG, Place, add_list, add_settings, changelog_of, check_place, command
from keyed.errors import DefinitionError
from keyed.job.functions import Function
from keyed.job.state import MapState
from keyed.job.watermarks import WatermarkStrategy

#: Places of rows: another job may have written them.
_ROWS = frozenset({Place.RECORD, Place.SINK, Place.FILE, Place.FOREIGN})

if TYPE_CHECKING:
    from keyed.base.sources import SeekableSource
    from keyed.testing import Recording


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("changelog", help=f"the job's changelog: {CHANGELOG}")
    parser.add_argument("function", metavar="MODULE:NAME", help="the job's function: its class, or an object")
    parser.add_argument("changed", metavar="MODULE:CHANGED", help="the changed function")
    parser.add_argument(
        "rows",
        help="folder of record=; or the rows that the job has read: a Parquet file or folder, a file of JSON lines, or "
        "MODULE:SOURCE, its source or a function that creates it",
    )
    parser.add_argument("--key", action="append", required=True, help="key column; may be given more than once")
    parser.add_argument("--key2", action="append", help="key column of the second side; may be given more than once")
    add_list(parser, "--broadcast", "MODULE:NAME", "descriptor of a broadcast state")
    parser.add_argument("--timestamp", help="column with the event time")
    parser.add_argument("--delay-ms", type=int, default=0, help="delay of the job's watermark in milliseconds (0)")
    parser.add_argument("--first", type=int, default=0, help="id of the first batch (0)")
    parser.add_argument("--last", type=int, help="id of the last batch; the newest by default")
    add_settings(parser)


@command(
    "Print the differences that a changed function makes over the batches of a job.",
    _add_replay,
    "changelogs/sales app:Sales app:NewSales sales.parquet --key shop --timestamp time",
    "changelogs/sales app:Sales app:NewSales records/sales --key shop",
    "changelogs/sales app:Sales app:NewSales app:sales_topic --key shop --timestamp time",
    "changelogs/priced app:Priced app:NewPriced records/priced --key shop --broadcast app:PRICES",
)
def _replay(arguments: argparse.Namespace) -> None:
    """Replay, and print the differences."""
    from keyed.testing import replay

    # Like `python -m`: functions are imported from the current directory.
    sys.path.insert(0, "")
    changelog = changelog_of(arguments.changelog, arguments)
    rows = _rows(arguments.rows)
    result = replay(
        changelog,
        _function(arguments.function),
        _function(arguments.changed),
        rows,
        key=arguments.key,
        key2=arguments.key2,
        timestamp=arguments.timestamp,
        watermark=WatermarkStrategy(arguments.delay_ms),
        broadcast=[_descriptor(name) for name in arguments.broadcast],
        first=arguments.first,
        last=arguments.last,
    )
    for line in result.lines:
        print(line)
    what = f"{len(result.lines)} lines differ" if result.lines else "nothing differs"
    print(f"batches {result.first} to {result.last}, {result.rows} rows: {what}")


def _function(name: str) -> Function:
    """Return the function that an argument names.

    Raises:
        DefinitionError: There is none.
    """
    named = _import_object(name, "function", "MODULE:NAME")
    function: Function = named() if isinstance(named, type) else named
    return function


def _descriptor(name: str) -> MapState[Any, Any]:
    """Return the descriptor of a broadcast state that an argument names.

    Raises:
        DefinitionError: There is none.
    """
    descriptor = _import_object(name, "descriptor of a broadcast state", "MODULE:NAME")
    if not isinstance(descriptor, MapState):
        raise DefinitionError(f"--broadcast {name!r} is {type_of(descriptor)}; give a MapState as MODULE:NAME")
    return descriptor


def _import_object(name: str, what: str, form: str) -> Any:
    """Return the object that an argument names.

    Raises:
        DefinitionError: There is none.
    """
    try:
        return resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise DefinitionError(f"{name!r} is not a {what}: {error}; give {form}") from error


def _rows(text: str) -> Recording | SeekableSource | list[dict[str, Any]]:
    """Return the recording in a folder, the rows of a file, or a source.

    Raises:
        DefinitionError: It does not exist.
    """
    import pyarrow as pa
    import pyarrow.json
    import pyarrow.parquet

    from keyed.testing import Recording

    path = Path(text)
    if ":" in text and not path.exists():
        named = _import_object(text, "source, and no file is there", "a file, the folder of record=, or MODULE:SOURCE")
        source: SeekableSource | list[dict[str, Any]] = named() if callable(named) else named
        return source
    check_place(
        text, _ROWS, "ROWS", "the folder of record=, a Parquet file or folder, a file of JSON lines, or MODULE:SOURCE"
    )
    with suppress(DefinitionError):
        return Recording(path)
    is_json = path.suffix in (".json", ".jsonl", ".ndjson")
    try:
        table = pa.json.read_json(path) if is_json else pa.parquet.read_table(path)
    except (OSError, pa.ArrowException) as error:
        # Arrow counts the rows of a block, not of the file.
        reason = str(error).partition(" in row ")[0]
        line = f", line {_bad_line(path.read_bytes())}" if isinstance(error, pa.ArrowInvalid) and is_json else ""
        raise DefinitionError(f"rows {text!r}{line} cannot be read: {reason}") from error
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _bad_line(data: bytes) -> int:
    """Return the number of the first line up to which JSON lines cannot be read."""
    import pyarrow as pa
    import pyarrow.json

    lines = data.split(b"\n")

    def fails(count: int) -> bool:
        part = b"\n".join(lines[:count])
        try:
            pa.json.read_json(BytesIO(part), pa.json.ReadOptions(block_size=len(part) + 1))
        except pa.ArrowInvalid:
            return not part.isspace() and bool(part)
        return False

    return bisect_left(range(len(lines)), True, key=fails)
