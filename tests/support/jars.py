"""Java libraries for tests, fetched once by the Ivy that pyspark ships, and kept in the user's cache folder.

Each set of libraries has its own folder, named after the libraries and their versions. The folder is renamed into
place, so it is always complete.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from string import Template

import pyspark

from keyed.errors import SessionError
from keyed.runtimes.spark.session.java import require_java_home


def _modules(name: str, **versions: str) -> str:
    """Return a set of libraries, as Ivy has it in a file of `ivy`."""
    return Template((Path(__file__).parent / "ivy" / f"{name}.xml").read_text()).substitute(versions)


#: A Kafka broker and its dependencies. Kafka 4 logs through slf4j 1.7, so the binding is the one for 1.7.
BROKER = _modules("broker")
#: Version of the connector; if the version of this Spark is not available, one that fits.
_CONNECTOR = {"4.0": "4.0.0", "4.1": "4.1.0"}.get(pyspark.__version__[:3], "4.2.0")
#: Spark's Kafka connector: only libraries that are not among pyspark's own jars. Users get
#: the version of their Spark with `spark.jars.packages`.
CONNECTOR = _modules("connector", connector=_CONNECTOR)
#: Hadoop's S3A for the Hadoop of Spark 4.3, with the modules of Amazon's SDK that it uses: the bundle of all is 600 MB.
S3A = _modules("s3a")
#: The version of Spark that this is, as names of libraries have it.
_SPARK = pyspark.__version__[:3]
#: Versions of Iceberg's library by Spark; other versions of Spark have none.
_ICEBERG = {"4.0": "1.11.0", "4.1": "1.12.0"}
#: Delta and Iceberg on Spark, and the driver of Iceberg's catalog in a file; empty if there are none for this Spark.
LAKEHOUSE = _modules("lakehouse", spark=_SPARK, iceberg=_ICEBERG[_SPARK]) if _SPARK in _ICEBERG else ""
#: The Kafka connector of Flink SQL and its Avro with a schema registry, each with its dependencies in one file.
FLINK_KAFKA = _modules("flink_kafka")
#: Flink SQL's Parquet; it needs Hadoop's client, which pyspark has among its jars.
FLINK_PARQUET = _modules("flink_parquet")

_FETCH_SECONDS = 600


class NoJars(Exception):
    """The libraries are neither in the cache nor available for download."""


def cache_folder() -> Path:
    """Return the folder of the tests' downloads."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "keyed"


def fetch(libraries: str) -> list[Path]:
    """Return the files of a set of libraries, ordered by name.

    Args:
        libraries: One of the sets of this module.

    Raises:
        NoJars: They are not in the cache and cannot be fetched.
    """
    cache = cache_folder()
    folder = cache / f"jars-{hashlib.sha256(libraries.encode()).hexdigest()[:16]}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "lock").open("w") as lock:
            # If two workers start at once, the second uses the files of the first: Ivy's cache is for one process.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                _fill(folder, libraries, cache)
    except (OSError, SessionError) as error:
        raise NoJars(f"{folder} cannot be created: {error}") from error
    return sorted(folder.glob("*.jar"))


def _fill(folder: Path, libraries: str, cache: Path) -> None:
    """Create a folder with the files of a set of libraries, in one step."""
    new = Path(tempfile.mkdtemp(dir=cache, prefix=".jars-"))
    try:
        _retrieve(libraries, new, cache / "ivy")
        new.rename(folder)
    except OSError:
        if not folder.exists():  # unless another process was first
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _retrieve(libraries: str, folder: Path, ivy_cache: Path) -> None:
    """Have Ivy resolve the libraries and copy their files into a folder."""
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"), None)
    if ivy is None:
        raise NoJars("this pyspark has no Ivy among its jars")
    wanted = folder / "ivy.xml"
    wanted.write_text(libraries)
    command = [f"{require_java_home()}/bin/java", "-jar", str(ivy), "-cache", str(ivy_cache)]
    command += ["-types", "jar", "bundle", "-ivy", str(wanted), "-retrieve", f"{folder}/[artifact]-[revision].[ext]"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_FETCH_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise NoJars(f"Ivy did not end within {_FETCH_SECONDS} s") from error
    if done.returncode != 0:
        raise NoJars(f"Ivy could not fetch them:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
