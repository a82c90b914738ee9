/**
 * <tailrace-chat>: a chat with an A2A agent, as one element. docs/playground.md describes its attributes, properties and events.
 *
 * A task on the page is the fold of its events: the same for one that streams, one whose connection was lost, and one that is
 * loaded again. Text of a model is never parsed as HTML.
 */
import { Address } from "./address.ts";
import { AgentClient, AgentError, extensionOf, type Metadata, type Part, type Task, type Token } from "./client.ts";
import { Composer } from "./composer.ts";
import { Conversations } from "./conversations.ts";
import { button, el, reflectAttributes, slot } from "./dom.ts";
import { emit, type Listening } from "./events.ts";
import { type Drawable, FrameQueue } from "./frame-queue.ts";
import { Inspector } from "./inspector.ts";
import { Log } from "./log.ts";
import { Panels } from "./panel.ts";
import { mayPass, requestProblem } from "./problems.ts";
import { Sender } from "./sending.ts";
import { Shortcuts, shortcutsDialog } from "./shortcuts.ts";
import { BrowserStorage } from "./storage.ts";
import { STRINGS, type Strings } from "./strings.ts";
import css from "./style.css";
import { type Announcement, Tabs } from "./tabs.ts";
import type { Actions, Host, TaskView } from "./task-view.ts";
import { TokenPrompt } from "./token-form.ts";
import { Transcript } from "./transcript.ts";
import { Versions } from "./versions.ts";
import { unknownConversation, welcome } from "./welcome.ts";

export { Markdown } from "./markdown.ts";
export * from "./client.ts";
export type { ChatEvents } from "./events.ts";
export type { Strings } from "./strings.ts";

const style = new CSSStyleSheet();
style.replaceSync(css);

/** Attributes that are properties of the same name, too. */
const ATTRIBUTES = ["agent", "avatars", "context", "greeting", "heading", "hide", "placeholder", "suggestions", "theme"] as const;

export interface TailraceChat extends Record<(typeof ATTRIBUTES)[number], string | null> {
	addEventListener: Listening<AddEventListenerOptions>;
	removeEventListener: Listening<EventListenerOptions>;
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
	readonly #live = el("div.sr", { role: "status" });
	readonly #storage = new BrowserStorage(() => this.client.url);
	readonly #address = new Address(this.#storage);
	readonly #frames = new FrameQueue(() => this.#drawn());
	#log!: Log;
	#prompt!: TokenPrompt;
	#composer!: Composer;
	#transcript!: Transcript;
	#sender!: Sender;
	#help!: HTMLDialogElement;
	#inspector!: Inspector;
	#conversations!: Conversations;
	#versions!: Versions;
	#panels!: Panels;
	readonly #tabs = new Tabs();
	readonly #shortcuts = new Shortcuts({ begin: () => (this.newConversation(), this.#composer.input.focus()), search: () => this.#search(), escape: () => this.#escape() });
	#fills = false;
	/** A conversation of the caller of a token that was replaced in the prompt, until the caller of the new one is known. */
	#former?: string;

	constructor() {
		super();
		this.#shadow.adoptedStyleSheets = [style];
		this.#build();
	}

