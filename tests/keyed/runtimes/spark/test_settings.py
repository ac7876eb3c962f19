"""Settings of a session that several threads set at a time."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from keyed.runtimes.spark.session.spark_session import settings

NAME = "spark.sql.shuffle.partitions"

pytestmark = pytest.mark.spark


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
