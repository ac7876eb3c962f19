"""A server of Azure's protocol for tests: Azurite, Microsoft's own, which npm installs if need be, on loopback."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.support.limits import free_port
from tests.support.programs import ENVIRONMENTS, NoServer
from tests.support.waiting import until

FOLDER = ENVIRONMENTS / "azurite"
ACCOUNT = "keyed"


def installed() -> Path:
    """Return the program; npm installs it if it is not there.

    Raises:
        NoServer: There is no npm, or it fails.
    """
    program = FOLDER / "node_modules" / ".bin" / "azurite-blob"
    npm = shutil.which("npm")
    if not program.exists():
        if npm is None:
            raise NoServer("Azurite is installed by npm, which is not on PATH")
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--silent", "--no-audit", "--no-fund", "azurite@3.35.0"]
        if subprocess.run(command, cwd=FOLDER, check=False).returncode:
            raise NoServer("npm could not install Azurite")
    return program


@contextmanager
def azurite(data: Path) -> Iterator[dict[str, Any]]:
    """Run a server with a container ``container``, and yield the options of its clients.

    Args:
        data: Folder for its data.
    """
    program, port = installed(), free_port()
    data.mkdir(parents=True, exist_ok=True)
    key = base64.b64encode(secrets.token_bytes(64)).decode()
    command = [str(program), "--silent", "--skipApiVersionCheck", "--disableTelemetry", "--location", str(data)]
    command += ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with (data / "log").open("wb") as log:
        environment = os.environ | {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{key}"}
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            until(lambda: _answers(port))
            endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
            _make_container(endpoint, key)
            yield {"account_name": ACCOUNT, "account_key": key, "endpoint": endpoint, "allow_http": True}
        finally:
            server.kill()
            server.wait()


def _make_container(endpoint: str, key: str) -> None:
    """Create a container, which clients of objects cannot do."""
    date = formatdate(usegmt=True)
    text = (
        f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:2021-08-06\n/{ACCOUNT}/{ACCOUNT}/container\nrestype:container"
    )
    signature = base64.b64encode(hmac.digest(base64.b64decode(key), text.encode(), hashlib.sha256)).decode()
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06", "Content-Length": "0"}
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{signature}"
    urlopen(Request(f"{endpoint}/container?restype=container", method="PUT", headers=headers)).close()


def _answers(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
