"""Runs keyed functions on Spark Structured Streaming."""
