"""A changelog in an object store: S3 and stores with its protocol, Google Cloud Storage, Azure Blob Storage.

- `object_changelog`: `ObjectStoreChangelog`, and the names of the objects.
- `object_writer`, `object_reader`: for a key group's log. `object_group`: its objects.
- `bucket`: requests to the store, and the translation of its errors.

Segments, bases and compaction are those of `keyed.changelog.directory`.
"""
