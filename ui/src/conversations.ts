/** The list of conversations: those of the server, the newest first, with a search. */
import { fields, isText, textOf } from "./blocks.ts";
import { type AgentClient, AgentError, type Conversation, METHOD_NOT_FOUND, type Part, type Task } from "./client.ts";
import { ConversationItem, MAX_TITLE } from "./conversation-item.ts";
import { alarm, arrange, button, el, icon } from "./dom.ts";
import type { Strings } from "./strings.ts";

const BEGIN = "M12 5v14M5 12h14";
/** Pause after a key in milliseconds before the text is searched. */
const TYPING = 200;

/** A text for searches without regard to case, accents and vowel signs, as on the server. */
const searchText = (text: string) => text.normalize("NFKD").toLowerCase().replace(/\p{Mn}/gu, "").replaceAll("ı", "i");

/** The element, as the list sees it. */
interface Owner {
	readonly client: AgentClient;
	readonly strings: Strings;
	open(contextId: string): unknown;
	renameConversation(contextId: string, title: string): Promise<void>;
	deleteConversation(contextId: string): Promise<void>;
}

export class Conversations {
	readonly node: HTMLElement;
	readonly search: HTMLInputElement;
	readonly #list = el("ul", { onkeydown: (event) => this.#move(event), onfocusin: () => this.#focused() });
	readonly #problem = el("div");
	readonly #more: HTMLButtonElement;
	readonly #known = new Map<string, Conversation>();
	readonly #items = new Map<string, ConversationItem>();
	/** Ids in the loaded pages. */
	#listed = new Set<string>();
	/** Ids of conversations that this page or another tab has used. An agent that lists no conversations has these only. */
	readonly #used = new Set<string>();
	/** Ids of conversations that were deleted since the last request. Its response may still contain them. */
	readonly #deleted = new Set<string>();
	/** The searched text. */
	#query = "";
	#next: string | undefined;
	/** Number of the last request: responses of earlier ones are stale. */
	#request = 0;
	#timer = 0;
	#current = "";

