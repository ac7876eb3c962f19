"""Kafka, as sources, sinks and changelogs use it.

- `client`: clients, their settings, and the translation of their errors. `transactions`: a transactional producer.
  `topic_creation`: creation and check of topics.
- `kafka_source`: `keyed.KafkaSource`. `topics_reader`: the records of topics by partition, as they come or for a merge
  by time, for it and for scripts.
"""
