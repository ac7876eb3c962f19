"""A changelog in an object store: S3 and stores with its protocol, Google Cloud Storage, Azure Blob Storage.

- `object_changelog`: `ObjectStoreChangelog`, the names of the objects, reader and writer of a key group's log.
- `bucket`: requests to the store, and the translation of its errors.

Segments, bases and compaction are those of `keyed.changelog.directory`.
"""
