"""The directory log: a changelog as files in a folder, on a local disk or one that all machines share.

- `directory_changelog`: `DirectoryChangelog`, and the layout of the folder.
- `segment_file`: the file of a commit, and its bytes. `group_folder`: the folder of a key group, and what is in it.
- `directory_writer`, `directory_reader`: of a key group's log. `compaction`: many segments folded into one base.
- `disk`: what is done to the disk, and what its errors become.
"""

from keyed.changelog.directory.directory_changelog import DirectoryChangelog

__all__ = ["DirectoryChangelog"]
