"""State tables on the command line."""

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest

import keyed
import keyed.tables.server
from docs.generate import ROOT
from keyed.base.background import Status
from keyed.cli.main import main
from keyed.cli.table_commands import _tokens
from keyed.tables import follower
from keyed.testing import KeyedTestHarness
from tests.keyed.changelog.kafka import topics
from tests.support.data_files import read_data
from tests.support.waiting import until

COMMANDS = read_data("keyed/cli/commands.json")


class Sold(keyed.KeyedProcessFunction):
    sold = keyed.ValueState(int)
    by_day = keyed.MapState(str, int)

    def process_element(self, value, ctx):
        title, day, number = value
        self.sold.update((self.sold.value() or 0) + number)
        self.by_day.put(day, number)
        yield title, number


@pytest.fixture
def log(tmp_path):
    changelog = keyed.DirectoryChangelog(tmp_path / "log")
    with KeyedTestHarness(Sold(), key=lambda value: value[0], parallelism=2, changelog=changelog) as harness:
        harness.process(("Die Hard", "monday", 2))
        harness.process(("Heat", "monday", 1))
        harness.process(("Die Hard", "tuesday", 3))
    return str(tmp_path / "log")


def said(capsys, *arguments, status=0):
    assert main(arguments) == status
    return capsys.readouterr().out


def rows_of(capsys, *arguments):
    """The lines of JSON that a command prints."""
    return [json.loads(line) for line in said(capsys, *arguments).splitlines()]


def test_tables_are_printed_for_people_and_for_machines(log, capsys):
    assert said(capsys, "tables", log).splitlines() == [
        "table   operator  kind   types       entries  batch",
        "sold    function  value  int         2        2",
        "by_day  function  map    str -> int  3        2",
    ]
    assert said(capsys, "get", log, "sold", "Die Hard").splitlines() == ["key       value  batch", "Die Hard  5      2"]
    assert json.loads(said(capsys, "get", log, "sold", "Die Hard", "--json", "--as-of", "0"))["value"] == 2
    assert json.loads(said(capsys, "get", log, "by_day", "Die Hard", "--entry", "tuesday", "--json"))["value"] == 3
    assert said(capsys, "get", log, "sold", "Alien", status=1)
    assert [row["key"] for row in rows_of(capsys, "scan", log, "sold", "--prefix", "D", "--json")] == ["Die Hard"]
    assert [row["value"] for row in rows_of(capsys, "history", log, "sold", "Die Hard", "--json")] == [5, 2]
    assert said(capsys, "sql", log, "select key, value from sold order by value").splitlines()[1:] == [
        "Heat      1",
        "Die Hard  5",
    ]


def test_get_scan_and_history_take_keys_of_any_characters(tmp_path, capsys):
    keys = [*COMMANDS["keys of any characters"], "ü" * 1_000]
    changelog = keyed.DirectoryChangelog(tmp_path / "log")
    with KeyedTestHarness(Sold(), key=lambda value: value[0], changelog=changelog) as harness:
        for number, key in enumerate(keys):
            harness.process((key, key, number))
    log, tables = str(tmp_path / "log"), str(tmp_path / "tables")
    for number, key in enumerate(keys):
        options = ["--tables", tables, "--json"]
        (row,) = said(capsys, "get", *options, "--", log, "sold", key).split("\n")[:-1]
        assert (json.loads(row)["key"], json.loads(row)["value"]) == (key, number)
        (row,) = said(capsys, "get", *options, f"--entry={key}", "--", log, "by_day", key).split("\n")[:-1]
        assert json.loads(row)["value"] == number
        assert json.loads(said(capsys, "history", *options, "--", log, "sold", key))["value"] == number
        assert json.loads(said(capsys, "scan", *options, f"--key={key}", log, "sold"))["key"] == key


def test_columns_of_one_name_are_all_printed_and_no_text_reaches_the_terminal_as_more_than_text(log, capsys):
    query = "select a.key, b.key, a.value as key from sold a join sold b on a.value < b.value"
    assert json.loads(said(capsys, "sql", log, query, "--json")) == {"key": "Heat", "key_1": "Die Hard", "key_2": 1}
    assert said(capsys, "sql", log, "select 'a' || chr(27) || '[2J' || chr(10) || 'ü' as text").splitlines() == [
        "text",
        r"a\x1b[2J\nü",
    ]


