"""The directory log: a changelog as files in a folder, on a local disk or on one that all machines share.

- `directory_changelog`: `DirectoryChangelog`, the layout of the folder, reader and writer of a key group's log.
  `stored_changelog`: the base of it and of a changelog in an object store.
- `group_folder`: the folder of a key group, its files, and the byte layout of the file of a commit.
- `compaction`: many segments folded into one base.
- `disk`: operations on the disk, and the translation of their errors.
"""

from keyed.changelog.directory.directory_changelog import DirectoryChangelog

__all__ = ["DirectoryChangelog"]
