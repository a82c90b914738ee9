"""Events of responses that are continued."""

from typing import Any

from tailrace.streaming.a2a.stream_extension import EXTENSION_URI

Events = list[tuple[int, dict[str, Any]]]
"""The number of each event, and its JSON."""


def folded(events: Events) -> tuple[str, list[dict[str, Any]], dict[str, Any]]:
    """The text at a client of A2A, the continuations, and the fields of the last status."""
    text, steps, last = "", list[dict[str, Any]](), dict[str, Any]()
    for _, result in events:
        update = result.get("artifactUpdate")
        if update is not None:
            added = "".join(part.get("text", "") for part in update["artifact"]["parts"])
            text = text + added if update.get("append") else added
        if "statusUpdate" in result:
            last = result["statusUpdate"].get("metadata", {}).get(EXTENSION_URI, {})
            if "continuation" in last:
                steps.append(last["continuation"])
    return text, steps, last


def texts_of(events: Events) -> tuple[dict[str, str], int]:
    """The texts of all artifacts by id, and the number of events that replaced a text."""
    texts, replaced = dict[str, str](), 0
    for _, result in events:
        update = result.get("artifactUpdate")
        if update is not None:
            artifact = update["artifact"]
            name, added = artifact["artifactId"], "".join(part.get("text", "") for part in artifact["parts"])
            replaced += name in texts and not update.get("append") and "text" in artifact["parts"][0]
            texts[name] = texts.get(name, "") + added if update.get("append") else added
    return texts, replaced
