"""Kafka, as sources, sinks and changelogs use it.

- `client`: clients, their settings, the translation of their errors, the creation of topics, and a transactional
  producer.
- `kafka_source`: `keyed.KafkaSource`, the records of topics, for streams and for scripts.
"""
