"""A changelog in an object store for tests, with commits."""

from random import Random

from keyed.changelog.objects.object_changelog import ObjectStoreChangelog
from keyed.testing.changelog_conformance import SampleGroup

URL = "s3://bucket/jobs/log"


def log_on(server, **options):
    """A changelog on a server, which gives up soon."""
    options = {"auto_compact": False, "timeout": 100, "compaction_lag": 0} | options
    return ObjectStoreChangelog(URL, server.options, **options)


def made(server, *commits, **options):
    """The same with one key group that has commits of so many changes; its open writer, and the sample."""
    changelog = log_on(server, **options)
    changelog.prepare("op", 1)
    sample = SampleGroup(Random(1))
    writer = changelog.writer(0)
    for count in commits:
        writer.append(*sample.commit(count))
    return changelog, writer, sample
