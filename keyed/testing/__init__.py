"""What users test their functions with: a harness with hand-driven clocks, conformance suites. Needs no pytest."""

from keyed.testing.changelog import MemoryChangelog
from keyed.testing.harness import KeyedTestHarness, Record

__all__ = ["KeyedTestHarness", "MemoryChangelog", "Record"]
