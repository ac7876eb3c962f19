"""The Kafka log: a changelog as a compacted topic.

- `changelog`: `KafkaChangelog`.
- `records`: what the topic holds, and its bytes.
- `topic`: creates or checks the topic, and writes the headers.
- `writer`, `reader`: of a key group's log. `positions`: what runners remember.
- `client`: Kafka's clients, their settings, and what their errors become.
"""

from keyed.changelog.kafka.kafka_changelog import KafkaChangelog

__all__ = ["KafkaChangelog"]
