"""Records what a client and a broker of the version before say to each other, and keeps the folder that is left.

`python -m tests.system.upgrade.record TREE`, where TREE has the programs of that version.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
from pathlib import Path

from tests.system.upgrade.before import FOLDER, SESSION, environment


class Listener:
    """Between a client and a broker; writes down what passes, in its order: `number > bytes` of a connection's client,
    `number < bytes` of its broker."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._lock = threading.Lock()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.lines: list[str] = []
        self._count = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._socket.accept()
            broker = socket.create_connection(("127.0.0.1", self._to))
            number, self._count = self._count, self._count + 1
            for source, target, mark in ((client, broker, ">"), (broker, client, "<")):
                threading.Thread(target=self._pass, args=(source, target, f"{number} {mark}"), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, mark: str) -> None:
        while data := source.recv(1 << 20):
            with self._lock:
                self.lines.append(f"{mark} {data.hex()}\n")
                target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def main(tree: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        command = [sys.executable, "-m", "towline", "serve", "--listen", "127.0.0.1:0", "--store", f"file:{data}"]
        command += ["--console", "off", "--segment-bytes", str(1 << 20), "--durability", "os", "--name", "before"]
        broker = subprocess.Popen(command, cwd=tree, env=environment(tree), stdout=subprocess.PIPE, text=True)
        assert broker.stdout is not None
        found = re.search(r":(\d+)$", broker.stdout.readline().strip())
        assert found is not None
        listener = Listener(int(found[1]))
        story = [sys.executable, str(Path(__file__).with_name("story.py")), f"towline://127.0.0.1:{listener.port}"]
        subprocess.run(story, cwd=tree, env=environment(tree), check=True, timeout=120)
        broker.terminate()
        broker.wait(60)
        SESSION.write_text("".join(listener.lines))
        with tarfile.open(FOLDER, "w:xz") as archive:
            archive.add(data, "data", filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return None if member.name == "data/lock" else member


if __name__ == "__main__":
    main(Path(sys.argv[1]))
