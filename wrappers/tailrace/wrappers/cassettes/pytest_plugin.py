"""A pytest fixture for tests with recorded responses of real models.

Add the plugin to the ``conftest.py`` of the tests::

    pytest_plugins = ["tailrace.wrappers.cassettes.pytest_plugin"]

The fixture `cassette_model` creates the model of a test. By default, recorded responses are replayed without delays. With
``pytest --record-cassettes``, the providers are called, and their responses are recorded.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace.wrappers.cassettes.cassette_model import CassetteModel
from tailrace.wrappers.cassettes.recording_model import RecordingModel
from tailrace.wrappers.errors import ConfigurationError
from tailrace.wrappers.model import Model
from tailrace.wrappers.providers import create_model

OPTION = "--record-cassettes"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--record-cassettes``."""
    parser.getgroup("tailrace").addoption(
        OPTION,
        action="store_true",
        help="call the providers of tailrace's models, and record their responses",
    )


@pytest.fixture
def cassette_model(request: pytest.FixtureRequest) -> Callable[..., Model]:
    """Return a function that creates a model, with the arguments of `create_model`.

    The model replays or records the responses of the current test in the folder ``cassettes/MODULE/TEST/MODEL``, next to the test
    module. New recordings replace the earlier recordings.
    """
    records = bool(request.config.getoption(OPTION))
    default_folder = request.path.parent / "cassettes" / request.path.stem / _file_name(request.node.name)

    def create(model: str, **arguments: Any) -> Model:
        folder: Path = default_folder / _file_name(model)
        if records:
            shutil.rmtree(folder, ignore_errors=True)
            return RecordingModel(create_model(model, **arguments), folder)
        try:
            return CassetteModel(folder, timed=False)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{error}; `pytest {OPTION}` records the responses of the test"
            ) from None

    return create


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text)
