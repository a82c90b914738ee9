"""Record the pictures of the README: the demo in a terminal (SVG) and the chat in a browser (PNG).

Needs the local model and Chromium, which `make e2e` installs. Run `.venv/bin/python docs/pictures/record.py`.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

FOLDER = Path(__file__).parent
WIDTH = 112
TERMINAL = {
    **os.environ,
    "COLUMNS": str(WIDTH),
    "FORCE_COLOR": "1",
    "TERM": "xterm-256color",
    "TTY_INTERACTIVE": "0",  # no progress bar
}


def record() -> None:
    """Run the demo, and record its terminal and its chat."""
    program = Path(sys.executable).with_name("tailrace")
    with subprocess.Popen([program, "demo"], stdout=subprocess.PIPE, text=True, env=TERMINAL) as demo:
        assert demo.stdout is not None
        lines: list[Text] = []
        while not lines or not lines[-1].plain.startswith("serving at"):
            lines.append(Text.from_ansi(demo.stdout.readline().rstrip()))
        record_terminal(lines)
        record_chat(lines[-1].plain.split()[2])
        demo.send_signal(signal.SIGINT)


def record_terminal(lines: list[Text]) -> None:
    """Write the lines of a terminal as a picture that loads no fonts."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere)
        for line in [Text("$ make demo", style="bold"), *lines]:
            console.print(line)
    picture = console.export_svg(title="make demo", unique_id="demo")
    fonts = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
    (FOLDER / "demo.svg").write_text(fonts.sub("", picture), encoding="utf-8")


def record_chat(url: str) -> None:
    """Ask the agent at a URL in the browser, and write a screenshot of the chat and its inspector."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 640})
        page.goto(url)
        page.get_by_role("textbox").first.fill("Why is the sky blue? Answer in two sentences.")
        page.keyboard.press("Enter")
        page.locator("article[data-state=completed]").wait_for(timeout=120_000)
        page.get_by_role("button", name="Inspector").click()
        page.screenshot(path=FOLDER / "chat.png")
        browser.close()


if __name__ == "__main__":
    record()
