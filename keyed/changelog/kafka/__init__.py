"""The Kafka log: a changelog as a compacted topic.

- `kafka_changelog`: `KafkaChangelog`, with the positions and named data of runners.
- `kafka_records`: the records of the topic, their byte layout, and its headers.
- `kafka_group`: the writer and the reader of a key group's log.
- `marked_writer`: transactions of a topic's records with a mark, for sinks and copies of tables.
"""

from keyed.changelog.kafka.kafka_changelog import KafkaChangelog

__all__ = ["KafkaChangelog"]
