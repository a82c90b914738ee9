"""The configuration file: what it sets, what overrides it, and one line for each mistake."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from tailrace.server import Settings
from tailrace.server.config_file import ServerConfig, read_config
from tailrace.server.several_agents import create_several_agents_app
from tailrace.wrappers import ConfigurationError

FILE = """
[server]
store = "sqlite://"
port = 8123
public_url = "https://agents.example"
bounds = { read_timeout = 12.5 }
budgets = [{ tokens = 1000, period = "day" }]

[server.card]
version = "3"
description = "One of ours."

[models.fast]
model = "openai:gpt-5-mini"
base_url = "http://127.0.0.1:9/v1"
api_key = "${FAST_KEY}"

[models.spare]
model = "anthropic:claude"
api_key = "spare"

[agents.support]
model = "fast"
fallback = ["spare", "mistral:m@http://127.0.0.1:7"]
instructions = "Write $${FAST_KEY} for ${NAME}."
callers = ["ann", "bob"]
card = { description = "Answers questions." }

[agents.code]
model = "gemini:g"
api_key = "own"
tools = "module:tool"
approvals = ["*"]
callers = ["ann"]

[callers.ann]
keys = ["a1", "a2"]

[callers.bob]
keys = ["b"]
"""


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAST_KEY", "secret")
    monkeypatch.setenv("NAME", "Ann")


def read(tmp_path: Path, text: str, **given: object) -> ServerConfig:
    path = tmp_path / "tailrace.toml"
    path.write_text(text)
    return read_config(path, Settings.model_validate(given))


def key_of(settings: Settings) -> str | None:
    return settings.api_key.get_secret_value() if settings.api_key else None


def test_a_file_sets_the_server_the_models_the_agents_and_the_callers(tmp_path: Path) -> None:
    config = read(tmp_path, FILE)
    server = config.settings
    assert (server.port, server.store, server.bounds.read_timeout) == (8123, "sqlite://", 12.5)
    assert [budget.tokens for budget in server.budgets] == [1000]
    assert server.caller_keys == SecretStr("ann:a1,ann:a2,bob:b")
    support, code = config.agents
    assert (support.name, support.callers) == ("support", ("ann", "bob"))
    own = support.settings
    assert (own.model, own.base_url, key_of(own)) == ("openai:gpt-5-mini", "http://127.0.0.1:9/v1", "secret")
    assert own.instructions == "Write ${FAST_KEY} for Ann."
    assert (own.agent_name, own.card.description, own.card.version) == ("support", "Answers questions.", "3")
    assert own.public_url == "https://agents.example/agents/support/"
    assert own.bounds == server.bounds
    assert [(each.model, each.base_url, key_of(each)) for each in support.fallbacks] == [
        ("anthropic:claude", None, "spare"),
        ("mistral:m", "http://127.0.0.1:7", None),
    ]
    own = code.settings
    assert (own.model, own.base_url, key_of(own)) == ("gemini:g", None, "own")
    assert (own.tools, own.approvals, own.card.description) == (("module:tool",), ("*",), "One of ours.")


def test_the_command_line_and_the_environment_override_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_STORE", "sqlite:///other.db")
    config = read(tmp_path, FILE, port=9)
    assert (config.settings.port, config.settings.store) == (9, "sqlite:///other.db")
    assert config.agents[0].settings.store == "sqlite:///other.db"


AGENT = '[agents.a]\nmodel = "openai:m"\n'
BOB = '[callers.bob]\nkeys = ["k"]\n'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no agent: add a table [agents.NAME]"),
        ("[agents.a]\nmodel = openai:m", "Invalid value (at line 2, column 9)"),
        ("[agents.a\n", "Expected ']' at the end of a table declaration (at line 1, column 10)"),
        ("[agents.a]\n", "[agents.a]: set model (or agent, for a remote agent)"),
        ('[agents.a]\nmodel = "openai:m"\nagent = "http://x"', "[agents.a]: set either model or agent"),
        ('[agents.A]\nmodel = "openai:m"', "[agents.A]: a name has lower-case letters, digits and hyphens only, at most 63"),
        (AGENT + "toolz = []", "[agents.a] toolz: unknown; did you mean tools?"),
        (AGENT + "[servers]", "[servers]: unknown; did you mean server?"),
        (AGENT + "[server]\nqqq = 1", "[server] qqq: unknown; the keys are host, port,"),
        (AGENT + "[server.bounds]\nmax_lag = -1", "[server] bounds.max_lag: Input should be greater than 0"),
        (AGENT + '[server]\nmodel = "openai:m"', "[server] model: it is a setting of each agent: set it in [agents.NAME]"),
        (AGENT + "[server]\ngrpc_port = 1", "[server] grpc_port: a server for several agents has no gRPC"),
        (AGENT + '[server]\ncaller_keys = "a:b"', "[server] caller_keys: write [callers.NAME] with keys"),
        (AGENT + "[server]\nport = 70000", "[server] port: Input should be less than or equal to 65535"),
        (AGENT + "tools = [1]", "[agents.a] tools[0]: Input should be a valid string"),
        (AGENT + 'on_lost_result = "retry"', "[agents.a] on_lost_result: Input should be 'error', 'ask' or 'fail'"),
        (AGENT + 'approvers = "boss"', "[agents.a] approvers: approvers 'boss': not caller, scope:NAME or role:NAME"),
        (AGENT + 'fallback = ["x"]', "[agents.a] fallback: 'x' is neither PROVIDER:MODEL, PROVIDER:MODEL@BASE_URL nor"),
        ('[agents.a]\nmodel = "fast"', "[agents.a] model: 'fast' is neither PROVIDER:MODEL nor the name of a table [models.NAME]"),
        (
            '[models.fast]\nmodel = "openai:m"\n[agents.a]\nmodel = "fast"\napi_key = "k"',
            "[agents.a]: base_url and api_key belong in [models.fast]",
        ),
        ('[models.fast]\nmodel = "m"\n' + AGENT, "[models.fast] model: write PROVIDER:MODEL"),
        (AGENT + 'api_key = "${MISSING}"', "[agents.a] api_key: the environment variable MISSING is not set"),
        (AGENT + 'callers = ["bob"]', "[agents.a] callers: there is no authentication: add a table [callers.NAME]"),
        (AGENT + 'callers = ["ann"]\n' + BOB, "[agents.a] callers: there is no table [callers.ann]"),
        (AGENT + 'callers = ["scope:x"]\n' + BOB, "[agents.a] callers: 'scope:x' requires bearer tokens"),
        (AGENT + 'callers = ["team:x"]\n' + BOB, "[agents.a] callers: 'team:x' is neither the name of a table [callers.NAME] nor subject:NAME,"),
        (AGENT + "[callers.bob]\nkeys = []", "[callers.bob] keys: Tuple should have at least 1 item"),
        (AGENT + '[callers.bob]\nkeys = ["a,b"]', "[callers.bob] keys: a key is not empty and has no comma"),
        (AGENT + 'card = { grpc_url = "h:1" }', "[agents.a] card: signing_keys, signing_jku and grpc_url belong in [server.card]"),
        (AGENT + BOB + '[callers.ann]\nkeys = ["x", "k"]', "[callers.ann] keys: [callers.bob] has the same key"),
        (AGENT + 'fallback = ["nobody:m"]', "[agents.a] fallback: unknown provider 'nobody'"),
        (AGENT + "card = { descriptoin = 'x' }", "[agents.a] card.descriptoin: unknown; did you mean description?"),
        (AGENT + "[server.bounds]\nqqq = 1", "[server] bounds.qqq: unknown; the keys are max_connections,"),
        (AGENT + "[server.prices.'openai:m']\ninput = 1\noutput = 1\nqqq = 1", "[server] prices.openai:m.qqq: unknown; the keys are input, output, cached"),
        (AGENT + "[[server.budgets]]\ntokns = 1", "[server] budgets[0].period: Field required; [server] budgets[0].tokns: unknown; did you mean tokens?"),
        (AGENT + "tools = " + 5000 * "[", "values are nested too deeply"),
        (AGENT + "x = 1\ny = 2", "[agents.a] x: unknown; the keys are"),
    ],
)  # fmt: skip
def test_a_wrong_file_gives_one_line_with_the_place(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path, text)
    line = str(raised.value)
    assert line.startswith(f"{tmp_path / 'tailrace.toml'}: {problem}")
    assert "\n" not in line


def test_keys_are_in_no_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path, FILE.replace('"b"', '"secret", 5'))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "[agents.a]\nmodel = '${SECRET}'",
        AGENT + "fallback = ['${SECRET}']",
        AGENT + "approvers = '${SECRET}'",
        AGENT + BOB + "[agents.b]\nmodel = 'openai:m'\ncallers = ['${SECRET}']",
        AGENT + "agent_origins = ['${SECRET}']",
    ],
)
def test_errors_have_the_names_of_variables_instead_of_their_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("SECRET", "s3cr3t-value")
    with pytest.raises(ConfigurationError, match=r"\$\{SECRET\}") as raised:
        read(tmp_path, text)
    assert "s3cr3t-value" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "[agents.a]\nmodel = '${SECRET}'",
        AGENT + "tools = '${SECRET}'",
        AGENT + "fallback = ['${SECRET}']",
    ],
)
def test_errors_do_not_have_parts_of_the_values_of_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("SECRET", "s3cr3t-value:function")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with pytest.raises(ConfigurationError, match=r"\$\{SECRET\}") as raised:
        create_several_agents_app(read(tmp_path, text))
    assert "s3cr3t-value" not in str(raised.value)


def test_a_deep_key_is_shortened(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path, AGENT + f"tools = {'[' * 200}1{']' * 200}")
    assert len(str(raised.value)) < 500


def test_a_variable_of_a_group_overrides_its_member_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_BOUNDS", '{"max_streams": 3}')
    text = AGENT + "[server.bounds]\nmax_tasks = 7\nmax_streams = 9"
    bounds = read(tmp_path, text).settings.bounds
    assert (bounds.max_streams, bounds.max_tasks) == (3, 7)


def test_a_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml: No such file or directory"):
        read_config(tmp_path / "nowhere.toml", Settings())


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("model", "openai:m", "it is a setting of each agent"),
        ("instructions", "Be kind.", "it is a setting of each agent"),
        ("grpc_port", 1, "has no gRPC"),
        ("caller_keys", "a:b", r"write \[callers\.NAME\] with keys"),
    ],
)
def test_settings_of_one_agent_outside_the_file_are_refused(
    tmp_path: Path, name: str, value: object, advice: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"TAILRACE_{name.upper()} \(or its option\): .*{advice}"):
        read(tmp_path, AGENT, **{name: value})
