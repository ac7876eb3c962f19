"""Each view of `examples.views` has the same rows in SQL and Python, and by the command on files and on Kafka."""

import json
import struct
import time

import attrs
import pytest

from examples.views import HOUR, VIEWS, main
from keyed.cli.main import main as keyed
from tests.keyed.changelog.kafka import topics


@pytest.mark.parametrize("name", VIEWS)
def test_sql_and_python_have_equal_rows(name):
    found = VIEWS[name].by_sql()
    assert found
    assert found == VIEWS[name].by_python()


def rows_of(name, records):
    """The rows as `View.by_sql` returns them, of the printed or received records."""
    if "CREATE TABLE view" in VIEWS[name].text:
        records = dict(records).items()
    return sorted((key, *value.values()) for key, value in records)


def test_the_files_of_a_folder_run_from_the_command_line(tmp_path, capsys):
    main([str(tmp_path)])
    commands = dict(zip(VIEWS, capsys.readouterr().out.splitlines()[1::2], strict=True))
    for name, command in commands.items():
        assert keyed([*command.split()[1:], "--json"]) == 0
        records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        keys = [(each["key"], tuple(each["window"])) if "window" in each else each["key"] for each in records]
        assert rows_of(name, zip(keys, (each["value"] for each in records), strict=True)) == VIEWS[name].by_sql()


@pytest.mark.slow
def test_each_view_runs_from_the_command_line_on_a_broker(kafka, tmp_path, capsys):
    hour = (int(time.time()) // 3600 - 24) * HOUR
    for number, (name, view) in enumerate(VIEWS.items()):
        prefix = topics.new_topic()
        own = attrs.evolve(view, text=view.text.replace("KAFKA_TOPIC = '", f"KAFKA_TOPIC = '{prefix}-"))
        own.write(tmp_path / str(number))
        own.send(kafka, hour)
        command = ["run", str(tmp_path / str(number) / "view.sql"), "--bootstrap", kafka, "--until-end"]
        assert keyed([*command, "--checkpoint", str(tmp_path / str(number) / "state")]) == 0
        assert capsys.readouterr().out == ""
        target = own.text.rpartition("KAFKA_TOPIC = '")[2].partition("'")[0]
        records = []
        for message in topics.messages(kafka, target):
            key, window = message.key(), None
            if "WINDOW" in view.text:
                start = struct.unpack(">q", key[-8:])[0] - hour
                key, window = key[:-8], (start, start + HOUR)
            decoded = struct.unpack(">q", key)[0] if "id BIGINT KEY" in view.text else key.decode()
            records.append(((decoded, window) if window else decoded, json.loads(message.value())))
        assert rows_of(name, records) == view.by_sql(), name
