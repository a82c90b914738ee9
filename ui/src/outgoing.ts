/** Messages on their way from the message box to the agent. */
import type { Branch, Message, Metadata, Part } from "./client.ts";
import type { TaskView } from "./task-view.ts";

/** A conversation of the page. It has no id until the page knows it; a new one has an empty id until its first message is accepted. */
export interface Place {
	contextId?: string;
}

/** What a message box contains. */
export interface Draft {
	text: string;
	files: Part[];
	/** The message that is edited, or the task that the message replies to. */
	target?: Branch | TaskView;
	/** What the box contained before an edit. It returns when the edit is sent or discarded. */
	aside?: Draft;
}

/** A message that the agent has not accepted yet. */
export interface Outgoing {
	readonly message: Message;
	readonly request: Metadata;
	/** The conversation to which it belongs, whatever the page shows. */
	place: Place;
	/** The idempotency key: one that arrived, and whose response was lost, is processed once. */
	key: string;
	/** It was refused for want of a token. */
	needsToken?: boolean;
	/** Called when it is accepted or refused. */
	settled?: () => void;
}
