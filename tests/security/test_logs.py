"""No caller, provider or model can forge a log line, in any format, or in the log of an embedding application."""

import io
import json
import logging
import logging.config
import re
from base64 import urlsafe_b64encode
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.agents import nothing
from support.live_server import serving
from support.rpc import Rpc
from tailrace.server import JwtSettings, Settings, create_app
from tailrace.server.observability.logs import log_config
from tailrace.wrappers.redaction.log_escaping import MAX_LINES, MAX_TEXT, printable, printable_lines

ROOT = Path(__file__).parents[2]
FORGED = (
    "x\r\nERROR:    forged\x1b[2J\x1b]0;title\x07\x9b31m\x7f\u2028INFO: a\u2029b\u202ecba\u2066\u0085\x00"
)
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
FORMATS = ("text", "json")


class Output:
    """Records the output of a configured log."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.stream = io.StringIO()
        configurator = logging.config.DictConfigurator(config)
        self.handler = logging.StreamHandler(self.stream)
        self.handler.setFormatter(configurator.configure_formatter(config["formatters"]["line"]))
        self.handler.addFilter(configurator.configure_filter(config["filters"]["ids"]))

    @property
    def text(self) -> str:
        return self.stream.getvalue()


@pytest.fixture(params=FORMATS)
def output(request: pytest.FixtureRequest) -> Generator[Output]:
    """Configure the log like `tailrace serve`."""
    found = Output(log_config(request.param))
    loggers = [logging.getLogger(name) for name in ("of.somebody", "tailrace.server")]
    for logger in loggers:
        logger.addHandler(found.handler)
        logger.propagate = False
    yield found
    for logger in loggers:
        logger.removeHandler(found.handler)
        logger.propagate = True


def is_one_record(text: str) -> bool:
    """Return whether a text is one line, followed only by indented traceback lines, without control characters."""
    first, *rest = text.removesuffix("\n").split("\n")
    return bool(first) and not UNSAFE.search(text) and all(line.startswith("    ") for line in rest)


def test_a_message_is_one_line(output: Output) -> None:
    logging.getLogger("of.somebody").warning("said " + FORGED)
    assert is_one_record(output.text)
    assert r"\r\nERROR:    forged\x1b[2J" in output.text.replace("\\\\", "\\")


def test_an_argument_is_on_one_line(output: Output) -> None:
    logging.getLogger("of.somebody").warning("%s and %d", FORGED, 5)
    assert is_one_record(output.text)
    assert output.text.rstrip('"}\n').endswith("and 5") or "and 5" in output.text


def test_a_traceback_holds_no_line_that_begins_as_a_record(output: Output) -> None:
    try:
        raise ValueError(FORGED)
    except ValueError as error:
        try:
            raise RuntimeError(f"WARNING: also\n{FORGED}") from error
        except RuntimeError:
            logging.getLogger("of.somebody").exception("failed", stack_info=True)
    assert is_one_record(output.text)
    assert "RuntimeError: WARNING: also" in output.text


@pytest.mark.parametrize("form", FORMATS)
def test_a_lone_surrogate_does_not_break_the_log(form: Any) -> None:
    record = logging.LogRecord("a", logging.ERROR, __file__, 1, "%s", ("\ud800",), None)
    assert "ud800" in Output(log_config(form)).handler.format(record).encode().decode()


def test_the_fields_of_json_hold_no_control_characters_when_they_are_decoded() -> None:
    output = Output(log_config("json"))
    record = logging.LogRecord(
        "a", logging.ERROR, __file__, 1, "%s", (FORGED,), (ValueError, ValueError(FORGED), None)
    )
    fields = json.loads(output.handler.format(record))
    assert not any(UNSAFE.search(str(value)) for value in fields.values())
    assert "\n" not in fields["message"]


def test_uvicorns_coloured_message_is_not_written_as_it_is(output: Output) -> None:
    extra = {"color_message": f"\x1b[1m{FORGED}\x1b[0m"}
    logging.getLogger("of.somebody").error("running on %s", FORGED, extra=extra)
    assert is_one_record(output.text)


def test_lengths_are_bounded(output: Output) -> None:
    try:
        raise ValueError("long " * 100_000 + "\nline" * 100_000)
    except ValueError:
        logging.getLogger("of.somebody").exception("m" * 1_000_000)
    assert len(output.text) < 1_000_000
    assert "more characters" in output.text
    assert "more lines" in output.text


async def test_the_crit_header_of_a_token_forges_no_line(output: Output) -> None:
    def part(value: object) -> str:
        return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    header = {"alg": "RS256", "kid": "k", "crit": [FORGED], "b64": True}
    token = f"{part(header)}.{part({'sub': 'x'})}.eA"
    settings = Settings(caller_jwt=JwtSettings(jwks_url="http://127.0.0.1:9/jwks"), store="sqlite://")
    async with serving(create_app(settings, handler=nothing)) as url, Rpc(url) as rpc:
        status, _ = await rpc.raw(b"{}", {"authorization": f"Bearer {token}"})
    assert status == 401
    lines = [line for line in output.text.splitlines() if "refused a caller" in line]
    assert len(lines) == 1
    assert not any(line.startswith(("ERROR:    forged", "INFO: a")) for line in output.text.splitlines())
    assert not UNSAFE.search(output.text)


# --- embedded in an application ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tailrace.server", "tailrace.streaming", "tailrace.streaming.tools.mcp"])
def test_a_record_is_safe_for_the_handlers_of_any_application(name: str) -> None:
    import_module(name.removesuffix(".mcp"))
    stream, logger = io.StringIO(), logging.getLogger(name)
    handler = logging.StreamHandler(stream)  # with the standard library's formatter
    logger.addHandler(handler)
    logger.propagate = False
    try:
        try:
            raise ValueError(FORGED)
        except ValueError:
            logger.exception("%s %r %d", FORGED, FORGED, 5)
        logger.error("%(a)s", {"a": FORGED})
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
    first, *rest = stream.getvalue().splitlines()
    assert not UNSAFE.search(stream.getvalue())
    assert first.endswith(" 5")
    assert all(line.startswith("    ") for line in rest[:-1])


def test_every_logger_of_the_code_makes_its_records_safe() -> None:
    sources = [
        path.read_text(encoding="utf-8")
        for part in ("wrappers", "streaming", "server")
        for path in (ROOT / part).rglob("*.py")
    ]
    names = {name for source in sources for name in re.findall(r'getLogger\("(tailrace[\w.]*)"\)', source)}
    assert names == {
        "tailrace.server",
        "tailrace.streaming",
        "tailrace.streaming.tools.mcp",
        "tailrace.wrappers",
    }
    assert all(logging.getLogger(name).filters for name in names)
    assert not any("getLogger(__name__)" in source for source in sources)
    # A message is a constant: only its arguments are escaped.
    assert not any(
        re.search(r"logger\.(debug|info|warning|error|exception|critical)\(\s*f", source)
        for source in sources
    )


# --- escaping ---------------------------------------------------------------------------------------------------------


@given(st.text())
def test_what_is_printable_is_one_line_and_safe(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1
    shown.encode()
    assert printable(shown) == shown


def test_plain_text_stays_as_it_is() -> None:
    text = "Größe 5 €, 日本語, C:\\temp"
    assert printable(text) == text


def test_truncated_text_states_how_much_is_missing() -> None:
    assert printable("a" * (MAX_TEXT + 5)) == "a" * MAX_TEXT + "… (5 more characters)"
    lines = printable_lines("\n".join(map(str, range(MAX_LINES + 7)))).split("\n")
    assert len(lines) == MAX_LINES + 1
    assert lines[0] == "    0"
    assert lines[-1] == f"    {MAX_LINES + 6}"
    assert "    … (7 more lines)" in lines
