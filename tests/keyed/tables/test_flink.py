"""Flink SQL reads the topics of replicated tables with ``upsert-kafka``, and has the same tables.

It needs Flink, which `flink_python` installs into an environment in ``.environments/`` the first time.
"""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from keyed.topics import Avro
from tests.keyed.tables.copies import Job, caught_up, expected, key_of, new_topic, topic_of
from tests.keyed.tables.test_replication import last_batch
from tests.support.data_files import read_data
from tests.support.flink import flink_python
from tests.support.jars import FLINK_KAFKA, NoJars, fetch
from tests.support.schema_registry import schema_registry

PROGRAM = Path(__file__).with_name("flink_upsert_kafka.py")
pytestmark = [pytest.mark.slow, pytest.mark.long]

LTZ = "TIMESTAMP_LTZ(3)"
#: The columns of each table in Flink, by the format of the topic, and a statement that creates one, as the how-to page
#: has it. In Avro times are numbers: Flink's ``avro-confluent`` has no timestamps of microseconds.
FLINK = read_data("keyed/tables/flink_tables.json")


def as_text(value: Any, type_: str, unit: str = "") -> str:
    """A value of a JSON record as Flink casts it to text; a time in a number has a unit."""
    if value is None:
        return "None"
    if type_ == "BIGINT" and isinstance(value, str):
        moment = datetime.fromisoformat(value) - datetime(1970, 1, 1, tzinfo=UTC)
        return str(moment // timedelta(**{{"ms": "milliseconds", "us": "microseconds"}[unit]: 1}))
    if type_ == "BYTES":
        return b64decode(value).decode()
    if type_.startswith("TIMESTAMP"):
        return datetime.fromisoformat(value).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    if type_.startswith("ARRAY<ROW"):
        times = (as_text(each["at"], LTZ) for each in value)
        rows = (f"({each['n']}, {at}, {each['price']})" for each, at in zip(value, times, strict=True))
        return f"[{', '.join(rows)}]"
    if type_.startswith("ARRAY"):
        return f"[{', '.join(value)}]"
    if type_.startswith("MAP"):
        return "{" + ", ".join(f"{key}={item}" for key, item in value.items()) + "}"
    return str(value)


@pytest.mark.parametrize(("name", "form"), [(name, form) for form in ("json", "avro") for name in FLINK[form]])
def test_flink_arrives_at_the_same_table(kafka, tmp_path, name, form):
    try:
        jars = fetch(FLINK_KAFKA)
    except NoJars as error:
        pytest.skip(str(error))
    job = Job(name, tmp_path, 2)
    types = FLINK[form][name]
    given: dict[str, Any] = {"jars": [str(jar) for jar in jars], "tables": []}
    parts: list[str] = []
    wanted: list[str] = []
    with ExitStack() as stack:
        tables = stack.enter_context(job.tables())
        formats, options = "\n".join(FLINK["formats"][form]), {}
        if form == "avro":
            registry = stack.enter_context(schema_registry())
            formats = formats.format(registry=registry.url)
            options = {each: Avro(registry=registry.url) for each in ("key", "value")}
        copies = {table: tables[table].replicate(new_topic(kafka, **options)) for table in types}
        for table, copy in copies.items():
            copy.wait_for(0, 300)
            columns = types[table]
            create = "\n".join(FLINK["create"]).format(
                name=table,
                columns=", ".join(f"`{column}` {type_}" for column, type_ in columns.items()),
                key=", ".join(f"`{column}`" for column in key_of(tables, table)),
                topic=topic_of(copy),
                bootstrap=kafka,
                formats=formats,
            )
            given["tables"].append(create)
            shown = ", ".join(f"COALESCE(CAST(`{column}` AS STRING), 'None')" for column in columns)
            parts.append(f"SELECT CONCAT_WS('|', '{table}', {shown}) FROM `{table}`")
        job.run(9)
        for table, copy in copies.items():
            caught_up(copy, tables, last_batch(job))
            rows = [json.loads(row) for row in expected(tables, table, key_of(tables, table)).values()]
            units = {each.name: getattr(each.type, "unit", "") for each in tables[table].dataset().schema}
            for row in rows:
                texts = (as_text(row[column], type_, units.get(column, "")) for column, type_ in types[table].items())
                wanted.append("|".join((table, *texts)))
            copy.close()
        given["query"] = " UNION ALL ".join(parts)
        done = subprocess.run(
            [flink_python(), str(PROGRAM), json.dumps(given)], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    # The JVM may print lines of its own.
    (line,) = (line for line in done.stdout.splitlines() if line.startswith('{"rows"'))
    found = json.loads(line)
    assert found["rows"] == sorted(wanted)
    # Flink saw the changes, and not only the last rows.
    assert found["kinds"].keys() == {"INSERT", "UPDATE_BEFORE", "UPDATE_AFTER", "DELETE"}
