"""The directory log: a changelog as files in a folder, on a local disk or on one that all machines share.

- `directory_changelog`: `DirectoryChangelog`, and the layout of the folder.
  `stored_changelog`: the base of it and of a changelog in an object store.
- `group_folder`: the folder of a key group, and its files.
- `segment_file`: the file of one or more commits, and its byte layout.
- `compaction`: many segments folded into one base.
- `disk`: operations on the disk, and the translation of their errors.
"""

from keyed.changelog.directory.directory_changelog import DirectoryChangelog

__all__ = ["DirectoryChangelog"]
