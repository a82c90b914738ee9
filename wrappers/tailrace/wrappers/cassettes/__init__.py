"""Recordings of providers' responses: a model that records responses, and a model that replays them without a provider.

::

    model = RecordingModel(create_model("openai:gpt-5-mini"), Path("cassettes"))    # calls the provider
    model = create_model("replay:cassettes")                                        # calls nothing

A recording (`Cassette`) contains the bytes of one response with their arrival times, and the request in the common format.
"""

from tailrace.wrappers.cassettes.cassette import BodyPart, Cassette, Failure, RecordedRequest, load_cassettes
from tailrace.wrappers.cassettes.cassette_model import CassetteModel
from tailrace.wrappers.cassettes.recording_model import RecordingModel

__all__ = [
    "BodyPart",
    "Cassette",
    "CassetteModel",
    "Failure",
    "RecordedRequest",
    "RecordingModel",
    "load_cassettes",
]
