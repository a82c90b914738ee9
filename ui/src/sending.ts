/** Sending: messages of a task or of a new one, edited messages, which begin branches, and decisions. */
import { isText } from "./blocks.ts";
import { type AgentClient, AgentError, type ApprovalDecision, type Branch, extensionOf, type Message, type Metadata, type Part, randomId, type Task } from "./client.ts";
import type { Composer } from "./composer.ts";
import { emit } from "./events.ts";
import type { Log } from "./log.ts";
import type { Draft, Place } from "./outgoing.ts";
import { fill, type Strings } from "./strings.ts";
import { type Actions, TaskView } from "./task-view.ts";
import { resultForm } from "./tool-results.ts";
import type { Transcript } from "./transcript.ts";

/** The rest of a request, in bytes. */
const ENVELOPE = 10_000;

/** The element, as the sender sees it. */
interface Owner extends EventTarget {
	readonly client: AgentClient;
	readonly contextId: string | undefined;
	readonly strings: Strings;
	/** Resolved when the conversation is on the page. */
	readonly opened: Promise<unknown>;
	open(contextId: string): Promise<unknown>;
}

/** The functions of the element that the sender calls. */
interface Reactions {
	/** Request options of the next message; nothing if they are wrong. */
	requestOptions(): Metadata | undefined;
	/** A branch has begun. It gets the title of the conversation `titled`, if there is one. */
	branched(task: Task, titled?: string): void;
	/** The agent requires a token. */
	askToken(again: () => unknown): void;
}

export class Sender implements Actions {
	/** Conversations with a request for a version: it is not known yet which conversation the user continues. */
	readonly #branching = new Set<Place>();

	constructor(
		private readonly owner: Owner,
		private readonly transcript: Transcript,
		private readonly composer: Composer,
		private readonly log: Log,
		private readonly reactions: Reactions,
	) {}

	/** Send a message of the page, in the conversation that is open, or being opened. False if it is not sent. */
	async send(text: string, files: Part[]): Promise<boolean> {
		const { transcript } = this;
		const { next = transcript.place } = transcript;
		if (next === transcript.place && this.#isBusy) return false;
		return this.#deliver({ text, files }, next).catch((error) => this.#refuse(error));
	}

	/** Send what the message box contains, in this conversation, whatever the page shows meanwhile. It returns if it is not sent. */
	async submit(): Promise<boolean> {
		const { composer, transcript } = this;
		const { place, unsent } = transcript;
		if (this.#isBusy || !composer.parts.length) return false;
		const draft = composer.take();
		draft.text = draft.text.trim();
		let reason: Error | undefined;
		const sent = await this.#deliver(draft, place).catch((error) => ((reason = error), false));
		if (sent || unsent !== transcript.unsent) return sent;
		const isOpen = transcript.place === place || (place.contextId ?? "") === this.owner.contextId;
		composer.putBack(draft, place.contextId ?? "", isOpen);
		return reason ? this.#refuse(reason, isOpen) : false;
	}

	get #isBusy(): boolean {
		return Boolean(this.transcript.working || this.#branching.has(this.transcript.place));
	}

	/** Show why a message is not sent. */
	#refuse(error: Error, isOpen = true): false {
		if (isOpen) this.composer.refuse(error.message);
		emit(this.owner, "chaterror", { id: "", contextId: this.owner.contextId ?? "", error });
		return false;
	}

	/** Send a message in its conversation. False if it is not sent; rejects with words for the user. */
	async #deliver(draft: Draft, place: Place): Promise<boolean> {
		const { owner, transcript } = this;
		const { unsent } = transcript;
		const { text, files, target } = draft;
		const firstId = transcript.views[0]?.firstId;
		await this.composer.read(draft);
		const parts = [...(text ? [{ text }] : []), ...files];
		if (!parts.length || unsent !== transcript.unsent) return false;
		if (target && !(target instanceof TaskView)) {
			const again = () => this.composer.target === target && this.submit();
			return this.#branch(target, place, parts, firstId !== target.messageId, again);
		}
		const request = this.#options(parts);
		if (!request) return false;
		let view = transcript.hold({ messageId: randomId(), role: "ROLE_USER", parts }, request, place, target);
		const { message } = view.outgoing!;
		message.taskId = target?.id;
		const isHeld = () => transcript.unsent.has(view) && view.runs;
		await owner.opened; // the message is shown after the others, and may belong to a task that waits
		if (!isHeld()) return unsent === transcript.unsent; // stopped, or of another caller
		if (transcript.place === place && !target) {
			const others = transcript.views.slice(0, transcript.views.indexOf(view));
			const last = others.at(-1);
			if (others.some(({ runs }) => runs)) return transcript.drop(view), false;
			if (last?.waits) {
				transcript.drop(view);
				message.taskId = last.id;
				view = transcript.hold(message, request, place, last);
			}
		} else if (place.contextId && !target) {
			const newest = await owner.client.listTasks({ contextId: place.contextId, pageSize: 1 }).catch(() => undefined);
			if (!isHeld()) return unsent === transcript.unsent;
			message.taskId = newest?.tasks.find(({ status }) => status.state.endsWith("_REQUIRED"))?.id;
		}
		this.#start(view);
		return true;
	}

