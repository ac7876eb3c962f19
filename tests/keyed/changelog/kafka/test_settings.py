"""Settings of a Kafka log, and its behavior without a broker."""

from __future__ import annotations

import copy
import pickle
import sys
from datetime import timedelta
from random import Random

import attrs
import pytest

from keyed.changelog.kafka import KafkaChangelog
from keyed.errors import ChangelogError, DefinitionError, ExtraNotInstalled
from keyed.kafka.client import translated
from keyed.testing.changelog_conformance import SampleGroup, state_of
from tests.keyed.changelog.kafka.topics import grant, new_topic
from tests.support.kafka import PASSWORD, USER, certificate

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"topic": ""}, "topic=''"),
        ({"bootstrap": ""}, "bootstrap=''"),
        ({"replication_factor": 0}, "replication_factor=0"),
        ({"replication_factor": True}, "replication_factor=True"),
        ({"replication_factor": 10**30}, "must be an int from 1 to 32767"),
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


def works(changelog):
    """Return whether a changelog can be created, written and read."""
    changelog.prepare("op", 1)
    sample = SampleGroup(Random(1))
    writer = changelog.writer(0)
    for _ in range(2):
        writer.append(*sample.commit())
    changelog.put_position(2, b"here")
    changelog.keep("it", b"data")
    kept = (list(changelog.positions()), list(changelog.kept()))
    return state_of(changelog.reader(0)) == sample.state and kept == ([(2, b"here")], [("it", b"data")])


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


def test_an_answer_that_does_not_come_is_told_as_such():
    assert "no answer in time; no broker answered; check" in str(translated(TimeoutError(), "doing"))


@pytest.mark.slow
def test_over_tls(broker, tmp_path):
    tls = {"security.protocol": "SSL", "ssl.ca.location": str(broker.certificate), "log_level": 0}
    changelog = KafkaChangelog(new_topic(), bootstrap=broker.tls_bootstrap, settings=tls)
    assert works(changelog)
    wrong = attrs.evolve(changelog, timeout=1000, settings={**tls, "ssl.ca.location": str(certificate(tmp_path))})
    for call in (wrong.header, lambda: wrong.prepare("op", 1)):
        with pytest.raises(ChangelogError, match=r"certificate verify failed.*settings of TLS and SASL"):
            call()
    absent = attrs.evolve(changelog, settings={**tls, "ssl.ca.location": str(tmp_path / "absent")})
    with pytest.raises(ChangelogError, match=r"ssl\.ca\.location"):
        absent.header()


def test_one_may_have_to_log_in_and_needs_the_rights_that_the_docs_list(broker):
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER, "log_level": 0}
    right = KafkaChangelog(new_topic(), bootstrap=broker.sasl_bootstrap, settings={**login, "sasl.password": PASSWORD})
    with pytest.raises(ChangelogError, match="lacks a permission"):
        right.prepare("op", 1)
    grant(broker.bootstrap, USER, right.topic)
    assert works(right)
    wrong = attrs.evolve(right, timeout=1000, settings={**login, "sasl.password": "x"})
    with pytest.raises(ChangelogError, match=r"Invalid username or password.*settings of TLS and SASL"):
        wrong.header()


def test_without_the_package_it_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ExtraNotInstalled, match=r"package confluent_kafka, .* pip install 'keyed-streams\[kafka\]'"):
        KafkaChangelog("t", bootstrap=NOWHERE).header()
