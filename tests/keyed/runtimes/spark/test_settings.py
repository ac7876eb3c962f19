"""Settings of a session that several threads set at a time."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from keyed.runtimes.spark.session import spark_session
from keyed.runtimes.spark.session.spark_session import settings
from tests.support.waiting import until

NAME = "spark.sql.shuffle.partitions"


class Session:
    """A session whose changes of settings fail once, as if its JVM had ended."""

    def __init__(self):
        self.conf, self.values, self.errors = self, {NAME: "1"}, []

    def get(self, name):
        return self.values[name]

    def set(self, name, value):
        if self.errors:
            raise self.errors.pop()
        self.values[name] = value


@pytest.mark.parametrize(("error", "raised"), [(ConnectionRefusedError(), ValueError), (LookupError(), LookupError)])
def test_a_thread_waits_no_longer_for_the_settings_of_another_one_that_cannot_restore_them(error, raised):
    session: Any = Session()
    changed: Any = spark_session._changed
    is_over = threading.Event()

    def wait():
        with settings(session, {NAME: "3"}):
            is_over.set()

    def fail():
        with settings(session, {NAME: "2"}):
            threading.Thread(target=wait, daemon=True).start()
            until(lambda: changed._waiters, seconds=30)
            session.errors.append(error)
            raise ValueError("in the block")

    with pytest.raises(raised):
        fail()
    assert is_over.wait(30)


@pytest.mark.spark
def test_each_thread_has_the_value_that_it_has_set_and_the_users_is_back_in_the_end(spark):
    before = spark.conf.get(NAME)
    start = threading.Barrier(4)

    def look(number):
        start.wait()
        seen = []
        for _ in range(40):
            with settings(spark, {NAME: str(number)}):
                seen.append(spark.conf.get(NAME))
                with settings(spark, {NAME: "77"}) if number == 3 else settings(spark, {}):
                    seen.append(spark.conf.get(NAME))
        return seen

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(look, (11, 12, 12, 3)))
    assert [set(seen) for seen in found] == [{"11"}, {"12"}, {"12"}, {"3", "77"}]
    assert spark.conf.get(NAME) == before