def test_changes_are_printed_as_they_come(log, capsys):
    lines = rows_of(capsys, "tail", log, "sold", "--after", "beginning", "--limit", "3")
    assert [(line["kind"], line["key"], line["new"]) for line in lines] == [
        ("snapshot", "Die Hard", 2),
        ("change", "Heat", 1),
        ("change", "Die Hard", 5),
    ]
    token = lines[1]["token"]
    after = json.loads(said(capsys, "tail", log, "sold", "--after", token, "--limit", "1"))
    assert after == lines[2]


def test_a_folder_of_tables_is_used_again_and_read_beside_its_follower(log, tmp_path, capsys):
    folder = str(tmp_path / "tables")
    said(capsys, "get", log, "sold", "Heat", "--tables", folder)
    assert "Heat" in said(capsys, "get", folder, "sold", "Heat")
    with keyed.tables.open_tables(keyed.DirectoryChangelog(log), folder):
        assert "Heat" in said(capsys, "get", folder, "sold", "Heat")
        assert main(["get", log, "sold", "Heat", "--tables", folder]) == 1
        assert "is written by another program" in capsys.readouterr().err


def test_mistakes_are_told(log, panes, tmp_path, capsys):
    for arguments, message in (
        (["get", log, "nothing", "x"], "there is no table 'nothing'; the tables are: by_day, sold"),
        (["sql", log, "drop table sold"], "give one SELECT"),
        (["tables", str(tmp_path / "none")], "is not there; give a changelog"),
        (["get", panes, "panes", "a", "--namespace", "[1]x"], "--namespace='[1]x' is not a key of this table"),
        (["tail", log, "sold", "--after", "nonsense"], "is not a token"),
        (["scan", log, "sold", "--as-of", "yesterday"], "--as-of='yesterday': give the id of a batch"),
        (["serve", log, "--host", "0.0.0.0"], "can be reached from other machines"),
        (["serve", log, "--token-file", str(tmp_path / "none")], "cannot be read"),
    ):
        assert main(arguments) == 1
        assert message in capsys.readouterr().err


