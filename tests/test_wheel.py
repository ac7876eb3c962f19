"""The wheel: what is in it, and that it works beside a user's own ``windows.py``."""

import os
import re
import subprocess
import sys
import sysconfig
import time
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PROGRAM = """
import sys
import windows
import keyed
from keyed.windows import Count, TumblingEventTimeWindows
import keyed.pyflink

assert windows.OWN == "the user's", windows.__file__
assert keyed.windows.__file__.startswith(sys.argv[1]), keyed.windows.__file__
rows = [{"k": "a", "t": time} for time in (0, 5, 12)]
counted = keyed.stream(rows, timestamp="t").key_by("k").window(TumblingEventTimeWindows.of(10)).aggregate(n=Count())
print([tuple(row) for row in counted.run()])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("keyed_streams-*.whl"))


@pytest.fixture
def site(wheel, tmp_path):
    """A folder that has the contents of the wheel, as where it is installed."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    return tmp_path / "site"


def run_installed(site, program, *arguments, before=()):
    """Run a program with the wheel and its dependencies, and nothing of the clone."""
    paths = [*map(str, before), str(site), sysconfig.get_path("purelib")]
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {paths!r}; {program}", *arguments]
    return subprocess.run(command, cwd=site.parent, env={}, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_wheel_has_one_package_at_its_top(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"keyed"}
    assert len(names) == len(set(names))
    modules = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("windows/**/*.py")}
    assert {f"keyed/{module}" for module in modules} <= set(names)
    assert {"keyed/py.typed", "keyed/windows/py.typed", "keyed/tables/server/static/keyed.js"} <= set(names)


@pytest.mark.slow
def test_an_installed_wheel_works_beside_a_module_named_windows(site, tmp_path):
    (tmp_path / "windows.py").write_text('OWN = "the user\'s"\n')
    (tmp_path / "program.py").write_text(PROGRAM)
    program = f"import runpy; sys.argv = ['program.py', {str(site)!r}]; runpy.run_path('program.py')"
    done = run_installed(site, program, before=[tmp_path])
    assert (done.stdout, done.stderr) == ("[('a', 0, 10, 2), ('a', 10, 20, 1)]\n", "")


@pytest.mark.slow
def test_an_installed_wheel_explains_errors_without_the_clone(site):
    program = "from keyed.cli.main import main; sys.exit(main(['explain', sys.argv[1]]))"
    done = run_installed(site, program, "StateSchemaChanged")
    text = done.stdout + done.stderr
    assert (done.returncode, "Cause" in text, "Remed" in text, "keyed.example" in text) == (0, True, True, False)
    done = run_installed(site, program, "StateSchema")
    assert done.returncode == 1
    assert "did you mean StateSchemaChanged" in done.stdout + done.stderr


@pytest.mark.slow
def test_the_package_keyed_of_another_project_is_noticed(site):
    (site / "keyed-1.0.2.dist-info").mkdir()
    done = run_installed(site, "import keyed")
    assert done.returncode == 1
    assert "ImportError" in done.stderr
    assert "pip uninstall keyed keyed-streams, then pip install keyed-streams" in done.stderr


@pytest.mark.slow
def test_both_distributions_are_built_and_installed_into_an_empty_environment(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path / "dist")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    names = sorted(path.name for path in (tmp_path / "dist").iterdir())
    assert [re.sub(r"\d+\.\d+\.\d+(\.dev\d+)?", "N", name) for name in names] == [
        "keyed_streams-N-py3-none-any.whl",
        "keyed_streams-N.tar.gz",
    ]
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    pip = [tmp_path / "venv" / "bin" / "pip", "--disable-pip-version-check", "-q", "install"]
    subprocess.run([*pip, tmp_path / "dist" / names[0]], check=True)
    command = [tmp_path / "venv" / "bin" / "keyed", "--version"]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    assert (done.stdout.split()[0], done.stderr, done.returncode) == ("keyed", "", 0)