	constructor(
		private readonly owner: Owner,
		begin: () => unknown,
		private readonly askToken: (again?: () => unknown) => unknown,
		help: HTMLElement,
	) {
		const { strings } = owner;
		this.search = el("input", { type: "search", maxlength: MAX_TITLE, placeholder: strings.searchConversations, "aria-label": strings.searchConversations, oninput: () => this.#typed() }) as HTMLInputElement;
		this.#more = button("small", strings.showMore, () => this.#load(this.#next));
		const start = icon(strings.newConversation, BEGIN, begin, { class: "start" });
		start.append(strings.newConversation);
		this.#more.hidden = true;
		// The buttons stay when the list is drawn again, and so does the keyboard's focus.
		this.node = el("nav", { "aria-label": strings.conversations, hidden: true }, start, this.search, this.#problem, this.#list, this.#more, help);
	}

	/** Load the first page, if the list is visible. */
	load(): void {
		if (!this.node.hidden) this.#load();
	}

	#typed(): void {
		clearTimeout(this.#timer);
		this.#timer = window.setTimeout(() => this.load(), TYPING);
	}

	async #load(pageToken?: string): Promise<void> {
		this.#deleted.clear();
		const request = (this.#request += 1);
		const query = this.search.value.trim();
		let problem: Error | undefined;
		const page = await this.owner.client.listConversations({ query, pageToken }).catch((error) => ((problem = error), undefined));
		if (request !== this.#request) return;
		this.#showProblem(() => this.#load(pageToken), problem);
		// After an error, a search in the known conversations is better than none.
		if (!pageToken) this.#listed = new Set(page || query !== this.#query ? [] : this.#listed);
		for (const conversation of page?.conversations ?? []) {
			if (this.#deleted.has(conversation.contextId)) continue;
			this.#merge(conversation);
			this.#listed.add(conversation.contextId);
		}
		this.#query = query;
		if (page) this.#next = page.nextPageToken;
		this.draw();
		// Some conversations of the page may be versions in entries of earlier pages.
		const items = (page?.conversations ?? []).map(({ contextId }) => this.#items.get(contextId));
		if (pageToken && this.#more.matches(":focus")) items.find((item) => item?.node.isConnected)?.focus();
		this.#more.hidden = !this.#next;
	}

	/** Show why the list is incomplete. An agent without a list needs no explanation, and one that requires a token has a prompt. */
	#showProblem(again: () => unknown, problem?: Error): void {
		const expected = problem instanceof AgentError && (problem.code === METHOD_NOT_FOUND || problem.status === 401);
		this.#problem.replaceChildren();
		if (problem instanceof AgentError && problem.status === 401) this.askToken();
		if (problem && !expected) this.#problem.append(alarm(problem.message, " ", button("small", this.owner.strings.tryAgain, again)));
	}

	#merge(conversation: Conversation): void {
		const { contextId, updateTime } = conversation;
		const known = this.#known.get(contextId)?.updateTime ?? "";
		this.#known.set(contextId, { ...this.#known.get(contextId), ...conversation, updateTime: known > updateTime ? known : updateTime });
	}

	/** Add conversations, or their new titles. */
	add(...conversations: Conversation[]): void {
		for (const conversation of conversations) this.#merge(conversation);
		this.draw();
	}

	/**
	 * Load a conversation that another tab has used; returns the ids of its family, false if it was deleted, and nothing if
	 * the agent has no such conversation of this caller.
	 */
	async refresh(contextId: string, taskId?: string): Promise<(string | undefined)[] | false | undefined> {
		const { client } = this.owner;
		const lists = await client.listConversations({ relatedTo: contextId, pageSize: 100 }).catch((error: AgentError) => error);
		if (client !== this.owner.client) return;
		if (!(lists instanceof Error)) {
			const family = lists.conversations;
			const found = family.find((each) => each.contextId === contextId);
			if (!found) return this.#known.has(contextId) && !lists.nextPageToken ? false : undefined;
			if (taskId) this.#used.add(contextId);
			this.add(found);
			return family.map((each) => each.contextId);
		}
		if (lists.code !== METHOD_NOT_FOUND || !taskId) return;
		const task = await client.getTask(taskId).catch(() => undefined);
		if (!task || client !== this.owner.client) return;
		this.use(task);
		return [contextId];
	}

	/** Id of the newest known conversation. */
	get newest(): string | undefined {
		return this.#entries("")[0]?.contextId;
	}

	/** Forget all conversations. */
	clear(): void {
		this.#request += 1; // responses to earlier requests are stale
		clearTimeout(this.#timer);
		for (const each of [this.#known, this.#items, this.#listed, this.#used, this.#deleted]) each.clear();
		this.search.value = this.#query = this.#current = "";
		this.#next = undefined;
		this.#more.hidden = true;
		this.#problem.replaceChildren();
		this.draw();
	}

	/** Add the conversation of a new task. */
	use({ contextId, history, status }: Pick<Task, "contextId" | "history" | "status">): void {
		const message = history?.find(({ role }) => role === "ROLE_USER");
		const from = message && fields(message).branch;
		this.#name(contextId, message?.parts ?? [], status.timestamp ?? new Date().toISOString(), from && { messageId: message.messageId, from });
	}

	/** Give a branch the title of the conversation from which it begins. */
	async keepTitle(from: string, branch: string): Promise<void> {
		const title = this.#known.get(from)?.title;
		if (title && title !== this.#known.get(branch)?.title) await this.owner.renameConversation(branch, title).catch(() => {});
	}

	/** Add the conversation that is open, unless it is known: of an agent without a list, it is an earlier one. */
	opened(contextId: string, parts: Part[]): void {
		if (!this.#known.has(contextId)) this.#name(contextId, parts, "");
	}

	#name(contextId: string, parts: Part[], time: string, branch?: Conversation["branch"]): void {
		const name = textOf(parts) || (parts.find((part) => !isText(part))?.filename ?? "");
		const title = this.#known.get(contextId)?.title ?? name.trim().replace(/\s+/g, " ").slice(0, 60);
		this.#used.add(contextId);
		this.add({ contextId, title, createTime: this.#known.get(contextId)?.createTime ?? time, updateTime: time, ...(branch && { branch }) });
	}

	/** Mark the conversation that is open. A search that would hide a new one ends. */
	select(contextId: string): void {
		this.#current = contextId;
		this.#used.add(contextId);
		if (this.search.value && !this.#known.has(contextId)) {
			this.search.value = "";
			this.load();
		}
		this.draw();
	}

	/** Forget a conversation. */
	remove(contextId: string): void {
		const { node } = this.#items.get(contextId) ?? {};
		for (const each of [this.#known, this.#items, this.#listed, this.#used]) each.delete(contextId);
		this.#deleted.add(contextId);
		if (node?.matches(":focus-within")) this.#focusBeside(node);
		this.draw();
	}

	/** Move the focus to the conversation after an item, or before it. */
	#focusBeside(node: HTMLElement): void {
		const beside = node.nextElementSibling ?? node.previousElementSibling;
		(beside?.querySelector<HTMLElement>("button") ?? this.search).focus();
	}

	/** The conversations to show, the newest first. Of those that are connected by branches, it is the open one, or the newest. */
	#entries(words: string): Conversation[] {
		const isFound = ({ contextId, title }: Conversation) => this.#listed.has(contextId) || (this.#used.has(contextId) && searchText(title).includes(words));
		const found = [...this.#known.values()].filter(isFound).sort((one, other) => (one.updateTime < other.updateTime ? 1 : -1));
		const entries = new Map<string, Conversation>();
		for (const each of found) {
			const root = this.#root(each.contextId);
			if (!entries.has(root) || each.contextId === this.#current) entries.set(root, each);
		}
		return [...entries.values()];
	}

	/** The conversation from which the others begin that are connected with one by branches. */
	#root(id: string): string {
		const passed = new Set([id]);
		let root = id;
		for (let above = this.#above(root); above && !passed.has(above); above = this.#above(root)) passed.add((root = above));
		return root;
	}

	#above(id: string): string | undefined {
		return this.#known.get(id)?.branch?.from.contextId;
	}

	draw(): void {
		const { strings } = this.owner;
		const words = searchText(this.#query);
		const found = this.#entries(words);
		// Other versions may not be in the loaded pages.
		const versioned = new Set([...this.#known.values()].flatMap(({ contextId, branch }) => (branch ? [contextId, branch.from.contextId] : [])));
		const items = found.map(({ contextId, title }) => {
			const item = this.#item(contextId);
			item.draw(title || strings.files, contextId === this.#current, versioned.has(contextId));
			return item.node;
		});
		this.#stop(found.map(({ contextId }) => this.#items.get(contextId)!));
		for (const node of [...this.#list.children]) if (!items.includes(node as HTMLElement)) node.remove();
		arrange(this.#list, items);
		if (words && !items.length) this.#list.append(el("li.dim", {}, strings.nothingFound));
	}

	/** Make one conversation a stop of the Tab key: the focused one, the open one, or the first one. */
	#stop(items: ConversationItem[]): void {
		const stop = items.find(({ node }) => node.matches(":focus-within")) ?? items.find(({ current }) => current) ?? items[0];
		for (const item of items) item.isStop = item === stop;
	}

	/** The focus is in the list: close the questions of other conversations. */
	#focused(): void {
		const items = [...this.#items.values()];
		for (const item of items) if (!item.node.matches(":focus-within")) item.leave();
		this.#stop(items);
	}

	/** Move the focus to another conversation. */
	#move(event: KeyboardEvent): void {
		const nodes = [...this.#list.children];
		const at = nodes.findIndex((node) => node === (event.target as Element).closest("li"));
		const to: Record<string, number> = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: nodes.length - 1 };
		const next = nodes[to[event.key] ?? -1]?.querySelector<HTMLElement>(".context");
		if (!next || (event.target as Element).matches("input")) return;
		event.preventDefault();
		next.focus();
	}

	#item(id: string): ConversationItem {
		const known = this.#items.get(id);
		if (known) return known;
		const item = new ConversationItem(this.owner.strings, {
			open: () => this.owner.open(id),
			rename: (title) => this.#rename(id, title),
			remove: () => this.#delete(id),
		});
		this.#items.set(id, item);
		return item;
	}

	/** The conversations of an entry: those that are connected with one by branches. */
	async #family(id: string): Promise<Conversation[]> {
		const { client } = this.owner;
		const found: Conversation[] = [];
		let pageToken: string | undefined;
		do {
			const page = await client.listConversations({ relatedTo: id, pageSize: 100, pageToken }).catch((error) => {
				if (error instanceof AgentError && error.code === METHOD_NOT_FOUND) return { conversations: [], nextPageToken: undefined };
				throw error;
			});
			found.push(...page.conversations);
			pageToken = page.nextPageToken;
		} while (pageToken);
		return found;
	}

	/** Delete the conversations of an entry, the most distant ones first: after a failure, the rest is still one entry. */
	async #deleteFamily(id: string): Promise<void> {
		const { client } = this.owner;
		const family = await this.#family(id);
		const order = new Set([id]);
		for (const each of order) {
			for (const { contextId, branch } of family) {
				if (branch?.from.contextId === each) order.add(contextId);
				if (branch && contextId === each) order.add(branch.from.contextId); // it may be deleted
			}
		}
		const exists = (each: string) => each === id || family.some(({ contextId }) => contextId === each);
		for (const each of [...order].filter(exists).reverse()) if (client === this.owner.client) await this.owner.deleteConversation(each);
	}

	/** Give all conversations of an entry one title; an empty one is the default title of the first conversation. */
	async #renameFamily(id: string, title: string): Promise<void> {
		const { client } = this.owner;
		const family = await this.#family(id);
		const first = family.find(({ branch }) => !branch) ?? family.at(-1);
		let shared = title;
		for (const contextId of new Set([first?.contextId ?? id, ...family.map((each) => each.contextId), id])) {
			if (client !== this.owner.client) return;
			await this.owner.renameConversation(contextId, shared);
			shared ||= this.#known.get(contextId)?.title ?? "";
		}
	}

	/** Ask for a token if a request needs one, and repeat it then; false if it needs none. */
	#authorize(error: unknown, request: () => Promise<void>): boolean {
		const needed = error instanceof AgentError && error.status === 401;
		const again = (): unknown => request().catch((problem) => this.#showProblem(again, problem));
		if (needed) this.askToken(again);
		return needed;
	}

	/** Delete a conversation with its versions; rejects with words for the user. */
	async #delete(id: string): Promise<void> {
		await this.#deleteFamily(id).catch((error) => {
			if (this.#authorize(error, () => this.#delete(id))) return;
			throw error instanceof AgentError && error.code === METHOD_NOT_FOUND ? new Error(this.owner.strings.cannotDelete) : error;
		});
	}

	async #rename(id: string, title: string): Promise<void> {
		const { client } = this.owner;
		const before = this.#known.get(id);
		if (before && title) this.add({ ...before, title });
		await this.#renameFamily(id, title).catch((error) => {
			// Without the method, the title is known on this page only.
			if (error instanceof AgentError && error.code === METHOD_NOT_FOUND) return;
			if (client !== this.owner.client) return;
			if (before) this.add(before);
			if (!this.#authorize(error, () => this.#rename(id, title))) throw error;
		});
	}
}
