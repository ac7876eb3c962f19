"""Changelogs: every committed state change of an operator, outside of the job, from which the job can be rebuilt.

- `model`: the protocols of a changelog for writers and readers.
- `records`: the records that are the same in all of them.
- `directory`: files in a folder. `kafka`: a topic.
"""

from keyed.changelog.directory import DirectoryChangelog
from keyed.changelog.kafka import KafkaChangelog
from keyed.changelog.model import Changelog

__all__ = ["Changelog", "DirectoryChangelog", "KafkaChangelog"]
