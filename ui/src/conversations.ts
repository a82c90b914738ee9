/** The list of conversations: those of the server's tasks, the newest first, with a search. */
import { fields, isText, textOf } from "./blocks.ts";
import type { AgentClient, Branch, Task } from "./client.ts";
import { ConversationItem } from "./conversation-item.ts";
import { arrange, button, el, icon } from "./dom.ts";
import type { Strings } from "./strings.ts";

const BEGIN = "M12 5v14M5 12h14";
const BEFORE = "M15 5l-7 7 7 7";
const AFTER = "M9 5l7 7-7 7";

/** The element, as the list sees it. */
interface Owner {
	readonly client: AgentClient;
	readonly strings: Strings;
	titles: Record<string, string>;
	open(contextId: string): unknown;
	deleteConversation(contextId: string): Promise<void>;
	showVersions(): void;
}

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
	readonly search: HTMLInputElement;
	readonly #list = el("ul");
	readonly #more: HTMLButtonElement;
	readonly #known = new Map<string, Conversation>();
	/** Messages that began a branch, by id. */
	readonly #branches = new Map<string, Branch & { from: Branch; began: string }>();
	readonly #items = new Map<string, ConversationItem>();
	#next: string | undefined = "";
	#current = "";

	constructor(
		private readonly owner: Owner,
		help: HTMLElement,
	) {
		const { strings } = owner;
		this.search = el("input", { type: "search", placeholder: strings.searchConversations, "aria-label": strings.searchConversations, oninput: () => this.draw() }) as HTMLInputElement;
		this.#more = button("small", strings.showMore, () => this.load());
		const start = icon(strings.newConversation, BEGIN, () => this.owner.open(""), { class: "start" });
		start.append(strings.newConversation);
		this.#more.hidden = true;
		// The buttons stay when the list is drawn again, and so does the keyboard's focus.
		this.node = el("nav", { "aria-label": strings.conversations, hidden: true }, start, this.search, this.#list, this.#more, help);
	}

	/** Load the next page. An agent that lists no tasks has the conversations of this page only. */
	async load(): Promise<void> {
		if (this.#next === undefined) return;
		try {
			const { tasks, nextPageToken } = await this.owner.client.listTasks({ pageSize: 100, pageToken: this.#next });
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
		for (const message of history ?? []) {
			const from = fields(message).branch as Branch | undefined;
			const { messageId } = message;
			if (from && !this.#branches.has(messageId)) this.#branches.set(messageId, { contextId, messageId, from, began: time });
		}
		const parts = history?.find((message) => message.role === "ROLE_USER")?.parts ?? [];
		const title = textOf(parts).trim().replace(/\s+/g, " ").slice(0, 60) || (parts.some((part) => !isText(part)) ? this.owner.strings.files : "");
		const known = this.#known.get(contextId);
		if (!known) this.#known.set(contextId, { id: contextId, title: title || this.owner.strings.conversation, changed: time, began: time });
		else {
			if (title && time < known.began) Object.assign(known, { title, began: time });
			if (time > known.changed) known.changed = time;
		}
	}

	/** The versions of a message in the known conversations: the first one, then the branches by time. */
	#versions(messageId: string): Branch[] {
		let root: Branch = { contextId: "", messageId };
		for (let branch = this.#branches.get(messageId); branch; branch = this.#branches.get(root.messageId)) root = branch.from;
		const isVersion = ({ from }: { from: Branch }): boolean => {
			const above = this.#branches.get(from.messageId);
			return from.messageId === root.messageId || Boolean(above && isVersion(above));
		};
		const found = [...this.#branches.values()].filter(isVersion).sort((one, other) => (one.began < other.began ? -1 : 1));
		const first = found.find(({ from }) => from.messageId === root.messageId)?.from ?? root;
		return [first, ...found].filter(({ contextId }) => this.#known.has(contextId));
	}

	/** Show which version of a message the log has, and buttons to switch. */
	drawVersions(log: HTMLElement): void {
		const { strings } = this.owner;
		for (const node of log.querySelectorAll<HTMLElement>("[data-message]")) {
			const id = node.dataset.message!;
			const versions = this.#versions(id);
			const at = versions.findIndex(({ messageId }) => messageId === id);
			const go = (label: string, drawing: string, to?: Branch) => icon(label, drawing, () => this.owner.open(to!.contextId), { disabled: !to });
			const position = el("span", {}, `${at + 1}/${versions.length}`);
			const shown = [go(strings.previousVersion, BEFORE, versions[at - 1]), position, go(strings.nextVersion, AFTER, versions[at + 1])];
			node.querySelector(".versions")!.replaceChildren(...(at >= 0 && versions.length > 1 ? shown : []));
		}
	}

	/** Mark the conversation that is open. */
	select(contextId: string): void {
		this.#current = contextId;
		this.draw();
	}

	/** Forget a conversation. */
	remove(contextId: string): void {
		this.#known.delete(contextId);
		const { node } = this.#items.get(contextId) ?? {};
		this.#items.delete(contextId);
		if (node?.matches(":focus-within")) this.#focusBeside(node);
		const { [contextId]: _, ...titles } = this.owner.titles;
		this.owner.titles = titles;
		this.draw();
	}

	/** Move the focus to the conversation after an item, or before it. */
	#focusBeside(node: HTMLElement): void {
		const beside = node.nextElementSibling ?? node.previousElementSibling;
		(beside?.querySelector<HTMLElement>("button") ?? this.search).focus();
	}

	draw(): void {
		this.owner.showVersions();
		const words = this.search.value.trim().toLowerCase();
		const { strings, titles } = this.owner;
		const named = [...this.#known.values()].map((each) => ({ ...each, title: titles[each.id] ?? each.title }));
		const found = named.filter(({ title }) => title.toLowerCase().includes(words));
		found.sort((one, other) => (one.changed < other.changed ? 1 : -1));
		const items = found.map(({ id, title }) => {
			const item = this.#item(id);
			item.draw(title, id === this.#current);
			return item.node;
		});
		for (const node of [...this.#list.children]) if (!items.includes(node as HTMLElement)) node.remove();
		arrange(this.#list, items);
		if (words && !found.length) this.#list.append(el("li.dim", {}, strings.nothingFound));
	}

	#item(id: string): ConversationItem {
		const known = this.#items.get(id);
		if (known) return known;
		const item = new ConversationItem(this.owner.strings, {
			open: () => this.owner.open(id),
			rename: (title) => this.#rename(id, title),
			remove: () => this.owner.deleteConversation(id),
		});
		this.#items.set(id, item);
		return item;
	}

	#rename(id: string, title: string): void {
		const { [id]: _, ...titles } = this.owner.titles;
		this.owner.titles = title ? { ...titles, [id]: title } : titles;
		this.draw();
	}
}
