"""Secrets are in nothing that an error shows, whatever servers answer and however passwords are written."""

import json
import logging
import pickle
import traceback
from base64 import b64encode
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed.changelog.objects.bucket import Bucket
from keyed.cli.main import main
from keyed.errors import ChangelogError, DefinitionError, KeyedError, SourceError
from keyed.formats.topic_values import decoder, is_unreachable
from keyed.tables import open_tables
from keyed.topics import Avro, Json, KafkaSink, UpsertTopic
from tests.support.s3 import Answer, s3_server
from tests.support.schema_registry import schema_registry

#: Secrets as they are pasted, long enough not to occur in a message by chance.
SECRETS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40).filter(
    lambda secret: len({*secret}) > 4
)
#: Passwords with characters that end parts of a URL, or are encoded in it.
PASSWORDS = [
    "zqxame",
    "zqxame@zqxame",
    "se/zqxame",
    "zqxame:zqx@zqxame",
    "zqxame%40zqxame",
    "zqx#zqxame",
    "zqxame?zqx,ame@",
]


def shown(error):
    """All that is printed or sent of an error, also of those that it hides."""
    texts, seen = [], error
    while seen is not None:
        texts += [str(seen), repr(seen), repr(vars(seen)), *traceback.format_exception(seen)]
        texts.append(pickle.dumps(seen).decode("latin-1"))
        seen = seen.__cause__ or seen.__context__
    return "\n".join(texts)


def echo(headers, status, code):
    """An answer that repeats the request's headers, and secrets in the fields that real servers have."""
    text = f"<Error><Code>{code}</Code><Message>{headers}</Message></Error>"
    return Answer(status, text.encode(), {"Content-Type": "application/xml"})


ASKED = {
    "get": lambda bucket: bucket.get("key"),
    "get_range": lambda bucket: bucket.get_range("key", 0, 9),
    "size": lambda bucket: bucket.size("key"),
    "put": lambda bucket: bucket.put("key", b"data"),
    "check_conditions": lambda bucket: bucket.check_conditions("key", b"data"),
    "sizes": lambda bucket: bucket.sizes("prefix"),
    "children": lambda bucket: bucket.children("prefix"),
    "delete": lambda bucket: bucket.delete(["a", "b"]),
}
STORES = {
    "s3": lambda url: {"endpoint": url, "region": "us-east-1", "access_key_id": "AKIAEXAMPLE"},
    "gs": lambda url: {"base_url": url},
    "az": lambda url: {"endpoint": f"{url}/account", "account_name": "account"},
}
SECRET_OPTIONS = {"s3": ("secret_access_key", "session_token"), "gs": ("bearer_token",), "az": ("account_key",)}
#: Statuses and codes, a connection that closes, an answer without sense.
REFUSALS = [
    (403, "ExpiredToken"),
    (403, "SignatureDoesNotMatch"),
    (403, "AKIAEXAMPLE"),
    (404, "NoSuchBucket"),
    (400, "InvalidToken"),
    (412, "PreconditionFailed"),
    (409, "OperationAborted"),
    (503, "SlowDown"),
    (500, "InternalError"),
    (301, "PermanentRedirect"),
    (200, "Odd"),
    (0, ""),
]


@pytest.fixture(scope="module")
def store():
    with s3_server() as running:
        yield running


@pytest.fixture(scope="module")
def registry():
    with schema_registry() as running:
        yield running


@pytest.mark.parametrize("scheme", STORES)
@given(data=st.data(), secret=SECRETS, refusal=st.sampled_from(REFUSALS), asked=st.sampled_from(sorted(ASKED)))
def test_no_error_of_an_object_store_has_a_secret(store, scheme, data, secret, refusal, asked):
    secrets = dict.fromkeys(SECRET_OPTIONS[scheme], secret)
    if scheme == "az":
        secrets["account_key"] = b64encode(secret.encode()).decode()
    status, code = refusal
    store.before_headers = lambda headers: echo(f"{headers} {secrets}", status, code)
    options = {"allow_http": "true", **STORES[scheme](store.url), **secrets}
    bucket = Bucket(scheme, "bucket", tuple(sorted(options.items())), 0.001)
    assert not any(each in repr(bucket) for each in secrets.values())
    try:
        ASKED[asked](bucket)
    except (KeyedError, FileNotFoundError) as error:
        text = shown(error)
        for each in (*secrets.values(), "AKIAEXAMPLE", "Authorization"):
            assert each not in text


