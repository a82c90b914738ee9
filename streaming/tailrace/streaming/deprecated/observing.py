"""Deprecated: import from `tailrace.streaming.instrumentation`, where the classes and methods have other names."""

from tailrace.streaming import instrumentation
from tailrace.streaming.instrumentation import (
    RUN_OBSERVER,
    ResponseObservation,
    ToolCallObservation,
)
from tailrace.streaming.turn_accumulator import TurnAccumulator
from tailrace.wrappers import ContentPartToolCall
from tailrace.wrappers.model import Model
from tailrace.wrappers.request_options import RequestOptions

__all__ = (
    "RUN_OBSERVER",
    "AnswerWatch",
    "CallWatch",
    "RunObserver",
)

AnswerWatch = ResponseObservation
CallWatch = ToolCallObservation


class RunObserver(instrumentation.RunObserver):
    """Base class of observers that override the methods `answering` and `calling` of 0.1."""

    def answering(self, model: Model, options: RequestOptions, turn: TurnAccumulator) -> AnswerWatch:
        """Deprecated name of `observe_response`; to be removed in 0.3."""
        return AnswerWatch()

    def calling(self, call: ContentPartToolCall) -> CallWatch:
        """Deprecated name of `observe_call`; to be removed in 0.3."""
        return CallWatch()

    def observe_response(
        self, model: Model, options: RequestOptions, turn: TurnAccumulator
    ) -> ResponseObservation:
        """Call `answering`."""
        return self.answering(model, options, turn)

    def observe_call(self, call: ContentPartToolCall) -> ToolCallObservation:
        """Call `calling`."""
        return self.calling(call)
