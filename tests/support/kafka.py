"""A Kafka broker for tests: one that an environment variable names, or a real one, started here on loopback.

`Broker` runs Apache Kafka in KRaft mode, broker and controller in one process, with its data in a folder that survives
a kill: `start` after `kill` recovers from it at the same address. More brokers may join it. It ends with this process.
"""

from __future__ import annotations

import base64
import shutil
import signal
import subprocess
import uuid
from pathlib import Path

from keyed.errors import SessionError
from keyed.runtimes.spark.session.java import require_java_home
from tests.support.jars import BROKER, NoJars, fetch
from tests.support.limits import free_ports
from tests.support.waiting import until

#: Environment variable with the address of a broker to use instead of our own: ``host:port``.
ADDRESS = "KEYED_TEST_KAFKA"

#: The user of the listener with log-in. It has only the rights that a test grants; other listeners allow everything.
USER, PASSWORD = "keyed", "keyed-secret"

#: Settings of brokers, as templates.
_SETTINGS = Path(__file__).with_name("kafka_settings")
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_KEYSTORE, _CERTIFICATE = "tls.p12", "tls.pem"
#: keytool, which a Java runtime without tools also has.
_KEYTOOL = ("-m", "java.base/sun.security.tools.keytool.Main")
_START_SECONDS, _STOP_SECONDS = 120, 20
_READY = b"Kafka Server started"


class NoBroker(Exception):
    """No broker is given, and none can be started here."""


class Broker:
    """A broker of our own.

    Args:
        folder: Folder for its settings, data and log.
        node: Its number.
        first: The broker that it joins, number 1; not for number 1 itself.
        replicas: Planned number of brokers, and of replicas of internal topics.

    Attributes:
        bootstrap: Its address, the same for all its lives.
        sasl_bootstrap: The address with log-in, by SASL PLAIN; only of the first broker.
        tls_bootstrap: The address with TLS; only of the first broker.
        certificate: The certificate that TLS clients have to trust.
    """

    def __init__(self, folder: Path, *, node: int = 1, first: Broker | None = None, replicas: int = 1) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._node = node
        self._is_first = first is None
        self._ports = dict(zip(("port", "sasl_port", "tls_port", "controller_port"), free_ports(4), strict=True))
        # The first character must not be that of an option.
        self._cluster = base64.urlsafe_b64encode(b"k" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        self._replicas = replicas
        if first is not None:
            self._ports["controller_port"] = first._ports["controller_port"]
            self._cluster, self._replicas = first._cluster, first._replicas
        self.bootstrap = f"127.0.0.1:{self._ports['port']}"
        self.sasl_bootstrap = f"127.0.0.1:{self._ports['sasl_port']}"
        self.tls_bootstrap = f"127.0.0.1:{self._ports['tls_port']}"
        self.certificate = folder / _CERTIFICATE

    def start(self) -> None:
        """Start it, and wait until it serves: 3 to 5 s.

        Raises:
            NoBroker: Java or Kafka is not available, or it does not start; the message has the end of its log.
        """
        try:
            jars = fetch(BROKER)
            java = Path(require_java_home()) / "bin" / "java"
        except (SessionError, NoJars) as error:
            raise NoBroker(str(error)) from error
        logging = self._folder / "log4j2.yaml"
        command = [str(java), *_JVM, f"-Dlog4j2.configurationFile={logging}", "-cp", ":".join(map(str, jars))]
        settings = self._folder / "server.properties"
        if not settings.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(_SETTINGS / logging.name, logging)
            if self._is_first:
                certificate(self._folder)
            listeners = _SETTINGS / ("first.properties" if self._is_first else "other.properties")
            settings.write_text(
                (listeners.read_text() + (_SETTINGS / settings.name).read_text()).format(
                    **self._ports,
                    node=self._node,
                    replicas=self._replicas,
                    in_sync=min(self._replicas, 2),
                    data=self._folder / "data",
                    users=f'user_{USER}="{PASSWORD}"',
                    keystore=self._folder / _KEYSTORE,
                    password=PASSWORD,
                )
            )
            quorum = "--standalone" if self._is_first else "--no-initial-controllers"
            storage = ["kafka.tools.StorageTool", "format", quorum, "-t", self._cluster, "-c", str(settings)]
            done = subprocess.run([*command, *storage], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise NoBroker(f"Kafka's folder cannot be created: {done.stdout}{done.stderr}")
        log = self._folder / "kafka.log"
        start = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, "kafka.Kafka", str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                start_new_session=True,
            )
        self._guard = guard(self._process.pid)
        ended = self._process.poll
        try:
            until(lambda: _READY in log.read_bytes()[start:] or ended() is not None, seconds=_START_SECONDS)
            assert ended() is None
        except AssertionError as error:
            self.kill()
            raise NoBroker(f"Kafka did not start: {log.read_text()[-4000:]}") from error

    def kill(self) -> None:
        """Crash it: SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._end_guard()

    def stop(self) -> None:
        """End it; a crash if it takes too long."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        self._end_guard()

    def _end_guard(self) -> None:
        if self._guard is not None:
            with self._guard:
                self._guard.kill()


def guard(group: int) -> subprocess.Popen[bytes]:
    """Start a process that kills a group of processes when this process ends, also by SIGKILL: its input then ends."""
    command = ["sh", "-c", 'read -r _; kill -9 "-$0"', str(group)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def certificate(folder: Path) -> Path:
    """Create a key and its certificate for a server at 127.0.0.1.

    Returns:
        The self-signed certificate.
    """
    store = ["-keystore", str(folder / _KEYSTORE), "-storetype", "PKCS12", "-storepass", PASSWORD, "-alias", "server"]
    made = folder / _CERTIFICATE
    key = ["-genkeypair", "-keyalg", "EC", "-dname", "CN=127.0.0.1", "-ext", "san=ip:127.0.0.1", "-validity", "30"]
    for command in (key, ["-exportcert", "-rfc", "-file", str(made)]):
        tool = [f"{require_java_home()}/bin/java", *_JVM, *_KEYTOOL]
        subprocess.run([*tool, *command, *store], capture_output=True, check=True)
    return made
