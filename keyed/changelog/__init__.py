"""Changelogs: the committed state changes of an operator, outside of the job, from which the job can be rebuilt.

The modules:

- `model`: the protocols of a changelog for writers and readers, and the records that all changelogs share.
- `commit_fold`: the commits of key groups in order, checked, for all that build a state of them.
- `directory`: files in a folder. `kafka`: a topic. `objects`: objects in a bucket.
"""

from keyed.changelog.directory import DirectoryChangelog
from keyed.changelog.kafka import KafkaChangelog
from keyed.changelog.model import Changelog
from keyed.changelog.objects.object_changelog import ObjectStoreChangelog

__all__ = ["Changelog", "DirectoryChangelog", "KafkaChangelog", "ObjectStoreChangelog"]
