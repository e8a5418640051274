"""A standalone cluster of the pip package, and the processes in it that can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port
from tests.spark.session import environment

__all__ = ["PATIENCE_S", "Cluster", "kill_group", "running_cluster"]

PATIENCE_S = 240.0
"""These are JVMs, maybe on a busy machine."""


def kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait(PATIENCE_S)


class Cluster:
    def __init__(self, url: str) -> None:
        self.url = url
        self.workers: list[subprocess.Popen[bytes]] = []

    def executors(self) -> list[int]:
        """The executors' JVMs, which are children of the workers."""
        parents = {process.pid for process in self.workers}
        return [pid for pid, text in _below(parents) if "CoarseGrainedExecutorBackend" in text]

    def python_workers(self) -> list[int]:
        """The processes in which tasks run Python, and the daemons that fork them."""
        return [pid for pid, text in _below(set(self.executors())) if "pyspark" in text]


def _below(parents: set[int]) -> list[tuple[int, str]]:
    """All processes that descend from these, with their command lines."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue  # it has ended
        children.setdefault(parent, []).append(int(folder.name))
    found: list[tuple[int, str]] = []
    waiting = [pid for parent in parents for pid in children.get(parent, [])]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        try:
            found.append((pid, Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()))
        except OSError:
            continue
    return found


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """A master and two workers."""
    import pyspark

    home = Path(pyspark.__file__).parent
    port = free_port()
    cluster = Cluster(f"spark://127.0.0.1:{port}")
    names = [("Master", ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"])]
    worker = [cluster.url, "--host", "127.0.0.1", "--cores", "1", "--memory", "600m", "--webui-port", "0"]
    names += [("Worker", worker)] * 2
    env = os.environ | environment() | {"SPARK_HOME": str(home), "SPARK_WORKER_DIR": str(folder / "workers")}
    quick = f"{os.environ.get('SPARK_DAEMON_JAVA_OPTS', '')} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    env |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": quick}
    # Executors take it from their worker: one that is killed leaves its libraries behind.
    env |= {"JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={tempfile.gettempdir()}"}
    processes, logs = [], []
    try:
        for number, (name, arguments) in enumerate(names):
            log = folder / f"{name}-{number}.log"
            logs.append(log.open("wb"))
            command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name.lower()}.{name}", *arguments]
            process = subprocess.Popen(
                command, env=env, stdout=logs[-1], stderr=subprocess.STDOUT, start_new_session=True
            )
            processes.append(process)
            if name == "Worker":
                cluster.workers.append(process)
        master = folder / "Master-0.log"
        deadline = time.monotonic() + PATIENCE_S
        while master.read_text().count("Registering worker") < 2:
            assert time.monotonic() < deadline, master.read_text()[-3000:]
            time.sleep(0.1)
        yield cluster
    finally:
        for process in processes:
            kill_group(process)
        for log_file in logs:
            log_file.close()
