"""A standalone Spark cluster on loopback whose processes share no folder: a master, workers, and a program of ours.

The master, each worker and the program have their own home, temporary folder and working directory, as on machines of
their own. An executor has those of its worker. A worker can lose its executor (`kill_executor`), be lost with all that
is on its disk (`lose`), or be decommissioned by Spark (`decommission`).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil
import pyspark

from keyed.runtimes.spark.session.java import require_java_home
from tests.support.classes import jvm_options
from tests.support.waiting import until

_ROOT = Path(__file__).parents[2]
_SPARK = Path(pyspark.__file__).parent
_EXECUTOR = "CoarseGrainedExecutorBackend"
#: Settings of a program whose executors are those of such a cluster, of one core each.
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "768m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": jvm_options(),
    "spark.ui.enabled": "false",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    # An executor that is killed again and again is not excluded.
    "spark.excludeOnFailure.enabled": "false",
}


class Machine:
    """A process that has nothing in common with others except the network and what it is given.

    Args:
        folder: Its folder; home, temporary and working folder are in it.
        command: The command.
        env: Further variables of the environment.
    """

    def __init__(self, folder: Path, command: Sequence[str], env: dict[str, str] | None = None) -> None:
        self.folder = folder
        names = ("home", "tmp", "cwd", "spark")
        for name in names:
            (folder / name).mkdir(parents=True, exist_ok=True)
        home, temporary, working, spark = (folder / name for name in names)
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        self.log = folder / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=working,
                env={
                    **kept,
                    "HOME": str(home),
                    "TMPDIR": str(temporary),
                    "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={temporary}",
                    "JAVA_HOME": require_java_home(),
                    "SPARK_HOME": str(_SPARK),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_LOCAL_DIRS": str(spark),
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_DAEMON_JAVA_OPTS": f"{jvm_options()} -Dspark.decommission.enabled=true",
                    "PYSPARK_PYTHON": sys.executable,
                    # The code is installed on every machine.
                    "PYTHONPATH": str(_ROOT),
                    **(env or {}),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        """Return what it has logged."""
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str, seconds: float = 900) -> None:
        """Wait until it has logged a text."""
        poll = self.process.poll
        until(lambda: text in self.said() or poll() is not None, seconds=seconds, report=lambda: self.said()[-4000:])
        assert text in self.said(), self.said()[-6000:]

    def kill(self) -> None:
        """SIGKILL it with all of its processes."""
        with suppress(psutil.NoSuchProcess):
            for each in [*psutil.Process(self.process.pid).children(recursive=True), self.process]:
                with suppress(psutil.NoSuchProcess, ProcessLookupError):
                    each.kill()
        self.process.wait()


class Worker(Machine):
    """A worker with one executor of one core."""

    def executors(self) -> list[psutil.Process]:
        """Return its running executors."""
        found = []
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children():
                with suppress(psutil.NoSuchProcess):
                    if any(_EXECUTOR in word for word in child.cmdline()):
                        found.append(child)
        return found

    def kill_executor(self) -> bool:
        """SIGKILL its executor and that one's Python processes; Spark starts another one. False if it has none."""
        executors = self.executors()
        for executor in executors:
            with suppress(psutil.NoSuchProcess):
                family = [executor, *executor.children(recursive=True)]
                for each in family:
                    with suppress(psutil.NoSuchProcess):
                        each.kill()
        return bool(executors)

    def lose(self) -> None:
        """Lose the machine, with its disk."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def decommission(self) -> None:
        """Have Spark decommission it: its executor ends after its task, and no other one starts."""
        os.kill(self.process.pid, signal.SIGPWR)


class SparkCluster:
    """The cluster.

    Args:
        folder: Folder of the folders of its machines.

    Attributes:
        workers: Its workers, in the order of their start.
        url: The address of the master.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._programs = 0
        self.workers: list[Worker] = []
        spark_class = str(_SPARK / "bin" / "spark-class")
        self._worker = [spark_class, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1"]
        options = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        self._master = Machine(folder / "master", [spark_class, "org.apache.spark.deploy.master.Master", *options])
        self._machines = [self._master]
        self._address = re.compile(r"Starting Spark master at (spark://\S+)")

    @property
    def url(self) -> str:
        """The address of the master; waits until it has one."""
        self._master.wait_for("Starting Spark master at")
        found = self._address.search(self._master.said())
        assert found is not None
        return found[1]

    def add_worker(self) -> Worker:
        """Start a worker."""
        folder = self._folder / f"worker-{len(self.workers)}"
        options = ["--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(folder / "work"), self.url]
        worker = Worker(folder, [*self._worker, *options])
        self.workers.append(worker)
        self._machines.append(worker)
        return worker

    def program(self, *arguments: str, env: dict[str, str] | None = None) -> Machine:
        """Start a module with Python on a machine of its own: the driver.

        Args:
            arguments: The module and its arguments.
            env: Further variables of the environment.
        """
        self._programs += 1
        folder = self._folder / f"driver-{self._programs}"
        variables = {"SPARK_SUBMIT_OPTS": jvm_options(), **(env or {})}
        machine = Machine(folder, [sys.executable, "-m", *arguments], variables)
        self._machines.append(machine)
        return machine

    def stop(self) -> None:
        """End all processes."""
        for machine in reversed(self._machines):
            machine.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
