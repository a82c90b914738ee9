"""Run the scenarios of the interoperation kit between tailrace (`itk_agent`) and an agent of the kit.

``ITK/.venv/bin/python tests/conformance/itk_run.py --kit ITK --peer python_v10``

The packages of the kit and of its agents must be installed already. The exit status is the number of failed scenarios.
"""

import argparse
import asyncio
import importlib
import sys
from pathlib import Path

BEHAVIORS = (
    ("send_message", False),
    ("send_message", True),
    ("push_notification", False),
    ("resubscribe", True),
)
PROTOCOLS = ("jsonrpc", "http_json", "grpc")

LAUNCHER = """\
import os
import sys

os.execv({python!r}, [{python!r}, {agent!r}, "--kit", {kit!r}, *sys.argv[1:]])
"""


async def run(pair: tuple[str, str]) -> int:
    """Run all behaviors over all protocols from the first agent to the second and back; return the number of failures."""
    testlib = importlib.import_module("testlib")
    processes, _, ports = await testlib.start_itk_cluster(sorted(set(pair)))
    failures = 0
    try:
        for behavior, streaming in BEHAVIORS:
            for protocol in PROTOCOLS:
                name = f"{behavior}{' with streaming' if streaming else ''} over {protocol}"
                results = await testlib.execute_itk_test(
                    sdks=list(pair),
                    behavior=behavior,
                    edges=["0->1", "1->0"],
                    scenario_name=name.replace(" ", "-"),
                    protocols=[protocol],
                    streaming=streaming,
                )
                passed = all(result["passed"] for result in results.values())
                failures += not passed
                print(f"{' and '.join(pair)}: {name}: {'passed' if passed else 'failed'}", flush=True)
    finally:
        testlib.stop_itk_cluster(processes, ports)
    return failures


def main() -> int:
    """Run the scenarios according to the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kit", required=True, type=Path, help="the folder with testlib.py")
    parser.add_argument("--python", default="python", help="an interpreter with tailrace[grpc]")
    parser.add_argument(
        "--peer", required=True, help="an agent of the kit: python_v10, ts_v10, python_v03, ts_v03"
    )
    parser.add_argument("--agent", default="current", help="another agent of the kit in place of tailrace")
    arguments = parser.parse_args()
    kit = arguments.kit.resolve()
    folder = kit / "agents/repo/itk"  # where the kit expects the agent `current`
    folder.mkdir(parents=True, exist_ok=True)
    agent = str(Path(__file__).resolve().with_name("itk_agent.py"))
    launcher = LAUNCHER.format(python=arguments.python, agent=agent, kit=str(kit))
    (folder / "main.py").write_text(launcher)
    sys.path.insert(0, str(kit))
    return asyncio.run(run((arguments.agent, arguments.peer)))


if __name__ == "__main__":
    sys.exit(main())
