"""The Kafka log does what every changelog does."""

from pathlib import Path

import pytest

from keyed.changelog.kafka import KafkaChangelog
from keyed.testing.changelog_conformance import ChangelogConformance
from tests.keyed.changelog.kafka.topics import new_topic


class TestKafkaChangelog(ChangelogConformance):
    @pytest.fixture(autouse=True)
    def _broker(self, kafka):
        self.kafka = kafka

    def make_changelog(self, path: Path) -> KafkaChangelog:
        return KafkaChangelog(new_topic(), bootstrap=self.kafka)
