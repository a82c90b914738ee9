/**
 * <tailrace-chat>: a chat with an A2A agent, as one element. docs/playground.md describes its attributes, properties and events.
 *
 * A task on the page is the fold of its events: the same for one that streams, one whose connection was lost, and one that is
 * loaded again. Text of a model is never parsed as HTML.
 */
import { type Block, isText, textOf } from "./blocks.ts";
import { AgentClient, AgentError, type ApprovalDecision, type Branch, EXTENSION, type Message, type Metadata, type Part, randomId, type Task, type TaskEvent, type Token } from "./client.ts";
import { Conversations } from "./conversations.ts";
import { alarm, button, el, icon, slot } from "./dom.ts";
import type { ChatEvents } from "./events.ts";
import { Inspector } from "./inspector.ts";
import css from "./style.css";
import { fill, STRINGS, type Strings } from "./strings.ts";
import { type Host, TaskView } from "./task-view.ts";
import { resultForm } from "./tool-results.ts";

export { Markdown } from "./markdown.ts";
export * from "./client.ts";
export type { ChatEvents } from "./events.ts";
export type { Strings } from "./strings.ts";

const style = new CSSStyleSheet();
style.replaceSync(css);

const LIST = "M4 6h16M4 12h16M4 18h10";
const INSPECT = "M8 6l-5 6 5 6M16 6l5 6-5 6M13 5l-2 14";
const ATTACH = "M20 11l-8.5 8.5a5 5 0 0 1-7-7l9-9a3.3 3.3 0 0 1 4.7 4.7l-9 9a1.6 1.6 0 0 1-2.3-2.3l8-8";
const CUT = "M4 4l16 16M9 5a13 13 0 0 1 12 4M3 9a13 13 0 0 1 3-2M7 13a8 8 0 0 1 4-2M12 19h.01";
const REMOVE = "M6 6l12 12M18 6L6 18";
const BEFORE = "M15 5l-7 7 7 7";
const AFTER = "M9 5l7 7-7 7";
const DOWN = "M12 5v14M6 13l6 6 6-6";

const MAC = /Mac|iP(hone|ad)/.test(navigator.platform);
const COMMAND = MAC ? "⌘" : "Ctrl";
const shortcuts = (strings: Strings): [string, string][] => [
	["Enter", strings.send],
	["Shift + Enter", strings.shortcutNewLine],
	[strings.shortcutEmpty, strings.shortcutEdit],
	["Escape", strings.shortcutEscape],
	["F2, Delete", strings.shortcutConversation],
	[`${COMMAND} + K`, strings.searchConversations],
	[`${COMMAND} + Shift + O`, strings.newConversation],
];

/** Pixels from the end of the log within which it follows new text. */
const NEAR = 60;
/** Frames that took longer are followed by a pause of three times as long, so that input is not delayed. */
const BUSY_MILLISECONDS = 8;

type Panel = HTMLElement & { toggle?: HTMLButtonElement };
type Drawable = { draw(): void };

/** Attributes that are properties of the same name, too. */
const ATTRIBUTES = ["agent", "avatars", "context", "greeting", "heading", "hide", "placeholder", "suggestions", "theme"] as const;

export interface TailraceChat extends Record<(typeof ATTRIBUTES)[number], string | null> {
	addEventListener<Name extends keyof ChatEvents>(type: Name, listener: (event: CustomEvent<ChatEvents[Name]>) => unknown, options?: boolean | AddEventListenerOptions): void;
	addEventListener(type: string, listener: EventListenerOrEventListenerObject, options?: boolean | AddEventListenerOptions): void;
	removeEventListener<Name extends keyof ChatEvents>(type: Name, listener: (event: CustomEvent<ChatEvents[Name]>) => unknown, options?: boolean | EventListenerOptions): void;
	removeEventListener(type: string, listener: EventListenerOrEventListenerObject, options?: boolean | EventListenerOptions): void;
}

