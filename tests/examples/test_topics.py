"""The main job over a Kafka topic: producer, topic, job on Spark, changelogs, tables, page; the broker bounced."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from contextlib import suppress
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

import pytest
import yaml

from examples.send_sales import main as send_sales
from examples.send_sales import parser as sales_parser
from examples.top_n.__main__ import _parser as top_n_parser
from examples.top_n.__main__ import main
from examples.top_n.datasets import Sales
from tests.keyed.changelog.kafka.topics import create, messages, produce
from tests.support.data_files import read_data
from tests.support.jars import CONNECTOR, S3A, fetch
from tests.support.kafka import Broker
from tests.support.minio import minio
from tests.support.terminal import ROOT, Job
from tests.support.waiting import until


@pytest.fixture
def broker(tmp_path):
    """A broker of our own, which may be killed."""
    started = Broker(tmp_path / "kafka")
    started.start()
    yield started
    started.stop()


def expected(sales: list[dict[str, Any]], n: int) -> dict[str, list[tuple[str, int]]]:
    """The n best of each hour, by its start."""
    counts = Counter((sale["at"][:13], sale["product"]) for sale in sales)
    found: dict[str, list[tuple[str, int]]] = {}
    for (hour, product), count in sorted(counts.items(), key=lambda each: (each[0][0], -each[1], each[0][1])):
        found.setdefault(hour, []).append((product, count))
    return {hour: best[:n] for hour, best in found.items()}


def ranked(best: dict[str, list[tuple[str, int]]]) -> dict[tuple[str, int], tuple[str, int]]:
    """Rankings by hour and rank."""
    return {(hour, rank): each for hour, ranking in best.items() for rank, each in enumerate(ranking, start=1)}


def read_rankings(broker: Broker) -> dict[tuple[str, int], tuple[str, int]]:
    """Return the rankings that the topic of the job holds."""
    rows = [json.loads(message.value()) for message in messages(broker.bootstrap, "sales-top")]
    return {(row["window_start"][:13], row["rank"]): (row["item"], row["count"]) for row in rows}


def draw_sales() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return sales, and a last one that ends their windows."""
    (rows,) = (chunk.rows.to_pylist() for chunk in Sales(rows=4_000, seed=3).chunks())
    sales = [{"product": row["item"], "at": row["event_time"].isoformat()} for row in rows]
    return sales, {"product": "last", "at": (rows[-1]["event_time"] + dt.timedelta(days=40)).isoformat()}


def send(broker: Broker, sales: list[Any]) -> None:
    produce(broker.bootstrap, "sales", [(b"", json.dumps(sale).encode()) for sale in sales])


def wait_for_rows(job: Job, count: int) -> None:
    until(lambda: job.asks("/status")["job"].get("Rows") == count, report=lambda: job.printed)


def job_options(broker: Broker, jars: str) -> list[str]:
    options = ["--source", "kafka", "--bootstrap", broker.bootstrap, "--topic", "sales", "--item-column", "product"]
    return [*options, "--time-column", "at", "--n", "5", "--delay-minutes", "1440", "--conf", f"spark.jars={jars}"]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.browser
def test_a_topic_is_ranked_into_another_while_the_broker_is_bounced(tmp_path, broker, page, capsys):
    create(broker.bootstrap, "sales", 1)
    sales, last = draw_sales()
    create(broker.bootstrap, "other", 1)
    assert send_sales(["--bootstrap", broker.bootstrap, "--topic", "other", "--rows", "4000", "--seed", "3"]) == 0
    assert [json.loads(message.value()) for message in messages(broker.bootstrap, "other")] == sales
    send(broker, [*sales[:2_000], {"product": "without a time"}, {"at": "2026-11-02T00:00:00Z"}])
    jars = ",".join(map(str, fetch(CONNECTOR)))
    options = job_options(broker, jars)
    elsewhere = [option if option != "sales" else "nowhere" for option in options]
    assert main(["--output", str(tmp_path / "out"), *elsewhere]) == 1
    assert f"--topic nowhere: {broker.bootstrap} has no such topic" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    job = Job(tmp_path / "out", *options)
    try:
        job.serves()
        wait_for_rows(job, 2_000)
        assert job.asks("/status")["job"]["Bad rows"] == 2
        broker.kill()
        broker.start()
        send(broker, [*sales[2_000:], last])
        wait_for_rows(job, 4_001)
        best = expected(sales, 5)

        def table() -> dict[str, list[tuple[str, int]]]:
            found = {}
            ranking: list[dict[str, Any]] | None = None
            for hour in (min(best), max(best)):
                start = dt.datetime.fromisoformat(f"{hour}:00:00+00:00")
                key = json.dumps([each.isoformat() for each in (start, start + dt.timedelta(hours=1))])
                # The tables follow the job: at first they have no table, and then not these hours.
                with suppress(HTTPError):
                    ranking = job.asks(f"/tables/ranking/keys/{quote(key, safe='')}")["value"]
                found[hour] = [(row["item"], row["count"]) for row in ranking or ()]
            return found

        until(lambda: table() == {hour: best[hour] for hour in (min(best), max(best))}, report=lambda: str(table()))
        page.goto(job.address)
        page.get_by_role("heading", name=f"{max(best)[:10]} {max(best)[11:]}:00 to").wait_for()
        shown = page.locator(".ranking li:not(.leaving) .item")
        until(
            lambda: shown.all_inner_texts() == [product for product, _ in best[max(best)]], report=shown.all_inner_texts
        )
    finally:
        assert job.interrupt() == 0, job.printed
    assert "Traceback" not in job.printed
    assert "bad 2: without item or time" in job.printed
    assert read_rankings(broker) == ranked(best)


