"""The Kafka log: a changelog as a compacted topic.

- `kafka_changelog`: `KafkaChangelog`. `topic`: creates or checks the topic, and writes the headers.
- `kafka_records`: what the topic holds, and its bytes. `kafka_fold`: records made into blocks, or folded into a state.
- `kafka_writer`, `kafka_reader`: of a key group's log. `positions`: what runners remember.
- `client`: Kafka's clients, their settings, and what their errors become. `transactions`: a producer of transactions.
"""

from keyed.changelog.kafka.kafka_changelog import KafkaChangelog

__all__ = ["KafkaChangelog"]
