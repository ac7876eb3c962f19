"""The wheel: what is in it, and that it works beside a user's own ``windows.py``."""

import subprocess
import sys
import sysconfig
import zipfile
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
    return next(folder.glob("keyed-*.whl"))


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
def test_an_installed_wheel_works_beside_a_module_named_windows(wheel, tmp_path):
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    (tmp_path / "windows.py").write_text('OWN = "the user\'s"\n')
    (tmp_path / "program.py").write_text(PROGRAM)
    paths = [str(site), sysconfig.get_path("purelib")]
    command = [sys.executable, "-S", "-c", f"import sys, runpy; sys.path[:0] = {[str(tmp_path), *paths]!r}; "]
    command[-1] += f"sys.argv = ['program.py', {str(site)!r}]; runpy.run_path('program.py')"
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[('a', 0, 10, 2), ('a', 10, 20, 1)]\n", "")


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
