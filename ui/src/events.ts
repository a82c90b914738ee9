import type { Part } from "./client.ts";

/** The events of <tailrace-chat>, with the type of `event.detail`. */
export interface ChatEvents {
	/** The conversation has changed; an empty id for a new one. */
	conversationchange: { contextId: string };
	/** A message of the user is sent. */
	messagesend: { contextId: string; parts: Part[] };
	/** Text of a response has arrived; with `append: false` it replaces the earlier text of the artifact. */
	textdelta: { id: string; contextId: string; artifactId: string; text: string; append: boolean };
	/** The state of a task has changed: `working`, `completed`, `failed`, … */
	taskstate: { id: string; contextId: string; state: string };
	/** A message was not sent, or a task cannot be followed further. A failed response is a `taskstate`. */
	chaterror: { id: string; contextId: string; error: Error };
}

/** Dispatch an event of the element. */
export function emit<Name extends keyof ChatEvents>(element: EventTarget, name: Name, detail: ChatEvents[Name]): void {
	element.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true }));
}

/** The type of `addEventListener` and `removeEventListener`, with these events. */
export interface Listening<Options> {
	<Name extends keyof ChatEvents>(type: Name, listener: (event: CustomEvent<ChatEvents[Name]>) => unknown, options?: boolean | Options): void;
	(type: string, listener: EventListenerOrEventListenerObject, options?: boolean | Options): void;
}
