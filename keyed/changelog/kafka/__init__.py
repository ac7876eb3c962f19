"""The Kafka log: a changelog as a compacted topic.

- `kafka_changelog`: `KafkaChangelog`. `topic`: the headers of the topic.
- `kafka_records`: the records of the topic, and their byte layout. `kafka_fold`: conversion of records to blocks, or to
  a state.
- `kafka_writer`, `kafka_reader`: for a key group's log. `positions`: positions and named data of runners.
- `marked_writer`: transactions of a topic's records with a mark, for sinks and copies of tables.
"""

from keyed.changelog.kafka.kafka_changelog import KafkaChangelog

__all__ = ["KafkaChangelog"]
