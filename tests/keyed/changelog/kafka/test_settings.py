"""What a user may say to a Kafka log, and what becomes of it when no broker answers."""

from __future__ import annotations

import copy
import pickle
import sys
from datetime import timedelta

import pytest

from keyed.changelog.kafka import KafkaChangelog
from keyed.errors import ChangelogError, DefinitionError
from tests.keyed.changelog.kafka.topics import new_topic
from tests.support.kafka import PASSWORD, USER

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"topic": ""}, "topic=''"),
        ({"bootstrap": ""}, "bootstrap=''"),
        ({"replication_factor": 0}, "replication_factor=0"),
        ({"replication_factor": True}, "replication_factor=True"),
        ({"compaction_lag": -1}, "compaction_lag"),
        ({"tombstone_retention": 1.5}, "tombstone_retention"),
        ({"timeout": 0}, "timeout"),
        ({"settings": {"acks": "1"}}, "acks.* keyed sets this itself"),
        ({"settings": {"bootstrap.servers": "x"}}, r"from bootstrap="),
        ({"settings": {"oauth_cb": print}}, "oauth_cb.* give a string or a number"),
        ({"topic_settings": {"cleanup.policy": "delete"}}, r"cleanup\.policy.* keyed sets these itself"),
    ],
)
def test_what_breaks_a_rule_is_refused_at_once(arguments, words):
    with pytest.raises(DefinitionError, match=words):
        KafkaChangelog(**{"topic": "t", "bootstrap": "h:1", **arguments})


def test_it_is_data_and_keeps_secrets_to_itself():
    changelog = KafkaChangelog(
        "t", bootstrap="h:1", compaction_lag=timedelta(hours=2), settings={"sasl.password": "secret", "log_level": 3}
    )
    assert changelog.compaction_lag == 7_200_000
    assert pickle.loads(pickle.dumps(changelog)) == changelog == copy.deepcopy(changelog)
    assert hash(changelog) == hash(copy.deepcopy(changelog))
    assert "secret" not in repr(changelog)
    assert "sasl.password" in repr(changelog)


def test_without_a_broker_it_says_so_in_time():
    changelog = KafkaChangelog("t", bootstrap=NOWHERE, timeout=500)
    for call in (lambda: changelog.prepare("op", 1), changelog.header, lambda: changelog.writer(0)):
        with pytest.raises(ChangelogError, match="no broker answered; check bootstrap"):
            call()
    with pytest.raises(ChangelogError, match="no broker answered"):
        changelog.put_position(1, b"")


def test_a_setting_that_the_client_does_not_know_is_refused():
    with pytest.raises(ChangelogError, match=r"no\.such\.setting"):
        KafkaChangelog("t", bootstrap=NOWHERE, settings={"no.such.setting": 1}).header()


def test_settings_reach_the_client(kafka):
    # A broker that speaks no TLS ends the connection, so the setting was used.
    changelog = KafkaChangelog(
        new_topic(), bootstrap=kafka, timeout=1000, settings={"security.protocol": "SSL", "log_level": 0}
    )
    with pytest.raises(ChangelogError, match="settings of TLS and SASL"):
        changelog.header()


def test_one_may_have_to_log_in(broker):
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER, "log_level": 0}
    topic = new_topic()
    right = KafkaChangelog(topic, bootstrap=broker.sasl_bootstrap, settings={**login, "sasl.password": PASSWORD})
    right.prepare("op", 1)
    assert right.writer(0).last() is None
    wrong = KafkaChangelog(
        topic, bootstrap=broker.sasl_bootstrap, timeout=1000, settings={**login, "sasl.password": "x"}
    )
    with pytest.raises(ChangelogError, match="settings of TLS and SASL"):
        wrong.header()


def test_without_the_package_it_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ChangelogError, match=r"pip install 'keyed\[kafka\]'"):
        KafkaChangelog("t", bootstrap=NOWHERE).header()
