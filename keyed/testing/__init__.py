"""What users test their functions with: a harness with hand-driven clocks, conformance suites. Needs no pytest."""

from keyed.testing.harness import KeyedTestHarness, Record
from keyed.testing.memory_changelog import MemoryChangelog

__all__ = ["KeyedTestHarness", "MemoryChangelog", "Record"]