@pytest.mark.parametrize(("options", "message"), read_data("examples/top_n_refusals.json")["options with a topic"])
def test_bad_options_are_refused(tmp_path, capsys, options, message):
    with pytest.raises(SystemExit, match="2"):
        main(["--output", str(tmp_path / "out"), "--source", "kafka", *options])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.xdist_group("minio")
def test_a_pod_that_is_lost_is_replaced_by_one_that_has_nothing_of_it(tmp_path, broker, monkeypatch):
    """As in ``kubernetes.yaml``: the checkpoint and the changelogs are in an object store."""
    create(broker.bootstrap, "sales", 1)
    sales, last = draw_sales()
    jars = ",".join(map(str, [*fetch(CONNECTOR), *fetch(S3A)]))
    options = job_options(broker, jars)
    options += ["--object-store", "s3://bucket/pods/top-n"]
    with minio(tmp_path / "minio" / "data") as client:
        for name in ("access_key_id", "secret_access_key", "region"):
            monkeypatch.setenv(f"AWS_{name.upper()}", client[name])
        monkeypatch.setenv("AWS_ENDPOINT_URL", client["endpoint"])
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        send(broker, sales[:2_000])
        first = Job(tmp_path / "first", *options)
        try:
            first.serves()
            wait_for_rows(first, 2_000)
        finally:
            first.kill()
        shutil.rmtree(tmp_path / "first")
        send(broker, [*sales[2_000:], last])
        second = Job(tmp_path / "second", *options)
        try:
            second.serves()
            wait_for_rows(second, 4_001)
        finally:
            assert second.interrupt() == 0, second.printed
        assert not (tmp_path / "second" / "checkpoint").exists()
    assert read_rankings(broker) == ranked(expected(sales, 5))


def test_the_arguments_of_the_pod_are_those_of_the_job():
    pod = yaml.safe_load((ROOT / "examples" / "kubernetes.yaml").read_text())["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    module, *arguments = container["args"]
    assert module == "examples.top_n"
    options = top_n_parser().parse_args(arguments)
    assert options.object_store == "s3://bucket/top-n"
    assert str(options.output).startswith(container["volumeMounts"][0]["mountPath"])


def test_the_composition_is_yaml_whose_flags_there_are():
    composition = yaml.safe_load((ROOT / "examples" / "docker-compose.yaml").read_text())
    programs = {"examples.top_n": top_n_parser(), "examples.send_sales": sales_parser()}
    commands = [service["command"] for service in composition["services"].values() if "command" in service]
    assert {module for module, *_ in commands} == programs.keys()
    for module, *arguments in commands:
        programs[module].parse_args(arguments)
    for service in composition["services"].values():
        if "build" in service:
            assert (ROOT / "examples" / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "examples" / "Dockerfile").read_text(), re.MULTILINE)
    assert all((ROOT / name).exists() for line in copied for name in line.split())
    extras = re.search(r"\[([a-z0-9,]+)\]", (ROOT / "examples" / "Dockerfile").read_text().split("RUN")[1])
    assert extras
    assert "spark" in extras[1].split(",")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras[1].split(",")) <= declared.keys()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_the_steps_of_the_image_give_an_environment_that_runs_the_job(tmp_path):
    """The steps of the Dockerfile in a new environment of Python: it shows what they install, and from which files."""
    folder, python = tmp_path / "keyed", tmp_path / "venv"
    folder.mkdir()
    subprocess.run([sys.executable, "-m", "venv", python], check=True)
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "JAVA_HOME")}
    environment = {**kept, "PATH": f"{python / 'bin'}:/usr/bin:/bin"}
    command: list[str] = []
    for step in (ROOT / "examples" / "Dockerfile").read_text().splitlines():
        verb, _, rest = step.partition(" ")
        if verb == "COPY":
            *names, target = rest.split()
            for name in names:
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                copy(ROOT / name, folder / target / name if len(names) > 1 else folder / target)
        elif verb == "RUN":
            subprocess.run(["sh", "-c", rest], cwd=folder, env=environment, check=True)
        elif verb in ("ENTRYPOINT", "CMD"):
            command += json.loads(rest)
    command[command.index("/data/top_n")] = str(tmp_path / "data")
    more = ["--headless", "--source", "sales", "--rows", "20000"]
    done = subprocess.run([*command, *more], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "20,000 rows: " in done.stdout
