"""The directory log: a changelog as files in a folder, on a local disk or one that all machines share.

- `changelog`: `DirectoryChangelog`, and the layout of the folder.
- `segment`: the file of a commit, and its bytes.
- `group`: the folder of a key group, and what is in it.
- `writer`, `reader`: of a key group's log.
- `compaction`: many segments folded into one base.
- `files`: what is done to the disk, and what its errors become.
"""

from keyed.changelog.directory.directory_changelog import DirectoryChangelog

__all__ = ["DirectoryChangelog"]
