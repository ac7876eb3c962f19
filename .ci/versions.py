"""Runs tests with other versions than those of `constraints.txt`: several targets of the Makefile call it.

    python .ci/versions.py 4.0.5 4.1.4 -- tests/keyed/runtimes/spark -x
    python .ci/versions.py lowest -- tests/keyed/runtimes/spark/test_queries.py
    python .ci/versions.py pythons -- tests/upgrade/test_golden.py

Each argument before `--` is a version of Spark, with everything else as `constraints.txt` has it, or `lowest`: the
lowest version that `pyproject.toml` declares of every package the project needs. `pythons` are the other Pythons of
this machine that serve, each with the core alone; `KEYED_OTHER_PYTHONS` names them to the tests, which run in this
Python. Each has a virtual environment of its
own, `.environments/<name>`, which is brought up to date when it is not what is declared. What follows `--` goes to
pytest. All are run, whatever fails; the exit status is the number of those that failed. Java is the machine's own.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / ".environments"
LOWEST, PYTHONS = "lowest", "pythons"
EXTRAS = (
    *("completion", "connect", "delta", "examples", "iceberg", "kafka", "opentelemetry", "postgres", "prometheus"),
    *("registry", "s3", "server", "spark", "sql"),
)
#: What the tests need beside the project, in the versions of `constraints.txt`: no types, no ruff.
TOOLS = (
    *("cloudpickle", "httpx", "hypothesis", "opentelemetry-sdk", "playwright", "polars", "psutil"),
    *("pyiceberg[sql-sqlite]", "pytest", "pytest-xdist", "pyyaml"),
)
#: What the lowest pyspark asks for under `pyspark[connect]`, and others of the lowest: theirs are not our declarations.
LOWEST_OF_OTHERS = {
    "googleapis-common-protos": "1.65.0",
    "grpcio": "1.67.0",
    "grpcio-status": "1.67.0",
    "opentelemetry-sdk": "1.27.0",
}
#: What the lowest versions of others bound from above.
NOT_PINNED_AT_LOWEST = {
    *("cachetools", "numpy", "opentelemetry-semantic-conventions", "psycopg-binary", "rich", "zstandard"),
}
#: Two workers, as `make test` has it. Older versions of PySpark leave their sockets to the garbage collector.
OPTIONS = ("-n", "2", "--dist", "loadgroup", "-W", "ignore:unclosed:ResourceWarning")


def other_pythons() -> dict[str, str]:
    """Return the Pythons of this machine that serve, by their names; of each version one, and not this one."""
    found = {}
    for name in sorted({"python3.11", "python3.12", "python3.13"} - {f"python3.{sys.version_info.minor}"}):
        version = name.removeprefix("python")
        kept = Path.home().glob(f".pyenv/versions/{version}.*/bin/{name}")
        for python in filter(None, [shutil.which(name), *map(str, kept)]):
            done = subprocess.run([python, "-c", "import ensurepip, venv"], check=False, capture_output=True)
            if done.returncode == 0:
                found[name] = python
    return found


def name_of(requirement: str) -> str:
    """Return the package that a requirement is about."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def lowest_declared() -> dict[str, str]:
    """Return the lowest version of each package that `pyproject.toml` declares with `>=`, without developers' ones."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    declared = [*project["dependencies"], *(each for extra in EXTRAS for each in optional[extra])]
    # An extra may name another one of the project itself.
    others = [each for each in declared if name_of(each) != project["name"]]
    return {name_of(each): re.search(r">=([\w.]+)", each)[1] for each in others}  # type: ignore[index]


def constraints(environment: str) -> list[str]:
    """Return the versions of an environment, one a line as pip reads them."""
    if environment == LOWEST:
        changed = {**LOWEST_OF_OTHERS, **lowest_declared()}
        dropped = NOT_PINNED_AT_LOWEST
    elif environment.startswith("python"):
        changed, dropped = {}, set()
    else:
        changed, dropped = {"pyspark": environment}, set()
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    kept = [line for line in lines if line and line[0] != "#" and name_of(line) not in {*changed, *dropped}]
    return [*kept, *(f"{name}=={version}" for name, version in changed.items())]


def prepared(environment: str, interpreter: str = sys.executable) -> Path:
    """Return the Python of an environment, which is made by an interpreter unless it is there."""
    folder = ENVIRONMENTS / environment
    python, stamp = folder / "bin" / "python", folder / "made-from"
    wanted = constraints(environment)
    digest = hashlib.sha256("\n".join([str(ROOT), *EXTRAS, *TOOLS, *wanted]).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return python
    print(f"Installing into {folder.relative_to(ROOT)}", flush=True)
    if not python.exists():
        subprocess.run([interpreter, "-m", "venv", folder], check=True)
    pins = folder / "constraints.txt"
    pins.write_text("\n".join(wanted) + "\n")
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--use-pep517"]
    packages = ["."] if environment.startswith("python") else [f".[{','.join(EXTRAS)}]", *TOOLS]
    subprocess.run([*pip, "--constraint", pins, "--editable", *packages], cwd=ROOT, check=True)
    stamp.write_text(digest)
    return python


def main(arguments: list[str]) -> int:
    """Run pytest in each environment."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    failed = 0
    for environment in arguments[:split]:
        variables = dict(os.environ)
        if environment == PYTHONS:
            python, others = Path(sys.executable), other_pythons()
            variables["KEYED_OTHER_PYTHONS"] = ":".join(str(prepared(*other)) for other in others.items())
            environment = ", ".join(others) or "no other Python"
        else:
            python = prepared(environment)
        print(f"== {environment}", flush=True)
        command = [python, "-m", "pytest", *OPTIONS, *arguments[split + 1 :]]
        failed += subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
