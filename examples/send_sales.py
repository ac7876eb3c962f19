"""Sends the sales that `examples.top_n` generates to a Kafka topic, as JSON: ``{"product": ..., "at": ...}``.

Run it with ``python -m examples.send_sales --help``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from confluent_kafka import KafkaException, Producer

from examples.top_n.datasets import Sales


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    result = argparse.ArgumentParser(prog="python -m examples.send_sales", description=__doc__, allow_abbrev=False)
    result.add_argument("--bootstrap", required=True, metavar="HOST:PORT", help="brokers, separated by commas")
    result.add_argument("--topic", default="sales", help="the topic (default: %(default)s)")
    result.add_argument("--rows", type=int, default=100_000, help="number of sales (default: %(default)s)")
    result.add_argument("--seed", type=int, default=1, help="seed of the generator (default: %(default)s)")
    result.add_argument("--a-second", type=float, default=1_000, help="number per second (default: %(default)s)")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Send the sales.

    Args:
        arguments: The command line, without the program's name.

    Returns:
        The exit status: 0, or 1 if the brokers do not accept them.
    """
    options = parser().parse_args(arguments)
    (sales,) = (chunk.rows for chunk in Sales(options.rows, options.seed).chunks())
    producer = Producer({"bootstrap.servers": options.bootstrap})
    began = time.monotonic()
    try:
        for batch in sales.to_batches(max_chunksize=100):
            for row in batch.to_pylist():
                sale = {"product": row["item"], "at": row["event_time"].isoformat()}
                producer.produce(options.topic, json.dumps(sale).encode())
            began += batch.num_rows / options.a_second
            producer.poll(max(0.0, began - time.monotonic()))
        left = producer.flush(60)
    except (BufferError, KafkaException) as error:
        print(f"send_sales: {options.bootstrap}: {error}", file=sys.stderr)
        return 1
    if left:
        print(f"send_sales: {options.bootstrap} did not accept {left:,} of {options.rows:,} sales", file=sys.stderr)
    return int(left > 0)


if __name__ == "__main__":
    sys.exit(main())
