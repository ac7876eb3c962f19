"""A changelog in an object store: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage.

- `object_changelog`: `ObjectStoreChangelog`, and the names of the objects.
- `object_writer`, `object_reader`: of a key group's log. `object_group`: its objects.
- `bucket`: requests to the store, and what its errors become.

Segments, bases and compaction are those of `keyed.changelog.directory`.
"""

from keyed.changelog.objects.object_changelog import ObjectStoreChangelog, changelog_at, is_object_store

__all__ = ["ObjectStoreChangelog", "changelog_at", "is_object_store"]