export class TailraceChat extends HTMLElement implements Host {
	static readonly observedAttributes = ["token", ...ATTRIBUTES];
	/** Request options for each message; see docs/extension.md. */
	request: Metadata = {};
	#token?: Token | null;
	#headers: Record<string, string> = {};
	#strings: Strings = STRINGS;
	contextId: string | undefined;
	client = new AgentClient("");
	/** Resolved when the conversation is on the page. */
	opened: Promise<unknown> = Promise.resolve();
	readonly #shadow = this.attachShadow({ mode: "open" });
	readonly #heading = el("h2");
	readonly #model = el("span.model");
	#log!: HTMLElement;
	readonly #live = el("div.sr", { role: "status" });
	#input!: HTMLTextAreaElement;
	#picker!: HTMLInputElement;
	readonly #chips = el("div.row");
	#send!: HTMLElement;
	#stop!: HTMLElement;
	#cut!: HTMLElement;
	#latest!: HTMLElement;
	#help!: HTMLDialogElement;
	#inspector!: Inspector;
	#conversations!: Conversations;
	/** Responses also grow after they were drawn: when a module for code or math is loaded. */
	readonly #sizes = new ResizeObserver(() => this.#sticks && this.#scroll());
	readonly #dirty = new Set<Drawable>();
	#nav!: Panel;
	#aside!: Panel;
	#views: TaskView[] = [];
	#files: Part[] = [];
	/** The message that is edited. */
	#edited?: Branch;
	/** The log follows the latest message. */
	#sticks = true;
	/** Where the log was scrolled to at the last event, in pixels. */
	#top = 0;
	#drawTime = 0;
	#scheduled = false;
	#channel?: BroadcastChannel;
	#keyboard: EventTarget = this;
	#fills = false;

	constructor() {
		super();
		this.#shadow.adoptedStyleSheets = [style];
		this.#build();
	}

