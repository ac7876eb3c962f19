"""Kafka, as sources, sinks and changelogs use it.

- `client`: clients, their settings, and the translation of their errors. `transactions`: a transactional producer.
  `topic_creation`: creation and check of topics.
- `kafka_source`: `keyed.KafkaSource`, the records of topics, for streams and for scripts.
"""