def test_what_a_job_prints_and_logs_has_no_secret(store, caplog):
    caplog.set_level(logging.DEBUG)
    secrets = {"access_key_id": "AKIAEXAMPLE", "secret_access_key": "sesame-1", "session_token": "sesame-2"}
    store.before_headers = lambda headers: echo(f"{headers} {secrets}", 403, "ExpiredToken")
    options = {"endpoint": store.url, "allow_http": True, "region": "us-east-1", **secrets}
    log = keyed.ObjectStoreChangelog("s3://bucket/log", options, timeout=1)
    counts = keyed.stream([{"k": 1}]).key_by("k").process(Count(), changelog=log)
    with pytest.raises(ChangelogError, match="ExpiredToken; the credentials have expired") as raised:
        counts.run()
    text = shown(raised.value) + caplog.text + repr(log) + str(log)
    for each in secrets.values():
        assert each not in text


class Count(keyed.KeyedProcessFunction):
    n = keyed.ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.n.update(self.n.value() + 1)


#: All that takes the address of something, by the name of what it takes.
ADDRESSED: dict[str, Any] = {
    "changelog": lambda url: keyed.stream([1]).key_by(lambda _: 1).process(Count(), changelog=url).run(),
    "directory": keyed.DirectoryChangelog,
    "objects": keyed.ObjectStoreChangelog,
    "restore": lambda url: keyed.stream([1]).key_by(lambda _: 1).process(Count(), restore_from=url).run(),
    "checkpoint": lambda url: keyed.stream([1]).key_by(lambda _: 1).process(Count()).run(checkpoint=url),
    "tables": lambda url: keyed.stream([1]).key_by(lambda _: 1).process(Count()).run(tables=url),
    "open": lambda url: open_tables(url, "tables"),
    "registry": lambda url: decoder(Avro(registry={"url": url, "max.retries": 0, "timeout": 5}), "t")(
        b"\0\0\0\0\7data"
    ),
    "format": lambda url: repr(Json(registry=url)),
    "source": lambda url: keyed.KafkaSource("t", bootstrap=url),
    "sink": lambda url: KafkaSink("t", bootstrap=url),
    "upserts": lambda url: UpsertTopic("t", bootstrap=url),
    "topic": lambda url: keyed.KafkaChangelog("t", bootstrap=url),
}


@pytest.mark.parametrize("name", ADDRESSED)
@pytest.mark.parametrize("scheme", ["http", "s3", "s3a", "kafka", "jdbc:postgresql"])
def test_a_password_in_an_address_is_never_shown(name, scheme, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for password in PASSWORDS:
        try:
            text = repr(ADDRESSED[name](f"{scheme}://user:{password}@127.0.0.1:1/log"))
        except KeyedError as error:
            text = shown(error)
        assert "zqx" not in text


@pytest.mark.parametrize("command", ["tables", "compact", "scan", "serve"])
@pytest.mark.parametrize("scheme", ["http", "s3", "s3a", "kafka", "postgresql"])
def test_no_command_prints_a_password_of_an_address(command, scheme, capsys):
    try:
        status = main(
            [command, f"{scheme}://user:zqxame@zqx/ame@127.0.0.1:1/log", *(["t"] if command == "scan" else [])]
        )
    except SystemExit as error:
        status = 2 if error.code else 0
    printed = capsys.readouterr()
    assert status
    assert "zqx" not in printed.out + printed.err


@settings(max_examples=10)
@given(secret=SECRETS)
def test_no_error_of_a_registry_has_a_secret(registry, secret):
    registry.refuse = lambda headers: (401, {"error_code": 401, "message": f"{headers} {secret} {quote(secret)}"})
    encoded = quote(secret, safe="")
    for where in (
        {"url": registry.url, "basic.auth.user.info": f"user:{secret}", "max.retries": 0},
        {"url": registry.url.replace("//", f"//user:{encoded}@"), "max.retries": 0},
    ):
        with pytest.raises(SourceError, match="give credentials in registry=") as raised:
            decoder(Avro(registry=where), "sales")(b"\0\0\0\0\7data")
        for each in (secret, encoded, b64encode(f"user:{secret}".encode()).decode()):
            assert each not in shown(raised.value)
        assert not is_unreachable(raised.value)
    registry.refuse = None


def test_a_password_with_any_character_logs_in(registry):
    registry.refuse, registry.password = None, "p@ss/w:rd%,"
    avro = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]})
    number = registry.registered("sales-value", {"schema": avro})
    value = b"\0" + number.to_bytes(4, "big") + b"\x0e"
    for where in (
        registry.url.replace("//", f"//user:{quote(registry.password, safe='')}@"),
        {"url": registry.url, "basic.auth.user.info": f"user:{registry.password}"},
    ):
        assert decoder(Avro(registry=where), "sales")(value) == {"n": 7}
    for wrong in ("p@ss/w:rd", "p,ass", "p?ass", "p#ass"):
        with pytest.raises(DefinitionError, match="as %40 %3A %2F") as raised:
            Avro(registry=registry.url.replace("//", f"//user:{wrong}@"))
        assert "ass" not in str(raised.value).replace("password", "")
    registry.password = None