	/** Make the elements of the page. */
	#build(): void {
		const strings = this.#strings;
		this.#log = new Log(strings);
		this.#prompt = new TokenPrompt(strings, this.#log.node, (token, again) => this.#useToken(token, again));
		this.#composer = new Composer(
			strings,
			{
				submit: () => this.#sender.submit(),
				stop: () => this.stop(),
				cut: () => this.working?.stream?.interrupt(),
				editLast: () => this.#sender.editLast(),
			},
			this.#log.latest,
		);
		this.#transcript = new Transcript(this, this.#log, {
			received: (event) => (this.#inspector.add(event), this.#frames.add()),
			begun: (view, isShown) => this.#begun(view, isShown),
			moved: (view) => this.#moved(view),
			followed: () => this.#drawButtons(),
			askToken: (again) => this.#askToken(again),
		});
		this.#sender = new Sender(this, this.#transcript, this.#composer, this.#log, {
			requestOptions: () => this.#requestOptions(),
			branched: (task, titled) => {
				this.#announce(task);
				this.#transcript.expect(task.id);
				if (titled) this.#conversations.keepTitle(titled, task.contextId);
			},
			askToken: (again) => this.#askToken(again),
		});
		this.#help = shortcutsDialog(strings);
		this.#inspector = new Inspector(strings);
		this.#conversations = new Conversations(this, () => this.#begin(), (again) => this.#askToken(again), button("small", strings.shortcuts, () => this.#help.showModal()));
		this.#versions = new Versions(this, this.#log);
		const { list, inspector } = (this.#panels = new Panels(strings, this.#conversations.node, this.#inspector.node, {
			list: () => this.contextId !== undefined && this.#conversations.load(),
			inspector: () => this.#frames.draw(),
		}));
		const header = el("header", { part: "header" }, list.toggle, slot("header-start"), this.#heading, this.#model, slot("header-end"), inspector.toggle);
		const chat = el("section.chat", { "aria-label": strings.chat }, this.#log.node, this.#composer.node);
		this.#composer.acceptDrops(chat);
		this.#shadow.replaceChildren(el("div.app", {}, header, list.node, chat, inspector.node, this.#live, this.#help));
	}

	/** Bearer token or API key, or a function that is called for each request and returns one. */
	get token(): Token | null {
		return this.#token ?? this.getAttribute("token");
	}

	set token(token: Token | null) {
		const before = this.token;
		this.#token = token;
		// A function may return other tokens of the same caller, and pages often make such functions again.
		if (before === token || (typeof before === "function" && typeof token === "function")) this.#authorize();
		else this.#changeCaller(Boolean(this.client.token));
	}

	/** Headers of every request. */
	get headers(): Record<string, string> {
		return this.#headers;
	}

	set headers(headers: Record<string, string>) {
		const before = this.#headers;
		this.#headers = this.client.headers = headers;
		if (JSON.stringify(headers) !== JSON.stringify(before)) this.#changeCaller(Object.keys(before).length > 0);
	}

	/** The texts of the page; those that are not given are English. */
	get strings(): Strings {
		return this.#strings;
	}

	set strings(strings: Partial<Strings>) {
		this.#strings = { ...STRINGS, ...strings };
		const { isConnected } = this;
		const composer = this.#composer;
		if (isConnected) this.disconnectedCallback();
		this.#build();
		this.#composer.takeOver(composer);
		if (isConnected) this.connectedCallback();
	}

	#authorize(): void {
		this.client.token = this.token ?? this.#storage.get("token", "sessionStorage");
	}

	/** Another caller or agent: forget all that is known of the former one, and load again. `known`: there was another caller. */
	#changeCaller(known: boolean): void {
		const connected = this.#tabs.joined;
		if (connected) this.disconnectedCallback();
		this.#forgetCaller();
		if (known) this.#address.write("", true);
		if (connected) this.connectedCallback();
	}

	/** Forget all that is known of a caller, except for parts of messages. */
	#forgetCaller(kept: Part[] = []): void {
		this.#former = undefined;
		this.#transcript.forget();
		this.#log.restart(el("p.welcome", {}, this.#strings.loading));
		this.#composer.forget(kept);
		this.#inspector.clear();
		this.#conversations.clear();
		this.#versions.clear();
	}

	attributeChangedCallback(name: string, before: string | null, value: string | null): void {
		if (before === value) return;
		if (name === "agent" || (name === "token" && (this.#token ?? null) === null)) this.#changeCaller(name === "token" && Boolean(this.client.token));
		else if (!this.#tabs.joined) return;
		else if (name !== "context") this.#decorate();
		else if ((value ?? "") !== this.contextId) this.opened = value ? this.#openGiven(value) : this.open("");
	}

	/** Apply the attributes that change nothing but the page. */
	#decorate(): void {
		this.#composer.input.placeholder = this.placeholder ?? this.#strings.message;
		this.#heading.textContent = this.heading ?? this.client.card.name ?? this.#strings.chat;
		this.#panels.hide(this.hide?.split(/\s+/) ?? []);
		this.#model.textContent ||= extensionOf(this.client.card)?.params?.model ?? "";
		this.#log.showAvatars(this.avatars?.split(/\s+/).filter(Boolean) ?? []);
		const shown = this.#log.node.querySelector(".welcome");
		if (shown && this.contextId === "") shown.replaceWith(this.#welcome());
	}

	#begin(): void {
		this.newConversation();
		this.#composer.focus();
	}

	#welcome(): HTMLElement {
		return welcome(this, this.#heading.textContent, (text) => {
			this.send(text);
			this.#composer.focus();
		});
	}

	connectedCallback(): void {
		const { agent } = this;
		const url = new URL(agent ?? ".", agent === null ? import.meta.url : document.baseURI).href;
		const client = (this.client = new AgentClient(url, { headers: this.#headers }));
		this.#authorize();
		this.contextId = undefined;
		this.#model.textContent = "";
		this.#decorate();
		this.#inspector.options.value = this.#storage.get("request");
		this.#tabs.join(this.#storage.name(""), (announcement) => this.#announced(announcement));
		this.#fills = this.hasAttribute("page");
		this.#address.join(this.#fills);
		this.#shortcuts.listen(this.#fills ? window : this);
		if (this.#fills && this.clientWidth > 900) this.#panels.list.show(true);
		if (this.#fills && document.activeElement === document.body) this.#composer.focus();
		const ready = () => {
			if (!this.isConnected || client !== this.client) return;
			this.#decorate();
			this.#address.follow((contextId) => contextId !== this.contextId && this.open(contextId));
			this.#conversations.load();
			// The page may have opened a conversation before the card was loaded.
			if (this.contextId !== undefined || this.#transcript.next) return this.#loadVersions();
			return this.context ? this.#openGiven(this.context) : this.open(this.#address.contextId);
		};
		this.opened = client.readCard().then(ready, ready);
	}

	disconnectedCallback(): void {
		this.#address.leave();
		this.#shortcuts.leave();
		this.#transcript.clear();
		this.#tabs.leave();
	}

	// --- conversations ---

	/** Delete a conversation of the server; rejects with `AgentError`. */
	async deleteConversation(contextId: string): Promise<void> {
		const { client } = this;
		await client.deleteConversation(contextId);
		if (client !== this.client) return;
		this.#tabs.tell({ contextId });
		await this.#forget(contextId);
	}

	/** A conversation was deleted; `reason` is why, if the user has not done it. */
	async #forget(contextId: string, reason?: string): Promise<void> {
		this.#conversations.remove(contextId);
		this.#versions.remove(contextId);
		if (contextId !== this.contextId) return;
		this.#composer.move("");
		await this.open("");
		if (reason) this.#log.fail(reason);
	}

	/** Change the title of a conversation of the server; an empty one restores the default. Rejects with `AgentError`. */
	async renameConversation(contextId: string, title: string): Promise<void> {
		const { client } = this;
		const conversation = await client.renameConversation(contextId, title);
		if (client !== this.client) return;
		this.#conversations.add(conversation);
		this.#tabs.tell({ contextId });
	}

	/** Begin a new conversation. */
	newConversation(): Promise<unknown> {
		return this.open("");
	}

	/** Make a conversation the present one; `named`: the present one has got its id, and is no place to go back to. */
	#enter(contextId: string, named = this.contextId === undefined): void {
		this.contextId = contextId;
		this.#address.write(contextId, named);
		this.#conversations.select(contextId);
		emit(this, "conversationchange", { contextId });
	}

	/** Open a conversation, and follow its running tasks; a new one for an empty id. One that is being loaded is not loaded again. */
	open(contextId: string): Promise<unknown> {
		if (contextId && contextId === this.#transcript.loading) return this.opened;
		return (this.opened = this.#load(contextId));
	}

	/** Open the conversation of the attribute: of its versions, the one that was used last. */
	async #openGiven(given: string): Promise<unknown> {
		const { client, contextId } = this;
		const place = this.#transcript.expectGiven();
		const page = await client.cardRead.then(() => extensionOf(client.card) && client.listConversations({ relatedTo: given, pageSize: 1 })).catch(() => undefined);
		place.contextId = page?.conversations[0]?.contextId ?? given;
		if (client !== this.client || contextId !== this.contextId || given !== this.context) return;
		return this.#load(place.contextId, () => (this.opened = this.#openGiven(given)), place);
	}

	async #load(contextId: string, again: () => unknown = () => this.open(contextId), place?: Transcript["place"]): Promise<void> {
		const focused = this.#shadow.activeElement;
		const prompts = this.#prompt.isOpen;
		this.#transcript.enter(contextId, place);
		if (this.contextId !== undefined) this.#composer.switchDraft(this.contextId, contextId);
		this.#enter(contextId);
		if (this.clientWidth < 740) this.#panels.close();
		this.#log.restart(contextId ? el("p.welcome", {}, this.#strings.loading) : this.#welcome());
		if (prompts && !contextId) this.#prompt.stay();
		if (focused && !focused.checkVisibility()) this.#log.node.focus();
		this.#drawButtons();
		if (!contextId) return this.#transcript.adopt();
		this.#loadVersions();
		try {
			if (!(await this.#transcript.load(contextId)) || contextId !== this.contextId) return;
			const first = this.#transcript.views.find(({ outgoing }) => !outgoing);
			if (first) return this.#conversations.opened(contextId, first.firstParts);
			this.#conversations.remove(contextId); // it was deleted elsewhere
			this.#log.restart(this.#fills ? unknownConversation(this.#strings, () => this.#begin()) : this.#welcome()); // embedders may choose ids of new conversations
		} catch (error) {
			this.#log.node.replaceChildren(requestProblem(this.#strings, error as Error, again));
			if (error instanceof AgentError && error.status === 401) this.#askToken(again);
		}
	}

	/** Another tab has begun a task, or changed or deleted a conversation. */
	async #announced({ contextId, taskId }: Announcement): Promise<void> {
		const { client } = this;
		const found = await this.#conversations.refresh(contextId, taskId);
		if (client !== this.client) return;
		if (found === false) return this.#forget(contextId, this.#strings.deletedConversation);
		if (!found) return;
		if (found.includes(this.contextId) && contextId !== this.contextId) this.#loadVersions();
		if (taskId && contextId === this.contextId && !this.#transcript.find(taskId)) this.#transcript.join(taskId);
	}

	/** Load the branches of the open conversation, which are also in the list. */
	async #loadVersions(): Promise<void> {
		if (extensionOf(this.client.card) && this.contextId) this.#conversations.add(...(await this.#versions.load()));
	}

	#search(): boolean {
		if (this.#panels.list.toggle.hidden) return false;
		this.#panels.list.show(true);
		this.#conversations.search.focus();
		return true;
	}

	#escape(): false {
		if (!this.#help.open && !this.#panels.leave(this.#shadow.activeElement) && this.working) this.stop();
		return false;
	}

	/** Show which version of a message this conversation has, and buttons to switch. */
	showVersions(): void {
		this.#versions.draw();
	}

	// --- sending ---

	/** The functions of the buttons and forms of tasks. */
	get actions(): Actions {
		return this.#sender;
	}

	/** Send a message in the conversation. False while a response is running, without content, or if it cannot be sent. */
	send(text: string, files: Part[] = []): Promise<boolean> {
		return this.#sender.send(text, files);
	}

	/** Request options of the next message; nothing if they are not JSON, which the inspector then shows. */
	#requestOptions(): Metadata | undefined {
		const options = this.#inspector.readOptions((reason) => (this.announce(reason), this.#panels.inspector.show(true)));
		if (options) this.#storage.set("request", this.#inspector.options.value);
		return options && { ...this.request, ...options };
	}

	/** Ask for a token. `again` repeats the user's request that needs it. */
	#askToken(again?: () => unknown): void {
		if (again && this.clientWidth < 740) this.#panels.close(); // the prompt is in the log
		this.#prompt.ask(Boolean(this.client.token), again);
	}

	/** Use the token that was entered, and repeat the request that needs it. */
	#useToken(token: string, again?: () => unknown): void {
		this.#former ??= this.#transcript.views.some(({ id }) => id) ? this.contextId : this.#conversations.newest;
		this.#storage.set("token", (this.client.token = token), "sessionStorage");
		this.#conversations.clear();
		this.#conversations.select(this.contextId ?? "");
		this.#conversations.load();
		this.#composer.focus();
		if (this.#former) this.opened = this.#recognize(this.#former, again);
		else again?.(), this.#transcript.resend();
	}

	/**
	 * Repeat the request if the caller has this conversation. If the agent responds that it does not, it is another one, for whom a new
	 * conversation begins. As long as the agent does not respond, the page remains.
	 */
	async #recognize(contextId: string, again?: () => unknown): Promise<void> {
		const { client, client: { token } } = this;
		this.#log.act();
		const found = await client.hasConversation(contextId).catch((error: Error) => error);
		if (client !== this.client || token !== client.token) return;
		if (found instanceof AgentError && found.status === 401) return this.#askToken(again);
		if (found instanceof Error && mayPass(found)) return this.#log.fail(found.message, " ", button("small", this.#strings.tryAgain, () => (this.opened = this.#recognize(contextId, again))));
		this.#former = undefined;
		if (found === true) return again?.(), this.#transcript.resend();
		const unsent = this.#transcript.views.filter(({ id, outgoing }) => !id && outgoing);
		this.#forgetCaller([...unsent.flatMap(({ lastParts }) => lastParts), ...this.#composer.parts]);
		this.#conversations.load();
		this.contextId = undefined; // no place to go back to
		await this.#load(this.context ?? "");
	}

	// --- tasks ---

	/** The running task that the page follows. */
	get working(): TaskView | undefined {
		return this.#transcript.working;
	}

	/** Cancel the running task. Its text remains. */
	async stop(): Promise<void> {
		const { working } = this;
		if (!working) return;
		if (working.outgoing) this.#transcript.withdraw(working);
		else await this.client.cancel(working.id).catch((error) => this.announce(error.message));
	}

	/** A task of this page has its id. */
	#begun({ id, contextId, summary }: TaskView, isShown: boolean): void {
		if (isShown && this.contextId !== contextId) this.#enter(contextId, true);
		if (!isShown && this.contextId === contextId) this.#transcript.join(id); // its conversation is loaded again
		this.#announce(summary);
	}

	/** List the conversation of a new task, also in other tabs. */
	#announce(task: Task): void {
		this.#conversations.use(task);
		this.#tabs.tell({ contextId: task.contextId, taskId: task.id });
	}

	#moved({ id, contextId, state, announcement }: TaskView): void {
		this.#drawButtons();
		this.announce(announcement);
		emit(this, "taskstate", { id, contextId, state });
	}

	showModel(name: string): void {
		this.#model.textContent = name;
	}

	#drawButtons(): void {
		const busy = Boolean(this.working);
		this.#composer.busy = busy;
		for (const view of this.#transcript.views) view.drawRegenerate();
		this.#log.node.setAttribute("aria-busy", `${busy}`);
	}

	announce(text: string): void {
		this.#live.textContent = text;
	}

	changed(what: Drawable): void {
		this.#frames.add(what);
	}

	#drawn(): void {
		this.#log.follow();
		this.#inspector.draw(this.#transcript.views.at(-1));
	}
}

reflectAttributes(TailraceChat.prototype, ATTRIBUTES);

customElements.get("tailrace-chat") ?? customElements.define("tailrace-chat", TailraceChat);

declare global {
	interface HTMLElementTagNameMap {
		"tailrace-chat": TailraceChat;
	}
}
