"""JSON logs and the ids in them."""

import json
import logging
import logging.config
from collections.abc import AsyncIterator, Generator

import pytest

from support.live_server import serving
from support.rpc import Rpc, message
from support.tracing import Spans, attributes, trace_of
from tailrace.server import Item, Settings, Turn, create_app
from tailrace.server.observability.logs import IdsFilter, JsonFormatter, log_config


class _Lines(logging.Handler):
    """Collects formatted records."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.addFilter(IdsFilter())
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def lines() -> Generator[list[str]]:
    handler, logger = _Lines(), logging.getLogger("test.observed")
    logger.addHandler(handler)
    logger.setLevel("INFO")
    yield handler.lines
    logger.removeHandler(handler)


async def test_what_a_handler_logs_carries_the_ids_of_its_task_and_trace(lines: list[str]) -> None:
    async def talk(turn: Turn) -> AsyncIterator[Item]:
        logging.getLogger("test.observed").info("at work\non it: %s", "é")
        return
        yield  # pyright: ignore[reportUnreachable]

    spans = Spans()
    app = create_app(Settings(store="sqlite://"), handler=talk, tracer_provider=spans.provider)
    async with serving(app) as url, Rpc(url) as rpc:
        task = (await rpc.result("SendMessage", message()))["task"]
    turn = spans.one("invoke_agent tailrace")
    [line] = map(json.loads, lines)
    assert line["message"] == "at work\\non it: é"
    assert line["logger"] == "test.observed"
    assert line["level"] == "info"
    assert (line["task_id"], line["context_id"]) == (task["id"], task["contextId"])
    assert line["trace_id"] == trace_of(turn)
    assert line["task_id"] == attributes(turn)["tailrace.task.id"]


def test_a_record_without_a_task_has_no_ids_and_an_exception_stays_in_its_line(lines: list[str]) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("test.observed").exception("it failed")
    [text] = lines
    assert "\n" not in text
    line = json.loads(text)
    assert line.keys() == {"time", "level", "logger", "message", "exception"}
    assert line["exception"].endswith("ValueError: two\n    lines")


@pytest.mark.parametrize("form", ["text", "json"])
def test_both_forms_can_be_configured(form: str) -> None:
    config = log_config("json" if form == "json" else "text")
    logging.config.DictConfigurator(config).configure_filter(config["filters"]["ids"])
    formatter = logging.config.DictConfigurator(config).configure_formatter(config["formatters"]["line"])
    record = logging.LogRecord("a", logging.INFO, __file__, 1, "hello", (), None)
    assert "hello" in formatter.format(record)  # pyright: ignore[reportAttributeAccessIssue]
