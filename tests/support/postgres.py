"""A PostgreSQL server of the machine, on loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.limits import free_port
from tests.support.waiting import until

PASSWORD = "p-secret%"


def binaries() -> Path | None:
    """Return the folder of the server's programs; ``None`` if there is no server."""
    found = shutil.which("initdb")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return Path(found).resolve().parent if found else folders[-1] if folders else None


@contextmanager
def postgres_server(programs: Path) -> Iterator[str]:
    """Start a server with a user that has a password; yield the connection without it."""
    # The server refuses to run as root.
    user = "postgres" if os.getuid() == 0 else None
    with tempfile.TemporaryDirectory() as folder:
        data, password, port = Path(folder, "data"), Path(folder, "password"), free_port()
        password.write_text(PASSWORD)
        if user is not None:
            for path in (folder, password):
                shutil.chown(path, user)
        options = ["-U", "keyed", "-A", "scram-sha-256", f"--pwfile={password}", "-E", "UTF8", "--no-sync"]
        subprocess.run([programs / "initdb", "-D", data, *options], check=True, capture_output=True, user=user)
        command: list[str | Path] = [
            programs / "postgres",
            "-D",
            data,
            "-p",
            str(port),
            "-k",
            folder,
            "-h",
            "127.0.0.1",
        ]
        with Path(folder, "log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, user=user)
        try:
            ready: list[str | Path] = [programs / "pg_isready", "-h", "127.0.0.1", "-p", str(port)]
            until(lambda: subprocess.run(ready, check=False, capture_output=True).returncode == 0)
            yield f"host=127.0.0.1 port={port} user=keyed dbname=postgres"
        finally:
            server.terminate()
            server.wait()
