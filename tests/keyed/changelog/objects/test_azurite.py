"""Changelogs in object stores on Azurite, Microsoft's server of Azure's protocol, which npm installs if need be."""

import base64
import hashlib
import hmac
import os
import secrets
import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from itertools import count
from pathlib import Path
from random import Random
from urllib.request import Request, urlopen

import pytest

from keyed.changelog.objects import ObjectStoreChangelog
from keyed.changelog.objects.bucket import Bucket
from keyed.testing.changelog_conformance import ChangelogConformance, SampleGroup, state_of
from tests.support.limits import free_port
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.xdist_group("azurite")]
FOLDER = Path(__file__).parents[4] / ".environments" / "azurite"
ACCOUNT = "keyed"
_numbers = count()


def installed():
    """The program; npm installs it if it is not there."""
    program = FOLDER / "node_modules" / ".bin" / "azurite-blob"
    npm = shutil.which("npm")
    if not program.exists():
        if npm is None:
            pytest.skip("Azurite is installed by npm, which is not on PATH")
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--silent", "--no-audit", "--no-fund", "azurite@3.35.0"]
        subprocess.run(command, cwd=FOLDER, check=True)
    return program


def make_container(endpoint, key):
    """Create a container, which clients of objects cannot do."""
    date = formatdate(usegmt=True)
    text = (
        f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:2021-08-06\n/{ACCOUNT}/{ACCOUNT}/container\nrestype:container"
    )
    signature = base64.b64encode(hmac.digest(base64.b64decode(key), text.encode(), hashlib.sha256)).decode()
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06", "Content-Length": "0"}
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{signature}"
    urlopen(Request(f"{endpoint}/container?restype=container", method="PUT", headers=headers)).close()


def answers(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    program, data = installed(), tmp_path_factory.mktemp("azurite")
    port = free_port()
    key = base64.b64encode(secrets.token_bytes(64)).decode()
    command = [program, "--silent", "--skipApiVersionCheck", "--disableTelemetry", "--location", data]
    command += ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with (data / "log").open("wb") as log:
        environment = os.environ | {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{key}"}
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            until(lambda: answers(port))
            endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
            make_container(endpoint, key)
            yield {"account_name": ACCOUNT, "account_key": key, "endpoint": endpoint, "allow_http": True}
        finally:
            server.kill()
            server.wait()


def log_on(options, **others):
    """A new changelog on the server."""
    return ObjectStoreChangelog(f"az://container/log {next(_numbers)}", options, auto_compact=False, **others)


class TestObjectStoreChangelog(ChangelogConformance):
    @pytest.fixture(autouse=True)
    def _options(self, options):
        self.options = options

    def make_changelog(self, path):
        return log_on(self.options)


def test_of_eight_puts_of_a_name_one_wins(options):
    bucket = Bucket("az", "container", log_on(options).storage_options, 60)
    with ThreadPoolExecutor(8) as pool:
        for number in range(50):
            key = f"race/{number}"
            contents = [f"writer {writer} ".encode() * 5000 for writer in range(8)]
            won = list(pool.map(lambda content, key=key: bucket.put(key, content), contents))
            assert won.count(True) == 1
            assert bucket.get(key) == contents[won.index(True)]


def test_compaction(options):
    changelog = log_on(options, compaction_lag=0)
    changelog.prepare("op", 1)
    sample = SampleGroup(Random(4))
    writer = changelog.writer(0)
    for _ in range(20):
        writer.append(*sample.commit())
    (done,) = changelog.compact()
    assert (done.base, done.newest) == (19, 20)
    assert state_of(changelog.reader(0)) == sample.state
    changelog.keep("a", b"one")
    changelog.forget(["a", "never"])
    assert list(changelog.kept()) == []
