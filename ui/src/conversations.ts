/** The list of conversations: those of the server's tasks, the newest first, with a search. */
import { isText, textOf } from "./blocks.ts";
import type { AgentClient, Task } from "./client.ts";
import { button, el } from "./dom.ts";

interface Conversation {
	id: string;
	title: string;
	/** Of the newest task, as ISO text. */
	changed: string;
	/** Of the oldest known task, which names the conversation. */
	began: string;
}

export class Conversations {
	readonly node: HTMLElement;
	readonly search = el("input", { type: "search", placeholder: "Search conversations", "aria-label": "Search conversations" }) as HTMLInputElement;
	readonly #list = el("ul");
	readonly #more = button("small", "Show more", () => this.load());
	readonly #known = new Map<string, Conversation>();
	#next: string | undefined = "";
	#current = "";

	constructor(
		private readonly client: () => AgentClient,
		private readonly open: (contextId: string) => unknown,
		help: HTMLElement,
	) {
		this.search.addEventListener("input", () => this.draw());
		const start = button("main", "New conversation", () => open(""));
		this.#more.hidden = true;
		// The buttons stay when the list is drawn again, and so does the keyboard's focus.
		this.node = el("nav", { "aria-label": "Conversations", hidden: true }, start, this.search, this.#list, this.#more, help);
	}

	/** Load the next page. An agent that lists no tasks has the conversations of this page only. */
	async load(): Promise<void> {
		if (this.#next === undefined) return;
		try {
			const { tasks, nextPageToken } = await this.client().listTasks({ pageSize: 100, pageToken: this.#next });
			this.#next = nextPageToken || undefined;
			for (const task of tasks) this.add(task);
		} catch {
			this.#next = undefined;
		}
		this.#more.hidden = this.#next === undefined;
		this.draw();
	}

	/** Add the conversation of a task. */
	add({ contextId, history, status }: Pick<Task, "contextId" | "history" | "status">): void {
		const time = status.timestamp ?? new Date().toISOString();
		const parts = history?.find((message) => message.role === "ROLE_USER")?.parts ?? [];
		const title = textOf(parts).trim().replace(/\s+/g, " ").slice(0, 60) || (parts.some((part) => !isText(part)) ? "Files" : "");
		const known = this.#known.get(contextId);
		if (!known) this.#known.set(contextId, { id: contextId, title: title || "Conversation", changed: time, began: time });
		else {
			if (title && time < known.began) Object.assign(known, { title, began: time });
			if (time > known.changed) known.changed = time;
		}
	}

	/** Mark the conversation that is open. */
	select(contextId: string): void {
		this.#current = contextId;
		this.draw();
	}

	draw(): void {
		const words = this.search.value.trim().toLowerCase();
		const found = [...this.#known.values()].filter(({ title }) => title.toLowerCase().includes(words));
		found.sort((one, other) => (one.changed < other.changed ? 1 : -1));
		const items = found.map(({ id, title }) => {
			const current = id === this.#current ? { "aria-current": "true" } : {};
			return el("li", {}, button("context", title, () => this.open(id), { title, ...current }));
		});
		this.#list.replaceChildren(...items);
		if (words && !found.length) this.#list.append(el("li.dim", {}, "Nothing found"));
	}
}