def test_serve_answers_until_it_is_stopped(log):
    command = [sys.executable, "-m", "keyed.cli", "serve", log, "--port", "0"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().removesuffix("/tables\n")
        until(lambda: is_ready(address))
        with urllib.request.urlopen(f"{address}/tables/sold/keys/Heat") as answer:
            assert json.load(answer)["value"] == 1
        server.terminate()
        assert server.wait(300) in (0, -15)
    finally:
        server.kill()
        server.communicate()


def is_ready(address):
    try:
        with urllib.request.urlopen(f"{address}/ready"):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return False


def test_serve_listens_before_it_has_read_the_changelog(log, monkeypatch):
    statuses = []
    began, listens = threading.Event(), threading.Event()

    def poll(self):
        began.set()
        assert listens.wait(300)
        return applied(self)

    def serve(tables, **_):
        assert began.wait(300)
        statuses.append(tables.status)
        listens.set()
        tables.wait_for(2, 300)
        statuses.append(tables.status)

    applied = follower.Follower.poll
    monkeypatch.setattr(follower.Follower, "poll", poll)
    monkeypatch.setattr(keyed.tables.server, "serve", serve)
    assert main(["serve", log, "--port", "0"]) == 0
    assert statuses == [Status.STARTING, Status.FOLLOWING]


class Panes(keyed.KeyedProcessFunction):
    panes = keyed.ValueState(int)
    named = keyed.ValueState(int)

    def process_element(self, value, ctx):
        _, start, number = value
        self.panes.namespace((start, start + 10)).update(number)
        self.panes.update(number)
        self.named.namespace(str(start)).update(number)
        return ()


@pytest.fixture
def panes(tmp_path):
    changelog = keyed.DirectoryChangelog(tmp_path / "panes")
    with KeyedTestHarness(Panes(), key=lambda value: value[0], changelog=changelog) as harness:
        harness.process(("a", 0, 1))
        harness.process(("a", 10, 2))
        harness.process(("a", 10, 3))
    return str(tmp_path / "panes")


def test_what_is_in_a_namespace_is_printed_by_the_name_that_scan_prints(panes, capsys):
    rows = rows_of(capsys, "scan", panes, "panes", "--json")
    assert [row["namespace"] for row in rows] == [None, [0, 10], [10, 20]]
    for row in rows[1:]:
        found = said(capsys, "get", panes, "panes", "a", "--namespace", json.dumps(row["namespace"]), "--json")
        assert json.loads(found)["value"] == row["value"]
    assert json.loads(said(capsys, "get", panes, "panes", "a", "--json"))["value"] == 3
    # Text that looks like a number is text where namespaces are text.
    assert json.loads(said(capsys, "get", panes, "named", "a", "--namespace", "10", "--json"))["value"] == 3
    assert said(capsys, "get", panes, "panes", "a", "--namespace", "[7, 17]", status=1)
    versions = rows_of(capsys, "history", panes, "panes", "a", "--namespace", "[10, 20]", "--json")
    assert [version["value"] for version in versions] == [3, 2]


def test_clocks_of_versions_are_times_for_people(panes, capsys):
    _, newest, *_ = said(capsys, "history", panes, "named", "a", "--namespace", "0").splitlines()
    assert newest.split()[-3:] == ["none", "1", "false"]
    assert newest.split()[4] == "UTC)"


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit):
        main(["get", "--help"])
    assert "keyed get job-log sold 'Die Hard'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mode", "is_refused"), [(0o600, False), (0o640, False), (0o644, True), (0o620, True), (0o602, True)]
)
def test_a_file_of_tokens_that_others_can_read_is_refused(tmp_path, mode, is_refused):
    path = tmp_path / "tokens"
    path.write_text("token-of-all-tables-0001 *\n")
    path.chmod(mode)
    if is_refused:
        with pytest.raises(keyed.errors.DefinitionError, match="others can read or change the tokens; chmod"):
            _tokens(path)
    else:
        assert _tokens(path) == {"token-of-all-tables-0001": ["*"]}


@pytest.mark.parametrize(("text", "message"), COMMANDS["files of tokens"])
def test_a_token_file_that_would_give_other_rights_is_refused(tmp_path, text, message):
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(text)
    with pytest.raises(keyed.errors.DefinitionError, match=message):
        _tokens(path)


def test_a_table_is_replicated_to_a_topic_once(log, kafka, capsys):
    topic = topics.new_topic()
    place = f"kafka://{kafka}/{topic}"
    lines = said(capsys, "replicate", log, "by_day", "--to-topic", place, "--once").splitlines()
    assert lines == [f"replicating function.by_day to {place}", "batch 2, 3 rows written, 0 removed"]
    assert said(capsys, "replicate", log, "by_day", "--to-topic", place, "--once").endswith(
        "batch 2, 0 rows written, 0 removed\n"
    )
    keys = {json.loads(message.key())["entry"] for message in topics.messages(kafka, topic)}
    assert keys == {"monday", "tuesday"}


def test_a_table_is_replicated_to_delta_once(log, tmp_path, capsys):
    deltalake = pytest.importorskip("deltalake")
    place, metrics = str(tmp_path / "delta"), tmp_path / "copy.prom"
    said_of = said(capsys, "replicate", log, "by_day", "--to-delta", place, "--once", "--metrics-file", str(metrics))
    assert "3 rows written" in said_of
    assert 'keyed_replication_rows_total{query="function.by_day"} 3.0\n' in metrics.read_text()
    assert deltalake.DeltaTable(place).to_pyarrow_table().num_rows == 3


@pytest.mark.parametrize(("arguments", "message"), COMMANDS["destinations of replicate"])
def test_the_destination_of_a_replication_is_checked(log, capsys, arguments, message):
    assert main(["replicate", log, "sold", *arguments]) == 1
    assert message in capsys.readouterr().err
