"""Kafka, as sources, sinks and changelogs use it.

- `client`: clients, their settings, and the translation of their errors. `transactions`: a transactional producer.
  `topic_creation`: creation and check of topics.
- `kafka_source`: `keyed.KafkaSource`. `fetching`: records of partitions, in order of their time or as they come.
  `topics_reader`: several topics by partition, for scripts.
"""