	/** Send a message of a button or form at once. */
	ask(parts: Part[], view?: TaskView): boolean {
		try {
			const request = this.#options(parts);
			if (!request) return false;
			const message: Message = { messageId: randomId(), role: "ROLE_USER", parts, ...(view && { taskId: view.id }) };
			this.#start(this.transcript.hold(message, request, this.transcript.place, view));
			return true;
		} catch (error) {
			return this.#refuse(error as Error);
		}
	}

	#start(view: TaskView): void {
		const { log, owner, transcript } = this;
		const { message, place } = view.outgoing!;
		log.act();
		emit(owner, "messagesend", { contextId: place.contextId ?? "", parts: message.parts });
		view.sent = performance.now();
		view.first = undefined;
		view.form.inert = true;
		if (transcript.views.includes(view)) {
			if (!view.node.isConnected) log.append(view.node); // what could not be loaded has replaced it
			log.reveal(view.node);
		}
		transcript.follow(view);
	}

	edit(parts: Part[], messageId: string): void {
		const { client, contextId } = this.owner;
		this.composer.edit(parts, extensionOf(client.card) && contextId ? { contextId, messageId } : undefined);
	}

	/** Edit the last message; false if there is none. */
	editLast(): boolean {
		const view = this.transcript.views.findLast(({ lastParts }) => lastParts.length);
		if (view) this.edit(view.lastParts, view.lastId);
		return Boolean(view);
	}

	reply(view: TaskView): void {
		this.composer.reply(view);
	}

	resultForm(view: TaskView, calls: any[]): HTMLElement {
		return resultForm(this.owner.strings, calls, (results) => {
			this.ask([{ data: { tool_results: results } }], view);
			this.composer.input.focus();
		});
	}

	/** Without branches, the message is sent again. */
	async regenerate(view: TaskView): Promise<void> {
		const { contextId, lastId, lastParts } = view;
		if (this.#isBusy) return;
		if (!extensionOf(this.owner.client.card) || !contextId) return void this.ask(lastParts);
		const again = () => this.regenerate(view);
		await this.#branch({ contextId, messageId: lastId }, this.transcript.place, lastParts, true, again).catch((error) => this.#refuse(error));
	}

	async decide(view: TaskView, decision: ApprovalDecision): Promise<void> {
		const { owner, transcript } = this;
		try {
			await owner.client.decide(view.id, [decision]);
		} catch (error) {
			emit(owner, "chaterror", { id: view.id, contextId: view.contextId, error: error as Error });
			if (error instanceof AgentError && error.status === 401) this.reactions.askToken(() => owner.open(view.contextId));
			throw error;
		} finally {
			if (!view.stream && !view.over && transcript.views.includes(view)) transcript.follow(view);
		}
	}

	/**
	 * Send a message as the first one of a branch, which takes over the message box if the user has not left the conversation;
	 * `again` repeats it with another token. False if it was not sent; rejects with words for the user.
	 */
	async #branch(branch: Branch, place: Place, parts: Part[], keepsTitle: boolean, again: () => unknown): Promise<boolean> {
		const { owner } = this;
		const request = this.#options(parts);
		if (!request) return false;
		this.log.act();
		const { client } = owner;
		this.#branching.add(place);
		try {
			const task = await client.createTask(parts, { branch, request });
			if (client !== owner.client) return false;
			const stays = owner.contextId === branch.contextId;
			if (stays) this.composer.carry(task.contextId);
			emit(owner, "messagesend", { contextId: task.contextId, parts });
			this.reactions.branched(task, keepsTitle ? branch.contextId : undefined);
			if (stays) await owner.open(task.contextId);
			return true;
		} catch (error) {
			emit(owner, "chaterror", { id: "", contextId: branch.contextId, error: error as Error });
			if (client !== owner.client || owner.contextId !== branch.contextId) return false;
			if (error instanceof AgentError && error.status === 401) this.reactions.askToken(again);
			else this.log.fail(await this.#reason(error as Error, branch.contextId));
			return false;
		} finally {
			this.#branching.delete(place);
		}
	}

	/** Why a branch did not begin, in words. */
	async #reason({ message }: Error, contextId: string): Promise<string> {
		const { client, strings } = this.owner;
		return (await client.hasConversation(contextId).catch(() => true)) ? message : strings.unknownConversation;
	}

	/** Request options of a message, nothing if they are wrong; throws if the message is not within the limit of the agent. */
	#options(parts: Part[]): Metadata | undefined {
		const { client, strings } = this.owner;
		const { maxRequestBytes = 0 } = extensionOf(client.card)?.params ?? {};
		const text = new TextEncoder().encode(JSON.stringify(parts.filter((part) => part.raw === undefined))).length;
		const raw = parts.reduce((sum, part) => sum + (part.raw?.length ?? 0), 0);
		if (!maxRequestBytes || text + raw + ENVELOPE <= maxRequestBytes) return this.reactions.requestOptions();
		const megabytes = (bytes: number) => (bytes / 1e6).toFixed(1);
		// Files are sent as base64, with four characters for three bytes.
		const [size, limit] = raw ? [raw * 0.75, Math.max(0, maxRequestBytes - text - ENVELOPE) * 0.75] : [text, maxRequestBytes - ENVELOPE];
		const reason = parts.every(isText) ? strings.longText : strings.largeFiles;
		throw new Error(fill(reason, { size: megabytes(size), limit: megabytes(limit) }));
	}
}
