"""A real S3 server for tests: MinIO, built from its source by Go, on loopback."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from tests.support.limits import free_port
from tests.support.programs import NoServer, build_by_go
from tests.support.waiting import until

MODULE, VERSION = "github.com/minio/minio", "v0.0.0-20260212201848-7aac2a2c5b7c"
USER, PASSWORD = "keyed-user", "keyed-secret"


@contextmanager
def minio(data: Path) -> Iterator[dict[str, Any]]:
    """Run a server with a bucket ``bucket``, and yield the options of its clients.

    Args:
        data: Folder for its data.
    """
    program = build_by_go(MODULE, VERSION)
    # MinIO treats a folder of its data as a bucket.
    (data / "bucket").mkdir(parents=True)
    address = f"127.0.0.1:{free_port()}"
    settings = {"MINIO_ROOT_USER": USER, "MINIO_ROOT_PASSWORD": PASSWORD, "MINIO_BROWSER": "off"}
    with (data.parent / "minio.log").open("wb") as log:
        server = subprocess.Popen(
            [program, "server", "--address", address, data],
            env={**os.environ, **settings, "HOME": str(data.parent)},
            stdout=log,
            stderr=log,
        )
        try:
            until(lambda: _is_ready(address, server))
            yield {
                "endpoint": f"http://{address}",
                "allow_http": True,
                "region": "us-east-1",
                "access_key_id": USER,
                "secret_access_key": PASSWORD,
            }
        finally:
            server.send_signal(signal.SIGKILL)
            server.wait()


def _is_ready(address: str, server: subprocess.Popen[bytes]) -> bool:
    if server.poll() is not None:
        raise NoServer(f"MinIO has ended with status {server.returncode}")
    try:
        with urlopen(f"http://{address}/minio/health/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False
