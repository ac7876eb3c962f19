"""Random programs with a changelog: what is restored from it, at any parallelism, goes on as a model in dictionaries.

The programs are those of the engine's model test. Here every commit goes to a changelog, every restore is from it into
a new one, and in the end each changelog is verified commit by commit.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from keyed.recovery import verify
from keyed.testing import KeyedTestHarness, MemoryChangelog
from tests.keyed.engine.test_model import Long, Subject, of_key, programs, run


class ChangelogSubject(Subject):
    """A harness with a changelog."""

    def __init__(self, scripts: list[list[Any]], store: Any, parallelism: int) -> None:
        super().__init__(scripts, store, parallelism)
        self.changelogs = [MemoryChangelog()]
        self.harness = self.made(parallelism)

    def made(self, parallelism: int, **options: Any) -> KeyedTestHarness:
        return KeyedTestHarness(
            self.function,
            key=of_key,
            store=self.store,
            parallelism=parallelism,
            changelog=self.changelogs[-1],
            **options,
        )

    def step(self, what: str, *arguments: Any) -> None:
        old = self.changelogs[-1]
        if what != "restore" or old.reader(0).last() is None:
            super().step(what if what != "restore" else "crash", *arguments)
            return
        outputs = self.harness._outputs
        self.harness.close()
        self.changelogs.append(MemoryChangelog())
        self.harness = self.made(arguments[0], restore_from=old)
        self.harness._outputs = outputs

    def check(self) -> None:
        for changelog in self.changelogs:
            if changelog.reader(0).last() is not None:
                assert [found.problem for found in verify(changelog) if found.problem] == []


def check(program: Any, store: str, parallelism: int) -> None:
    subject = ChangelogSubject(program[0], store, parallelism)
    run(program, [subject])
    subject.check()


@settings(max_examples=settings().max_examples)
@given(programs(), st.integers(1, 3))
def test_restored_programs_agree_with_the_model(program, parallelism):
    check(program, "memory", parallelism)


@settings(max_examples=max(settings().max_examples // 10, 5))
@given(programs(), st.integers(1, 2))
def test_restored_programs_on_disk_agree_with_the_model(program, parallelism):
    check(program, "rocksdb", parallelism)


@settings(max_examples=max(settings().max_examples // 4, 5))
@given(st.randoms(use_true_random=False))
def test_restored_long_programs_agree_with_the_model(random):
    program = Long(random)
    check((program.scripts, program.steps), "memory", program.random.choice([1, 2, 3]))
