"""Translates the events of a task to chat events (`ui_events`), without IO. All protocols except A2A use it.

Agents without the stream extension are supported: their artifacts contain text, files and data. If no artifact has text, or if
the task waits for the caller, the response includes the text of the last status.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from tailrace.server.protocols import task_events, ui_events
from tailrace.server.protocols.markdown import markdown_of
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.server.protocols.parallel_texts import DivergedError, GrowingText, ParallelTexts
from tailrace.server.protocols.serial_texts import SerialTexts
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message
from tailrace.streaming.a2a.stream_extension import extension_metadata, provider_members
from tailrace.streaming.conversion.approval_parts import RESPONSES, approval_requests, without_requests
from tailrace.streaming.conversion.message_conversion import to_common_message
from tailrace.streaming.tools.approvals import ApprovalRequest
from tailrace.wrappers import ContentPartToolCall
from tailrace.wrappers.openai.converter import arguments_text

# Values of `TurnEnded.finish` for incomplete responses, by the finish reason in the metadata of the last status.
_TRUNCATED = {"length": "length", "content_filter": "content_filter", "recitation": "content_filter"}


class _Call:
    __slots__ = ("declared", "id", "is_ended", "is_started", "name", "text")

    def __init__(self, name: str, *, declared: bool) -> None:
        self.id = ""
        self.name = name
        self.declared = declared
        self.text = GrowingText()
        self.is_started = False
        self.is_ended = False

    def pop_events(self) -> list[ui_events.UiEvent]:
        """Return an event for the arguments that were not reported yet; an empty list if there are none."""
        text = self.text.pop_new() if self.is_started else ""
        return [ui_events.ArgumentsAdded(self.id, text)] if text else []


class EventTranslator:
    """Translates the events of one turn, or of several turns that form one response.

    Args:
        tools: The names of the tools that the client declared.
        known_ids: The ids of earlier calls of the conversation. The agent changes the id of a new call with such an id. The call
            is therefore reported only when it is complete.
        includes_earlier_turns: Whether the response also includes earlier turns, if the caller's messages after them have only
            tool results and decisions.
        texts: Translates the texts; `ParallelTexts` by default.
        with_approvals: Whether the protocol supports approval requests. If not, the status text describes them.

    Attributes:
        task_id: The id of the task; empty before the first event, and for a response without a task.
        context_id: The id of the conversation; empty if ``task_id`` is empty.
        ended: Whether the turn has ended.
    """

    def __init__(
        self,
        *,
        tools: Collection[str] = (),
        known_ids: Collection[str] = (),
        includes_earlier_turns: bool = False,
        texts: ParallelTexts | SerialTexts | None = None,
        with_approvals: bool = True,
    ) -> None:
        self.task_id = ""
        self.context_id = ""
        self.ended = False
        self._tools = frozenset(tools)
        self._known_ids = set(known_ids)
        self._includes_earlier_turns = includes_earlier_turns
        self._texts = texts or ParallelTexts()
        self._first_turn = 1
        self._turn = 1
        self._round = (0, 0)
        self._channels: dict[str, str] = {}
        self._earlier: set[str] = set()  # ids of artifacts of turns before the first turn of the response
        self._calls: dict[str, _Call] = {}  # by artifact id
        self._started: dict[str, _Call] = {}  # by call id
        self._with_result: set[str] = set()
        self._with_approvals = with_approvals
        self._decisions: dict[str, str] = {}  # decisions about calls of earlier turns, by call id

    def feed(self, event: Event) -> list[ui_events.UiEvent]:
        """Translate an event of the task.

        If the new text of a replaced text does not begin with the text already sent, the turn ends with an error.
        """
        if self.ended:
            return []
        try:
            update = task_events.decode_event(event.body)
            if update.artifact_update is not None:
                return self._feed_artifact(update.artifact_update, is_copy=not event.number)
            if update.status_update is not None:
                return self._feed_status(event.state, update.status_update)
            if update.task is not None:
                return self._start(update.task, event.state)
            return self._feed_message(update.message.parts if update.message is not None else ())
        except DivergedError as error:
            self.ended = True
            return [ui_events.TurnEnded(TaskState.WORKING, error=error)]

    def _start(self, task: task_events.TaskView, state: TaskState | None) -> list[ui_events.UiEvent]:
        self.task_id, self.context_id = task.id, task.context_id
        messages = [message for message in task.history if message.is_callers]
        self._turn = self._first_turn = max(1, len(messages))
        if self._includes_earlier_turns:
            while self._first_turn > 1 and _has_only_results(messages[self._first_turn - 1]):
                self._first_turn -= 1
        for message in messages[self._first_turn - 1 :]:
            self._add_decisions(message.metadata)
        events: list[ui_events.UiEvent] = [ui_events.TurnStarted(task.id, task.context_id, self._first_turn)]
        has_ended = state is not None and (state.terminal or state.interrupted)
        newest = max(map(_round_of, task.artifacts), default=(1, 1))
        for artifact in task.artifacts:
            # A snapshot does not show whether an artifact of the newest round is complete.
            is_complete = has_ended or _round_of(artifact) < newest
            update = task_events.ArtifactUpdateView(artifact, last_chunk=is_complete)
            events += self._feed_artifact(update, is_copy=True)
        for message in messages[self._first_turn :]:
            events += self._feed_results(message.parts, by_caller=True)
        if state is not None and has_ended:
            events += self._end(state, task.status.message, extension_metadata(task.metadata))
        return events

    def _feed_message(self, parts: Iterable[task_events.PartView]) -> list[ui_events.UiEvent]:
        """Translate a response without a task: its reasoning as one artifact, its other parts as another, without tool data."""
        events: list[ui_events.UiEvent] = [ui_events.TurnStarted("", ""), *self._start_round(1, 1)]
        visible = [part for part in parts if not part.is_tool_data]
        reasoning = [part for part in visible if task_events.channel_of(part.metadata or {}) == "reasoning"]
        content = [part for part in visible if part not in reasoning]
        for artifact_id, channel, own in (("reasoning", "reasoning", reasoning), ("message", "", content)):
            if own:
                update = task_events.ArtifactUpdateView(
                    task_events.ArtifactView(artifact_id, own), last_chunk=True
                )
                events += self._texts.feed(update, channel)
        return events + self._end(TaskState.COMPLETED, None, {})

    # --- artifacts ----------------------------------------------------------------------------------------------

    def _feed_artifact(
        self, update: task_events.ArtifactUpdateView, *, is_copy: bool
    ) -> list[ui_events.UiEvent]:
        artifact = update.artifact
        artifact_id = artifact.artifact_id
        channel = self._channels.get(artifact_id) if update.append else None
        events: list[ui_events.UiEvent] = []
        if channel is None:
            channel = self._channels[artifact_id] = task_events.channel_of(artifact.metadata)
            fields = extension_metadata(artifact.metadata)
            turn = task_events.turn_or_round_number(fields.get("turn"))
            if is_copy and (artifact_id in self._earlier or turn < self._first_turn):
                self._earlier.add(artifact_id)
                return []
            self._earlier.discard(artifact_id)
            if channel != "tool_result":
                # Without the extension, artifacts have no turn number, and `turn` is 1.
                turn = turn if is_copy else max(turn, self._turn)
                events = self._start_round(turn, task_events.turn_or_round_number(fields.get("round")))
        else:
            is_copy = False
        if channel == "tool_call":
            return events + self._feed_call(update)
        if channel == "tool_result":
            return self._feed_results({"data": part.data} for part in artifact.parts)
        if channel == "choice":
            return events
        added = self._texts.feed(update, channel, is_copy=is_copy)
        return events + added if events else added

    def _start_round(self, turn: int, number: int) -> list[ui_events.UiEvent]:
        if (turn, number) <= self._round:
            return []
        self._round = (turn, number)
        return [*self._texts.start_round(), ui_events.RoundStarted(turn, number)]

    def _feed_results(
        self, parts: Iterable[Mapping[str, Any]], *, by_caller: bool = False
    ) -> list[ui_events.UiEvent]:
        parts = [
            part
            for part in parts
            if task_events.is_mapping(data := part.get("data")) and "tool_results" in data
        ]
        if not parts or not (self._started or self._decisions):
            return []
        events: list[ui_events.UiEvent] = []
        for result in to_common_message({"role": "ROLE_USER", "parts": parts}).tool_results:
            decision = self._decisions.get(result.id)
            if (decision or result.id in self._started) and result.id not in self._with_result:
                self._with_result.add(result.id)
                is_rejected = decision == "reject"
                events.append(
                    ui_events.CallResult(result.id, result.output, result.is_error, by_caller, is_rejected)
                )
        return events

    def _add_decisions(self, metadata: Mapping[str, Any]) -> None:
        approvals = extension_metadata(metadata).get("approvals")
        decisions = approvals.get("decisions") if task_events.is_mapping(approvals) else None
        decision_list = cast("list[object]", decisions) if isinstance(decisions, list) else ()
        for each in decision_list:
            if task_events.is_mapping(each):
                self._decisions[str(each.get("callId"))] = str(each.get("decision"))

    # --- calls --------------------------------------------------------------------------------------------------

    def _feed_call(self, update: task_events.ArtifactUpdateView) -> list[ui_events.UiEvent]:
        artifact = update.artifact
        call = self._calls.get(artifact.artifact_id)
        if artifact.parts and task_events.is_mapping(artifact.parts[0].data):
            # The complete call replaces streamed arguments.
            complete = task_events.tool_call_of(artifact.parts[0])
            return self._end_call(call, complete) if complete is not None else []
        text = "".join(part.text or "" for part in artifact.parts)
        if call is not None:
            call.text.feed(text, append=update.append)
            return call.pop_events()
        call = self._calls[artifact.artifact_id] = _Call(artifact.name, declared=artifact.name in self._tools)
        call.text.feed(text)
        call_id = extension_metadata(artifact.metadata).get("callId")
        if not isinstance(call_id, str) or not call_id or call_id in self._known_ids:
            return []
        return [] if self._is_deferred(call, call_id) else self._start_call(call, call_id)

    def _is_deferred(self, call: _Call, call_id: str) -> bool:
        """Return whether a call is reported only if it is pending at the end of the turn."""
        is_live = self._texts.is_live and call.declared and call_id not in self._known_ids
        return self._texts.omits_finished_calls and not is_live

    def _start_call(self, call: _Call, call_id: str) -> list[ui_events.UiEvent]:
        call.id, call.is_started = call_id, True
        self._started[call_id] = call
        self._known_ids.add(call_id)
        return [
            *self._texts.start_call(),
            ui_events.CallStarted(call_id, call.name, call.declared),
            *call.pop_events(),
        ]

    def _end_call(
        self, call: _Call | None, complete: ContentPartToolCall, *, is_pending: bool = False
    ) -> list[ui_events.UiEvent]:
        if call is not None and call.is_ended:
            return []
        if complete.id in self._started and (call is None or not call.is_started):
            return []  # another call with the same id, and thus the same result
        if call is None:
            call = _Call(complete.name, declared=complete.name in self._tools)
        events: list[ui_events.UiEvent] = []
        if not call.is_started:
            call.id = complete.id
            if self._is_deferred(call, complete.id) and not is_pending:
                return []
            if call.name != complete.name or not task_events.is_same_arguments(call.text.pending, complete):
                call.name = complete.name
                call.text.feed(arguments_text(complete), append=False)
            events = self._start_call(call, complete.id)
        if (call.id, call.name) != (complete.id, complete.name):
            raise DivergedError
        if not call.text.sent:
            call.text.feed(arguments_text(complete))
            events += call.pop_events()
        call.is_ended = True
        as_written = task_events.is_same_arguments(call.text.sent, complete)
        return [*events, ui_events.CallEnded(complete, call.declared, as_written)]

    def _end_pending(self, complete: ContentPartToolCall) -> list[ui_events.UiEvent]:
        calls = (call for call in self._calls.values() if call.id == complete.id)
        call = self._started.get(complete.id) or next(calls, None)
        events = self._end_call(call, complete, is_pending=True)
        call = self._started[complete.id]
        is_sent = call.name == complete.name and task_events.is_same_arguments(call.text.sent, complete)
        if self._texts.omits_finished_calls and not is_sent:
            raise DivergedError
        if not call.declared:
            events.append(ui_events.CallPending(complete))
        return events

    # --- statuses -----------------------------------------------------------------------------------------------

    def _feed_status(
        self, state: TaskState | None, update: task_events.StatusUpdateView
    ) -> list[ui_events.UiEvent]:
        fields = extension_metadata(update.metadata)
        received = fields.get("received")
        if task_events.is_mapping(received):
            self._turn += 1
            metadata = received.get("metadata")
            self._add_decisions(metadata if task_events.is_mapping(metadata) else {})
            return self._feed_results(received.get("parts", ()), by_caller=True)
        if state is None:
            return []
        message = update.status.message
        if state.terminal or state.interrupted:
            return self._end(state, message, fields)
        text = markdown_of(to_common_message(message).content) if message is not None else ""
        return [ui_events.StateChanged(state, text)]

    def _end(
        self, state: TaskState, message: dict[str, Any] | None, fields: Mapping[str, Any]
    ) -> list[ui_events.UiEvent]:
        self.ended = True
        approvals: Sequence[ApprovalRequest] = ()
        final_message: object = message
        if message is not None and state is TaskState.INPUT_REQUIRED and self._with_approvals:
            question = Message.model_validate(message)
            approvals = tuple(approval_requests(question))
            final_message = without_requests(question)
        content = to_common_message(final_message) if final_message is not None else None
        text = markdown_of(content.content) if content is not None else ""
        calls = content.tool_calls if content is not None and state is TaskState.INPUT_REQUIRED else ()
        finish = _TRUNCATED.get(str(fields.get("finishReason")), "")
        error: OpenAIError | None = None
        is_failed = state in (TaskState.REJECTED, TaskState.CANCELED, TaskState.FAILED)
        if is_failed:
            is_truncated = state is TaskState.FAILED and finish and "error" not in fields
            error = None if is_truncated else OpenAIError.from_task(state, text, fields)
            text = ""
        # `close` could raise `DivergedError`, which would hide the error of the turn.
        events = self._texts.close(pending_calls=bool(calls)) if error is None else self._texts.abort()
        if text and (self._texts.is_empty or state.interrupted):
            events += self._texts.add_status(text)
        for call in calls:
            events += self._end_pending(call)
        pending = tuple(call.id for call in calls)
        if self._texts.omits_finished_calls and not is_failed and self._started.keys() - pending:
            raise DivergedError
        usage, response, extra = fields.get("usage"), fields.get("response"), fields.get("extra")
        annotations = provider_members(extra).get("annotations") if task_events.is_mapping(extra) else None
        ended = ui_events.TurnEnded(
            state,
            "tool_calls" if calls else finish or "stop",
            error,
            usage if task_events.is_mapping(usage) else None,
            pending,
            approvals,
            tuple(annotations) if isinstance(annotations, list) else (),  # pyright: ignore[reportUnknownArgumentType]
            provider_members(response) if task_events.is_mapping(response) else {},
        )
        return [*events, ended]


def _has_only_results(message: task_events.MessageView) -> bool:
    """Return whether a message consists only of tool results and decisions about calls."""
    return bool(message.parts) and all(
        task_events.is_mapping(data := part.get("data"))
        and any(isinstance(data.get(name), list) for name in ("tool_results", RESPONSES))
        for part in message.parts
    )


def _round_of(artifact: task_events.ArtifactView) -> tuple[int, int]:
    fields = extension_metadata(artifact.metadata)
    turn, number = fields.get("turn"), fields.get("round")
    return task_events.turn_or_round_number(turn), task_events.turn_or_round_number(number)