#: The README's first idea, and what needs an extra: each line of output names it.
CORE = """
import keyed

class Count(keyed.KeyedProcessFunction):
    count = keyed.ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        yield {"word": value["word"], "count": self.count.value()}

log = keyed.DirectoryChangelog("log")
words = [{"word": "a"}, {"word": "b"}, {"word": "a"}]
counted = keyed.stream(words).key_by("word").process(Count(), "word string, count bigint", changelog=log)
result = counted.run(checkpoint="checkpoint")
print([tuple(row) for row in result])
tables = keyed.tables.open_tables(log, "tables")
tables.poll()
print(tables["count"].get("a"))

from keyed.testing import KeyedTestHarness

def needs(extra, package, use):
    try:
        use()
    except keyed.errors.ExtraNotInstalled as error:
        assert isinstance(error, ImportError)
        assert error.name == package and f"pip install 'keyed-streams[{extra}]'" in str(error), error
    else:
        raise AssertionError(f"{extra} is not asked for")

def imported(module, name):
    getattr(__import__(module, fromlist=[name]), name)

needs("spark", "pyspark", keyed.spark_session)
needs("spark", "pandas", result.to_pandas)
needs("sql", "duckdb", lambda: tables.sql("select 1"))
needs("server", "starlette", lambda: imported("keyed.tables.server", "serve"))
needs("testing", "hypothesis", lambda: imported("keyed.testing", "assert_deterministic"))
needs("testing", "hypothesis", lambda: imported("keyed.testing", "strategies"))
needs("kafka", "confluent_kafka", lambda: keyed.KafkaChangelog("topic", bootstrap="127.0.0.1:1").header())
needs("delta", "deltalake", lambda: counted.run(keyed.delta_sink("table")))
needs("iceberg", "pyiceberg", lambda: counted.run(keyed.iceberg_sink("a.b")))
needs("s3", "obstore", lambda: keyed.ObjectStoreChangelog("s3://bucket/log").header())
tables.close()
"""


def distributions_of(requirements):
    """Return the distributions of requirements, with what those need."""
    found: dict[str, Distribution] = {}
    needed = list(requirements)
    while needed:
        each = needed.pop()
        name = re.split(r"[^\w.-]", each, maxsplit=1)[0]
        if name not in found and "extra ==" not in each:
            found[name] = distribution(name)
            needed += found[name].requires or ()
    return found


@pytest.mark.slow
def test_the_core_alone_runs_locally_and_each_entrance_names_its_extra(site, tmp_path):
    own = Distribution.at(next(site.glob("keyed_streams-*.dist-info")))
    assert {(entry.group, entry.name): entry.value for entry in own.entry_points} == {
        ("console_scripts", "keyed"): "keyed.cli.main:console",
        ("pytest11", "keyed.pytest_plugin"): "keyed.pytest_plugin",
        ("hypothesis", "keyed"): "keyed.pytest_plugin:register_strategies",
    }
    found = distributions_of(own.requires)
    assert sorted(found) == ["attrs", "lmdb", "msgspec", "numpy", "pyarrow", "rocksdict", "xxhash"]
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    for each in found.values():
        size += sum(file.size or 0 for file in each.files)
        for top in {file.parts[0] for file in each.files} - {".."}:
            (site / top).symlink_to(each.locate_file(top))
    (tmp_path / "program.py").write_text(CORE)
    program = f"import sys, runpy; sys.path[:0] = [{str(site)!r}]; runpy.run_path('program.py')"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=tmp_path, env={}, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[('a', 1), ('b', 1), ('a', 2)]\n2\n", "")
    sys.stdout.write(f"core: {size / 1e6:.0f} MB; the program took {time.monotonic() - began:.1f} s\n")


@pytest.mark.slow
@pytest.mark.long
def test_an_environment_with_a_spark_of_its_own_keeps_it(wheel, tmp_path):
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "install", "pyspark==4.0.1", "pandas==2.2.3", "protobuf==5.29.5"], check=True)
    before = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True).stdout
    subprocess.run([*pip, "install", wheel], check=True)
    after = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True).stdout
    assert set(before.splitlines()) <= set(after.splitlines())
    program = CORE.partition("log =")[0] + (
        "spark = keyed.spark_session(master='local[1]', parallelism=1)\n"
        "frame = spark.createDataFrame([('a',), ('b',), ('a',)], 'word string')\n"
        "output = keyed.stream(frame).key_by('word').process(Count(), 'word string, count bigint')\n"
        "print(sorted(tuple(row) for row in output.run()))\n"
    )
    (tmp_path / "program.py").write_text(program)
    environment = {name: value for name, value in os.environ.items() if name in ("PATH", "JAVA_HOME", "HOME")}
    done = subprocess.run(
        [python, "program.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[('a', 1), ('a', 2), ('b', 1)]\n", done.stderr


@pytest.mark.parametrize("first", ["windows", "keyed.windows", "windows.aggregates", "keyed.windows.vectorized.fold"])
def test_in_a_clone_the_modules_have_two_names_and_are_loaded_once(first):
    program = f"""
import importlib, sys
importlib.import_module({first!r})
for name in ("", ".aggregates", ".vectorized", ".vectorized.fold", ".triggers"):
    one, other = (importlib.import_module(top + name) for top in ("windows", "keyed.windows"))
    assert one is other and one.__name__ == one.__spec__.name == "keyed.windows" + name, (one, other)
from windows.triggers import Trigger
import keyed
assert Trigger is keyed.windows.Trigger
files = [module.__file__ for name, module in sys.modules.items() if name.startswith("keyed.windows")]
assert len(files) == len(set(files))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
