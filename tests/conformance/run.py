"""Start the scenario agent, run an official compatibility kit against it, and stop the agent.

``python tests/conformance/run.py 1.0 --kit FOLDER --python FOLDER/.venv/bin/python [-- OPTIONS OF THE KIT]``

The kit and an interpreter with its dependencies must be installed already: nothing is downloaded. The exit status is that of
the kit.
"""

import argparse
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

HERE = Path(__file__).parent
START_TIMEOUT = 60.0
STOP_TIMEOUT = 10.0


def free_port() -> int:
    """Return a port outside the ephemeral range, so that no connection of the kit occupies it."""
    for port in range(21250, 32000):
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)):
                return port
    raise SystemExit("no port between 21250 and 32000 is free")


def wait_until_ready(agent: "subprocess.Popen[bytes]", url: str) -> None:
    """Return once the agent serves its card.

    Raises:
        SystemExit: It ended, or does not respond.
    """
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and agent.poll() is None:
        try:
            with urlopen(url + ".well-known/agent-card.json", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.1)
    raise SystemExit("the agent did not start; what it printed says why")


def kit_command(arguments: argparse.Namespace, url: str) -> list[str]:
    """Return the command that runs the kit against an agent at this address."""
    command = [arguments.python, "run_tck.py"]
    if arguments.version == "1.0":
        return [*command, "--sut-host", url.rstrip("/"), "--transport", arguments.transports]
    return [*command, "--sut-url", url, "--category", "all", "--transports", arguments.transports]


def main() -> int:
    """Run a kit according to the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("version", choices=("1.0", "0.3"), help="the version of the kit")
    parser.add_argument("--kit", required=True, type=Path, help="the folder with run_tck.py")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with the kit's packages")
    parser.add_argument("--card-version", choices=("1.0", "0.3", "both"), help="that of the kit by default")
    parser.add_argument("--transports", help="as the kit names them; all that the agent speaks by default")
    parser.add_argument(
        "--required-extension", action="store_true", help="of the agent; for -- -- -k Extension"
    )
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:end])
    arguments.transports = arguments.transports or (
        "jsonrpc,http_json,grpc" if arguments.version == "1.0" else "jsonrpc"
    )
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    started = [
        sys.executable,
        str(HERE / "agent.py"),
        "--port",
        str(port),
        "--card-version",
        arguments.card_version or arguments.version,
    ]
    if "grpc" in arguments.transports:
        started += ["--grpc-port", "0"]
    if arguments.required_extension:
        started.append("--required-extension")
    with subprocess.Popen(started) as agent:
        try:
            wait_until_ready(agent, url)
            command = [*kit_command(arguments, url), *words[end + 1 :]]
            environment = {**os.environ, "TCK_STREAMING_TIMEOUT": "2.0"}
            return subprocess.run(command, cwd=arguments.kit, env=environment, check=False).returncode
        finally:
            agent.terminate()
            try:
                agent.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                agent.kill()


if __name__ == "__main__":
    sys.exit(main())
