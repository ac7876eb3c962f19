"""Jobs whose changelogs are topics: killed, restored from the topics alone at another parallelism, and verified."""

from __future__ import annotations

import multiprocessing
import shutil
from itertools import count
from pathlib import Path
from random import Random

import pytest

import keyed
from keyed.changelog.kafka import KafkaChangelog, kafka_changelog
from keyed.recovery import flush, verify
from tests.keyed.changelog.kafka.topics import COMPACTING, created, messages, new_topic, produce_all
from tests.keyed.recovery import jobs
from tests.keyed.recovery.jobs import Life
from tests.keyed.recovery.test_restore import run_count
from tests.keyed.runtimes.spark.functions import RULES, Limits, limits_of
from tests.keyed.runtimes.test_broadcast import rows_of, rules_of

CONTEXT = multiprocessing.get_context("forkserver")


class TopicLife(Life):
    """A job with a topic per operator and life, all of which the cleaner goes through all the time.

    Args:
        folder: The job's folder.
        name: Name of the job.
        kafka: Address of the broker.
        topics: What the names of the topics begin with.
    """

    def __init__(self, folder: Path, name: str, kafka: str, topics: str) -> None:
        super().__init__(folder, name)
        self.kafka = kafka
        self.topics = topics

    def changelog(self, operator: str, life: int) -> KafkaChangelog:  # type: ignore[override]
        return KafkaChangelog(
            f"{self.topics}-{life}-{operator}",
            bootstrap=self.kafka,
            compaction_lag=0,
            tombstone_retention=10_000,
            topic_settings=COMPACTING,
            settings={"log_level": 0},
        )

    def options(self, operator, standby):
        # The folder of a life says which operators it has.
        (self.folder / f"life-{self.number:04d}" / operator).mkdir(parents=True, exist_ok=True)
        return super().options(operator, standby)


def test_a_record_that_is_lost_from_an_old_commit_is_a_problem(kafka, monkeypatch):
    """Its topic looks like one of which compaction has removed more since the read began."""
    reader, calls = KafkaChangelog.reader, count()

    def read(changelog, group):
        assert next(calls) < 100, "it is read again and again"
        return reader(changelog, group)

    monkeypatch.setattr(KafkaChangelog, "reader", read)
    topics = new_topic(), created(kafka, 2)
    changelog, damaged = (KafkaChangelog(each, bootstrap=kafka, compaction_lag=0) for each in topics)
    run_count(range(30), changelog)
    for partition in range(2):
        records = [(each.key(), each.value(), each.headers()) for each in messages(kafka, changelog.topic, partition)]
        if not partition:
            del records[-2]
        produce_all(kafka, damaged.topic, partition, records)
    (group,) = verify(damaged)
    assert "it was compacted; read again" in group.problem


def test_a_flush_leaves_no_producer(kafka, tmp_path):
    changelog = KafkaChangelog(new_topic(), bootstrap=kafka)
    run_count(range(10), checkpoint=tmp_path / "ck")
    assert flush(tmp_path / "ck", {"Count": changelog}) == {"Count": 0}
    assert changelog not in kafka_changelog._positions


@pytest.mark.parametrize(
    "parallelism", [pytest.param(1, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.slow)]
)
def test_broadcast_state_is_restored_from_topics_at_another_parallelism(kafka, parallelism):
    rows, rules = rows_of(1, 120), rules_of(2, 120)
    batches = [(rules[20 * i : 20 * i + 20], rows[20 * i : 20 * i + 20]) for i in range(6)]

    def run(part, log, **options):
        streams = [keyed.stream(each[: 60 * part], timestamp="t") for each in (rows, rules)]
        job = streams[0].key_by("k").connect(streams[1].broadcast(RULES))
        return job.process(Limits(), changelog=log, **options).run(rows_per_batch=20, drain=False).values

    logs = [KafkaChangelog(new_topic(), bootstrap=kafka, compaction_lag=0, topic_settings=COMPACTING) for _ in range(2)]
    values = run(1, logs[0], parallelism=2)
    values += run(2, logs[1], parallelism=parallelism, restore_from=logs[0])
    assert sorted(values) == limits_of(batches)
    for log in logs:
        assert [group.problem for group in verify(log) if group.problem] == []


def work(folder: Path, name: str, kafka: str, topics: str, started) -> None:
    started.set()
    jobs.run(TopicLife(folder, name, kafka, topics), drain=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "recovered_from"),
    [
        ("functions", "changelog"),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in [
                ("tables", "checkpoint"),
                ("functions", "checkpoint"),
                ("tables", "changelog"),
                ("vectorized-sessions", "checkpoint"),
                ("vectorized-sessions", "changelog"),
            ]
        ),
    ],
)
def test_killed_jobs_end_as_undisturbed_ones(kafka, tmp_path, name, recovered_from):
    number = Random(f"{name} {recovered_from}")
    undisturbed = Life(tmp_path / "undisturbed", name)
    jobs.run(undisturbed, drain=False)
    topics = new_topic()
    life = TopicLife(tmp_path / "job", name, kafka, topics)
    for _ in range(4):
        started = CONTEXT.Event()
        process = CONTEXT.Process(target=work, args=(life.folder, name, kafka, topics, started))
        process.start()
        assert started.wait(300)
        process.join(number.uniform(0.2, 4))
        process.kill()
        process.join()
        if recovered_from == "changelog":
            if life.restorable():
                life.lose_checkpoint()
            else:
                # The topics of this life stay behind: the next try has others.
                shutil.rmtree(life.folder, ignore_errors=True)
                life.topics = topics = new_topic()
    jobs.run(life, drain=False)
    assert jobs.written(life.folder) == jobs.written(undisturbed.folder)
    assert jobs.final_state(life) == jobs.final_state(undisturbed)