	/** Make the elements of the page. */
	#build(): void {
		const strings = this.#strings;
		// The content may have grown since the scrolling that this event reports: only a scroll upwards leaves the end.
		const onscroll = () => {
			const { scrollTop, scrollHeight, clientHeight } = this.#log;
			if (scrollHeight - scrollTop - clientHeight < NEAR) this.#sticks = true;
			else if (scrollTop < this.#top) this.#sticks = false;
			this.#top = scrollTop;
			this.#latest.hidden = this.#sticks;
		};
		this.#log = el("div.log", { role: "log", "aria-live": "polite", "aria-label": strings.conversation, tabindex: 0, part: "log", onscroll });
		this.#input = el("textarea", {
			rows: 1,
			"aria-label": strings.message,
			part: "input",
			onkeydown: (event: KeyboardEvent) => this.#key(event),
			onpaste: (event: ClipboardEvent) => this.#pasted(event),
		}) as HTMLTextAreaElement;
		this.#picker = el("input", { type: "file", multiple: true, hidden: true, onchange: () => this.#attach(this.#picker.files ?? []) }) as HTMLInputElement;
		this.#send = el("button.main", { type: "submit" }, strings.send);
		this.#stop = button("main", strings.stop, () => this.stop(), { hidden: true });
		this.#cut = icon(strings.cut, CUT, () => this.working?.stream?.interrupt(), { hidden: true });
		this.#latest = icon(strings.latest, DOWN, () => this.#scroll(), { class: "icon latest", hidden: true });
		this.#help = el("dialog", { "aria-label": strings.shortcuts }) as HTMLDialogElement;
		const keys = shortcuts(strings).flatMap(([key, meaning]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, meaning)]);
		this.#help.append(el("h3", {}, strings.shortcuts), el("dl", {}, ...keys), button("small", strings.close, () => this.#help.close()));
		const help = button("small", strings.shortcuts, () => this.#help.showModal());
		this.#inspector = new Inspector(strings);
		this.#conversations = new Conversations(this, help);
		this.#nav = this.#conversations.node;
		this.#aside = this.#inspector.node;
		const attach = icon(strings.attach, ATTACH, () => this.#picker.click());
		const tools = el("div.row", {}, attach, this.#picker, this.#input, this.#cut, this.#stop, this.#send);
		const composer = el("form.composer", { part: "composer", onsubmit: (event: Event) => this.#submit(event) }, this.#latest, slot("composer-start"), this.#chips, tools, slot("composer-end"));
		const toggles = [this.#toggle(strings.conversations, LIST, this.#nav), this.#toggle(strings.inspector, INSPECT, this.#aside)] as const;
		const header = el("header", { part: "header" }, toggles[0], slot("header-start"), this.#heading, this.#model, slot("header-end"), toggles[1]);
		const drop = {
			ondragover: (event: DragEvent) => (event.preventDefault(), chat.classList.add("over")),
			ondragleave: () => chat.classList.remove("over"),
			ondrop: (event: DragEvent) => {
				event.preventDefault();
				chat.classList.remove("over");
				this.#attach(event.dataTransfer?.files ?? []);
			},
		};
		const chat = el("section.chat", { "aria-label": strings.chat, ...drop }, this.#log, composer);
		const app = el("div.app", {}, header, this.#nav, chat, this.#aside, this.#live, this.#help);
		this.#shadow.replaceChildren(app);
	}

	/** The button of a panel. */
	#toggle(label: string, drawing: string, panel: Panel): HTMLButtonElement {
		const flip = () => {
			panel.hidden = !panel.hidden;
			panel.toggle!.setAttribute("aria-expanded", `${!panel.hidden}`);
			this.#draw();
		};
		return (panel.toggle = icon(label, drawing, flip, { "aria-expanded": "false" }));
	}

	/** Bearer token or API key, or a function that is called for each request and returns one. */
	get token(): Token | null {
		return this.#token ?? this.getAttribute("token");
	}

	set token(token: Token | null) {
		this.#token = token;
		this.#authorize();
	}

	/** Headers of every request. */
	get headers(): Record<string, string> {
		return this.#headers;
	}

	set headers(headers: Record<string, string>) {
		this.#headers = this.client.headers = headers;
	}

	/** The texts of the page; those that are not given are English. */
	get strings(): Strings {
		return this.#strings;
	}

	set strings(strings: Partial<Strings>) {
		this.#strings = { ...STRINGS, ...strings };
		const { value } = this.#input;
		this.#build();
		this.#input.value = value;
		if (this.isConnected) this.#reconnect();
	}

	/** Begin again with another agent or other texts. */
	#reconnect(): void {
		this.disconnectedCallback();
		this.connectedCallback();
	}

	#authorize(): void {
		this.client.token = this.token ?? this.#stored("token", "sessionStorage");
	}

	attributeChangedCallback(name: string, before: string | null, value: string | null): void {
		if (!this.isConnected || before === value || !this.client.url) return;
		if (name === "agent") {
			this.#reconnect();
		} else if (name === "context") {
			if ((value ?? "") !== this.contextId) this.open(value ?? "");
		} else if (name === "token") this.#authorize();
		else this.#decorate();
	}

	/** Apply the attributes that change nothing but the page. */
	#decorate(): void {
		this.#input.placeholder = this.placeholder ?? this.#strings.message;
		this.#heading.textContent = this.heading ?? this.client.card.name ?? this.#strings.chat;
		const hidden = this.hide?.split(/\s+/) ?? [];
		for (const [name, panel] of [["conversations", this.#nav], ["inspector", this.#aside]] as const) {
			panel.toggle!.hidden = hidden.includes(name);
			if (panel.toggle!.hidden && !panel.hidden) panel.toggle!.click();
		}
		const avatars = this.avatars?.split(/\s+/).filter(Boolean) ?? [];
		for (const [at, name] of ["agent", "user"].entries()) {
			const avatar = avatars[at] ?? "";
			const image = /[./]/.test(avatar) ? `url(${JSON.stringify(new URL(avatar, document.baseURI).href)})` : "none";
			this.#log.style.setProperty(`--${name}-avatar`, image === "none" && avatar ? JSON.stringify(avatar) : '""');
			this.#log.style.setProperty(`--${name}-image`, image);
			this.#log.classList.toggle(`${name}-avatar`, avatar !== "");
		}
		const welcome = this.#log.querySelector(".welcome");
		if (welcome && this.contextId === "") welcome.replaceWith(this.#welcome());
	}

	#emit<Name extends keyof ChatEvents>(name: Name, detail: ChatEvents[Name]): void {
		this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true }));
	}

	connectedCallback(): void {
		const { agent } = this;
		this.client = new AgentClient(new URL(agent ?? ".", agent === null ? import.meta.url : document.baseURI).href, { headers: this.#headers });
		this.#authorize();
		this.#decorate();
		this.#inspector.options.value = this.#stored("request");
		this.#channel = new BroadcastChannel(this.#name(""));
		this.#channel.onmessage = ({ data }) => this.#announced(data);
		this.#fills = this.hasAttribute("page");
		this.#keyboard = this.#fills ? window : this;
		this.#keyboard.addEventListener("keydown", this.#shortcut as EventListener);
		if (this.#fills && this.clientWidth > 900) this.#nav.toggle!.click();
		const named = this.#fills ? this.#addressed : this.#stored("context", "sessionStorage");
		const ready = () => {
			if (!this.isConnected) return;
			this.#decorate();
			if (this.#fills) addEventListener("hashchange", this.#followAddress);
			this.#conversations.load();
			return this.open(this.context ?? named);
		};
		this.opened = this.client.readCard().then(ready, ready);
	}

	disconnectedCallback(): void {
		removeEventListener("hashchange", this.#followAddress);
		this.#keyboard.removeEventListener("keydown", this.#shortcut as EventListener);
		this.#leaveAll();
		this.#channel?.close();
	}

	readonly #followAddress = () => {
		if (this.#addressed !== this.contextId) this.open(this.#addressed);
	};

	// --- storage of the browser ---

	/** Titles that the user has given to conversations; they stay in this browser. */
	get titles(): Record<string, string> {
		return JSON.parse(this.#stored("titles") || "{}");
	}

	set titles(titles: Record<string, string>) {
		this.#store("titles", JSON.stringify(titles));
	}

	#name(what: string): string {
		return `tailrace:${this.client.url}:${what}`;
	}

	#stored(name: string, where: "localStorage" | "sessionStorage" = "localStorage"): string {
		try {
			return window[where].getItem(this.#name(name)) ?? "";
		} catch {
			return ""; // a frame or a browser without storage
		}
	}

	#store(name: string, value: string, where: "localStorage" | "sessionStorage" = "localStorage"): void {
		try {
			window[where].setItem(this.#name(name), value);
		} catch {
			// As above: everything works until the page is closed.
		}
	}

	// --- conversations ---

	/** The conversation in the page's address. */
	get #addressed(): string {
		try {
			return decodeURIComponent(location.hash.slice(1));
		} catch {
			return ""; // cut in the middle of a character
		}
	}

	/** Delete a conversation of the server; rejects with `AgentError`. */
	async deleteConversation(contextId: string): Promise<void> {
		await this.client.deleteConversation(contextId);
		this.#conversations.remove(contextId);
		this.#channel?.postMessage({ deleted: contextId });
		if (contextId === this.contextId) await this.open("");
	}

	/** Begin a new conversation. */
	newConversation(): Promise<unknown> {
		return this.open("");
	}

	/** Make a conversation the present one; `named`: the present one has got its id, and is no place to go back to. */
	#enter(contextId: string, named = this.contextId === undefined): void {
		this.contextId = contextId;
		if (this.#fills && this.#addressed !== contextId) history[named ? "replaceState" : "pushState"](null, "", `#${encodeURIComponent(contextId)}`);
		if (!this.#fills) this.#store("context", contextId, "sessionStorage");
		this.#conversations.select(contextId);
		this.#emit("conversationchange", { contextId });
	}

	/** Open a conversation, and follow its running tasks; a new one for an empty id. */
	open(contextId: string): Promise<unknown> {
		return (this.opened = this.#load(contextId));
	}

	async #load(contextId: string): Promise<void> {
		this.#leaveAll();
		this.#views = [];
		if (this.#edited) this.#discard();
		this.#sizes.disconnect();
		this.#sticks = true;
		this.#enter(contextId);
		if (this.clientWidth < 740) for (const panel of [this.#nav, this.#aside]) if (!panel.hidden) panel.toggle!.click();
		this.#log.replaceChildren(contextId ? el("p.welcome", {}, this.#strings.loading) : this.#welcome());
		this.#drawButtons();
		if (!contextId) return;
		try {
			const conversation = this.client.conversation(contextId).catch(() => []); // a method of the extension
			const tasks = await this.#tasks(contextId);
			const messages = await conversation;
			if (this.contextId !== contextId) return;
			this.#log.replaceChildren();
			this.#show(messages, tasks);
		} catch (error) {
			const again = () => this.open(contextId);
			this.#log.replaceChildren(alarm((error as Error).message, " ", button("small", this.#strings.tryAgain, again)));
			if (error instanceof AgentError && error.status === 401) this.#askToken(again);
		}
	}

	/** The empty state: the agent, and examples of its skills. */
	#welcome(): HTMLElement {
		const { description, skills = [] } = this.client.card;
		const given = this.suggestions?.split("\n").map((each) => each.trim());
		const examples = (given ?? skills.flatMap((skill) => skill.examples ?? [])).filter(Boolean).slice(0, 4);
		const choices = examples.map((example) => button("suggestion", example, () => this.send(example)));
		const greeting = this.greeting ?? (description || this.#strings.greeting);
		const usual = [el("h3", {}, this.#heading.textContent), el("p", {}, greeting)];
		return el("div.welcome", { part: "welcome" }, slot("welcome", ...usual), el("div.suggestions", {}, ...choices));
	}

	async #tasks(contextId: string): Promise<Map<string, Task>> {
		const found = new Map<string, Task>();
		let pageToken = "";
		do {
			const page = await this.client.listTasks({ contextId, includeArtifacts: true, pageSize: 100, pageToken });
			for (const task of page.tasks) found.set(task.id, task);
			pageToken = page.nextPageToken;
		} while (pageToken && found.size < 1000);
		return found;
	}

	/** Show tasks in the order of the conversation, between messages without a task. */
	#show(messages: Message[], tasks: Map<string, Task>): void {
		let view: TaskView | undefined;
		const begin = (task?: Task): TaskView => {
			view = this.#addView();
			if (task) view.takeTask(task);
			if (task) tasks.delete(task.id);
			return view;
		};
		for (const message of messages) {
			if (this.#find(message.taskId)) continue;
			const task = tasks.get(message.taskId ?? "");
			if (task || !view || view.id || message.role === "ROLE_USER") view = begin(task);
			if (!task) view.takeMessage(message);
		}
		for (const task of [...tasks.values()].reverse()) begin(task);
		for (const each of this.#views) if (!each.id) each.draw();
		this.showVersions();
		this.#scroll();
		for (const each of this.#views) if (each.id && !each.over && (!each.waits || each === view)) this.#follow(each);
	}

	#find(id?: string): TaskView | undefined {
		return id ? this.#views.find((view) => view.id === id) : undefined;
	}

	#addView(): TaskView {
		const view = new TaskView(this);
		this.#log.querySelector(".welcome")?.remove();
		this.#log.append(view.node);
		this.#sizes.observe(view.node);
		this.#views.push(view);
		return view;
	}

	/** Another tab has begun a task or deleted a conversation. */
	#announced({ task, deleted }: { task?: Task; deleted?: string }): void {
		if (deleted) {
			this.#conversations.remove(deleted);
			if (deleted === this.contextId) this.open("");
		}
		if (!task) return;
		this.#conversations.add(task);
		this.#conversations.draw();
		if (task.contextId !== this.contextId || this.#find(task.id)) return;
		const view = this.#addView();
		view.id = task.id;
		this.#follow(view);
	}

	// --- sending ---

	#key(event: KeyboardEvent): void {
		if (event.key === "Enter" && !event.shiftKey && !event.isComposing) this.#submit(event);
		else if (event.key === "ArrowUp" && !this.#input.value) {
			const view = this.#views.findLast(({ lastParts }) => lastParts.length);
			if (view) this.edit(view.lastParts, view.lastId);
			if (view) event.preventDefault();
		}
	}

	readonly #shortcut = (event: KeyboardEvent): void => {
		const command = MAC ? event.metaKey : event.ctrlKey;
		if (event.key === "Escape") this.#escape();
		else if (command && event.key.toLowerCase() === "k") {
			event.preventDefault();
			if (this.#nav.hidden) this.#nav.toggle!.click();
			this.#conversations.search.focus();
		} else if (command && event.shiftKey && event.key.toLowerCase() === "o") {
			event.preventDefault();
			this.newConversation();
			this.#input.focus();
		}
	};

	#escape(): void {
		if (this.#help.open) return;
		const panel = [this.#aside, this.#nav].find((each) => each.contains(this.#shadow.activeElement));
		if (panel) {
			panel.toggle!.click();
			panel.toggle!.focus();
		} else if (this.working) this.stop();
	}

	#pasted(event: ClipboardEvent): void {
		const files = event.clipboardData?.files ?? [];
		if (!files.length) return;
		event.preventDefault();
		this.#attach(files);
	}

	#attach(files: Iterable<File>): void {
		for (const file of files) {
			const reader = new FileReader();
			reader.onload = () => {
				const raw = `${reader.result}`.split(",")[1] ?? "";
				this.#files.push({ raw, filename: file.name, mediaType: file.type || "application/octet-stream" });
				this.#drawFiles();
			};
			reader.readAsDataURL(file);
		}
		this.#picker.value = "";
	}

	#drawFiles(): void {
		const remove = (file: Part) => {
			this.#files = this.#files.filter((each) => each !== file);
			this.#drawFiles();
			this.#input.focus();
		};
		const chips = this.#files.map((file) => el("span.badge", {}, file.filename ?? this.#strings.file, icon(fill(this.#strings.removeFile, { name: file.filename }), REMOVE, () => remove(file))));
		const discard = () => this.#discard();
		if (this.#edited) chips.unshift(el("span.badge", {}, this.#strings.editedMessage, icon(this.#strings.discardEdit, REMOVE, discard)));
		this.#chips.replaceChildren(...chips);
	}

	#discard(): void {
		this.#edited = undefined;
		this.#input.value = "";
		this.#files = [];
		this.#drawFiles();
		this.#input.focus();
	}

	/** Show which version of a message this conversation has, and buttons to switch. */
	showVersions(): void {
		for (const node of this.#log.querySelectorAll<HTMLElement>("[data-message]")) {
			const id = node.dataset.message!;
			const versions = this.#conversations.versions(id);
			const at = versions.findIndex(({ messageId }) => messageId === id);
			const go = (label: string, drawing: string, to?: Branch) => icon(label, drawing, () => this.open(to!.contextId), { disabled: !to });
			const position = el("span", {}, `${at + 1}/${versions.length}`);
			const shown = [go(this.#strings.previousVersion, BEFORE, versions[at - 1]), position, go(this.#strings.nextVersion, AFTER, versions[at + 1])];
			node.querySelector(".versions")!.replaceChildren(...(at >= 0 && versions.length > 1 ? shown : []));
		}
	}

	/** Send an edited message: as the first one of a branch. False if it was not sent. */
	async #branch(branch: Branch, parts: Part[]): Promise<boolean> {
		const request = this.#requestOptions();
		if (!request) return false;
		try {
			const task = await this.client.createTask(parts, { branch, request });
			this.#emit("messagesend", { contextId: task.contextId, parts });
			this.#conversations.add(task);
			this.#channel?.postMessage({ task });
			await this.open(task.contextId);
			return true;
		} catch (error) {
			this.#emit("chaterror", { id: "", contextId: branch.contextId, error: error as Error });
			this.#log.append(alarm((error as Error).message));
			this.#scroll();
			return false;
		}
	}

	/** Put a message into the message box, to be changed and sent: as a branch, if the agent has branches. */
	edit(parts: Part[], messageId: string): void {
		const branches = this.client.card.capabilities?.extensions?.some(({ uri }) => uri === EXTENSION);
		this.#edited = branches && this.contextId ? { contextId: this.contextId, messageId } : undefined;
		this.#input.value = textOf(parts);
		this.#files = parts.filter((part) => !isText(part));
		this.#drawFiles();
		this.#input.focus();
	}

	async #submit(event: Event): Promise<void> {
		event.preventDefault();
		const sent = await this.send(this.#input.value.trim(), this.#files);
		if (sent) this.#discard();
	}

	/** Send a message in the conversation. False while a response is running, without content, or with wrong request options. */
	async send(text: string, files: Part[] = []): Promise<boolean> {
		await this.opened; // the message belongs to this conversation, after its others
		if (this.working || !(text || files.length)) return false;
		const parts = [...(text ? [{ text }] : []), ...files];
		if (this.#edited) return this.#branch(this.#edited, parts);
		return this.ask(parts, this.#views.findLast((view) => view.waits));
	}

	/** Send a message: to a task that waits for it, or as a new one. */
	ask(parts: Part[], view?: TaskView): boolean {
		const request = this.#requestOptions();
		if (!request) return false;
		const message: Message = { messageId: randomId(), role: "ROLE_USER", parts };
		if (this.contextId) message.contextId = this.contextId;
		if (view) message.taskId = view.id;
		view ??= this.#addView();
		view.takeMessage(message);
		this.#emit("messagesend", { contextId: this.contextId ?? "", parts });
		view.sent = performance.now();
		view.first = undefined;
		view.form.inert = true;
		this.#scroll();
		this.#follow(view, message, request);
		return true;
	}

	/** Request options of the next message; nothing if they are not JSON, which the inspector then shows. */
	#requestOptions(): Metadata | undefined {
		const { options } = this.#inspector;
		let request: Metadata | undefined;
		try {
			request = { ...this.request, ...JSON.parse(options.value || "{}") };
		} catch (error) {
			this.announce(fill(this.#strings.notJson, { error: (error as Error).message }));
			if (this.#aside.hidden) this.#aside.toggle!.click();
			options.focus();
			return undefined;
		} finally {
			options.setAttribute("aria-invalid", `${!request}`);
		}
		this.#store("request", options.value);
		return request;
	}

	resultForm(view: TaskView, calls: any[]): HTMLElement {
		return resultForm(this.#strings, calls, (results) => {
			this.ask([{ data: { tool_results: results } }], view);
			this.#input.focus();
		});
	}

	/** Send a decision about a call of a task; rejects if it is refused. */
	async decide(view: TaskView, decision: ApprovalDecision): Promise<void> {
		try {
			await this.client.decide(view.id, [decision]);
		} catch (error) {
			this.#emit("chaterror", { id: view.id, contextId: view.contextId, error: error as Error });
			if (error instanceof AgentError && error.status === 401) this.#askToken(() => this.open(view.contextId));
			throw error;
		} finally {
			if (!view.stream && !view.over) this.#follow(view);
		}
	}

	#askToken(again: () => unknown): void {
		const field = el("input", { type: "password", autocomplete: "off", required: true }) as HTMLInputElement;
		const onsubmit = (event: Event) => {
			event.preventDefault();
			this.#store("token", (this.client.token = field.value.trim()), "sessionStorage");
			form.remove();
			this.#conversations.load();
			again();
		};
		const form = el("form.ask", { onsubmit }, el("label", {}, `${this.#strings.token} `, field), el("div", {}, el("button.main", { type: "submit" }, this.#strings.continue)));
		this.#log.append(form);
		field.focus();
	}

	// --- following a task ---

	/** The running task that the page follows. */
	get working(): TaskView | undefined {
		return this.#views.findLast((view) => view.stream && !view.over && !view.waits);
	}

	/** Cancel the running task. Its text remains. */
	async stop(): Promise<void> {
		const { working } = this;
		if (!working) return;
		if (working.id) await this.client.cancel(working.id).catch((error) => this.announce(error.message));
		else this.#leave(working);
	}

	#leave(view: TaskView): void {
		const { stream } = view;
		view.stream = undefined;
		stream?.close();
		this.#drawButtons();
	}

	#leaveAll(): void {
		for (const view of this.#views) {
			this.#leave(view);
			view.close();
		}
	}

	/** Read a task's events until it is over: those of sending a message, or those after the last one on the page. */
	async #follow(view: TaskView, message?: Message, request?: Metadata): Promise<void> {
		this.#leave(view);
		const stream = message ? this.client.sendMessage(message, { request }) : this.client.subscribe(view.id, { after: view.number });
		view.stream = stream;
		this.#drawButtons();
		try {
			for await (const event of stream) {
				if (view.stream !== stream) return;
				this.#take(view, event);
			}
		} catch (error) {
			if (view.stream === stream) this.#refused(view, error as Error, message, request);
		}
		if (view.stream === stream) this.#leave(view);
	}

	#take(view: TaskView, event: TaskEvent): void {
		this.#inspector.add(event);
		this.#changed();
		if (event.type === "connection") {
			if (event.state === "retry") {
				view.trouble = event.error ? this.#strings.connectionLost : `cut after event ${event.after}`;
				if (event.error) view.problem.replaceChildren(alarm(event.error.message, ` ${this.#strings.tryingAgain}`));
			}
			return this.changed(view);
		}
		if (view.trouble) view.problem.replaceChildren();
		view.trouble = "";
		const { state, id } = view;
		view.take(event);
		this.changed(view);
		if (id !== view.id && view.id) this.#begun(view);
		if (event.type === "artifact") {
			const { artifact, append = false } = event.artifact;
			const text = textOf(artifact.parts);
			if (text) this.#emit("textdelta", { id: view.id, contextId: view.contextId, artifactId: artifact.artifactId, text, append });
		}
		if (state !== view.state) this.#moved(view);
	}

	/** The task cannot be followed further: show why, and offer another attempt. */
	#refused(view: TaskView, error: Error, message?: Message, request?: Metadata): void {
		if (!(error instanceof AgentError)) reportError(error); // a fault of this page
		const again = () => this.#follow(view, view.id ? undefined : message, request);
		this.#leave(view);
		view.form.inert = false;
		view.trouble = view.id ? this.#strings.connectionLost : this.#strings.notSent;
		this.#emit("chaterror", { id: view.id, contextId: view.contextId, error });
		view.draw();
		view.problem.replaceChildren(alarm(error.message, " ", button("small", this.#strings.tryAgain, again)));
		if (error instanceof AgentError && error.status === 401) this.#askToken(again);
	}

	/** A task of this page has its id. */
	#begun({ id, contextId, lastParts }: TaskView): void {
		if (this.contextId !== contextId) this.#enter(contextId, true);
		const history: Message[] = [{ messageId: "", role: "ROLE_USER", parts: lastParts.filter(isText) }];
		const task: Task = { id, contextId, history, status: { state: "TASK_STATE_WORKING", timestamp: new Date().toISOString() } };
		this.#conversations.add(task);
		this.#conversations.draw();
		this.#channel?.postMessage({ task });
	}

	#moved({ id, contextId, state, unapproved }: TaskView): void {
		this.#drawButtons();
		const { working, waiting, approvalAnnounced } = this.#strings;
		const asked = unapproved.length ? fill(approvalAnnounced, { names: unapproved.join(", ") }) : waiting;
		const words: Record<string, string> = { working, "input required": asked };
		this.announce(words[state] ?? fill(this.#strings.state, { state }));
		this.#emit("taskstate", { id, contextId, state });
	}

	showModel(name: string): void {
		this.#model.textContent = name;
	}

	#drawButtons(): void {
		const working = Boolean(this.working);
		this.#stop.hidden = this.#cut.hidden = !working;
		this.#send.hidden = working;
		this.#log.setAttribute("aria-busy", `${working}`);
	}

	announce(text: string): void {
		this.#live.textContent = text;
	}

	// --- drawing: once per frame ---

	changed(what: Drawable | Block): void {
		this.#changed();
		this.#dirty.add(what);
	}

	#changed(): void {
		if (this.#scheduled) return;
		this.#scheduled = true;
		const frame = () => requestAnimationFrame(() => this.#draw());
		if (this.#drawTime > BUSY_MILLISECONDS) setTimeout(frame, 3 * this.#drawTime);
		else frame();
	}

	#draw(): void {
		const began = performance.now();
		this.#scheduled = false;
		for (const each of this.#dirty) each.draw();
		this.#dirty.clear();
		if (this.#sticks) this.#scroll();
		this.#inspector.draw(this.#views.at(-1));
		this.#drawTime = performance.now() - began;
	}

	#scroll(): void {
		this.#sticks = true;
		this.#log.scrollTop = this.#log.scrollHeight;
	}
}

for (const name of ATTRIBUTES) {
	Object.defineProperty(TailraceChat.prototype, name, {
		get(this: TailraceChat) {
			return this.getAttribute(name);
		},
		set(this: TailraceChat, value: string | null | undefined) {
			if (value === null || value === undefined) this.removeAttribute(name);
			else this.setAttribute(name, value);
		},
	});
}

customElements.get("tailrace-chat") ?? customElements.define("tailrace-chat", TailraceChat);

declare global {
	interface HTMLElementTagNameMap {
		"tailrace-chat": TailraceChat;
	}
}
