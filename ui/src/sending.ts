/** Sending: messages of a task or of a new one, edited messages, which begin branches, and decisions. */
import { isText } from "./blocks.ts";
import { type AgentClient, AgentError, type ApprovalDecision, type Branch, extensionOf, type Message, type Metadata, type Part, randomId, type Task } from "./client.ts";
import type { Composer } from "./composer.ts";
import { emit } from "./events.ts";
import type { Log } from "./log.ts";
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
	#regenerates = false;

	constructor(
		private readonly owner: Owner,
		private readonly transcript: Transcript,
		private readonly composer: Composer,
		private readonly log: Log,
		private readonly reactions: Reactions,
	) {}

	/** Send what the message box contains, or a message of the page. False if it was not sent. */
	async send(text: string, files: Part[]): Promise<boolean> {
		await this.owner.opened; // the message belongs to this conversation, after its others
		// During a request for a version, it is not known yet which conversation the user continues.
		if (this.transcript.working || this.#regenerates || !(text || files.length)) return false;
		const parts = [...(text ? [{ text }] : []), ...files];
		const { target } = this.composer;
		if (target && !(target instanceof TaskView)) {
			const isFirst = this.transcript.views[0]?.firstId === target.messageId;
			const again = () => this.composer.target === target && this.composer.submit();
			return this.#branch(target, parts, !isFirst, again, () => this.composer.discard()); // it belongs to the conversation that is left
		}
		const last = this.transcript.views.at(-1);
		return this.ask(parts, target ?? (last?.waits ? last : undefined));
	}

	ask(parts: Part[], view?: TaskView): boolean {
		const { owner } = this;
		const request = this.#fits(parts) && this.reactions.requestOptions();
		if (!request) return false;
		this.log.act();
		const message: Message = { messageId: randomId(), role: "ROLE_USER", parts };
		if (owner.contextId) message.contextId = owner.contextId;
		if (view) message.taskId = view.id;
		view ??= this.transcript.add();
		view.takeMessage(message);
		emit(owner, "messagesend", { contextId: owner.contextId ?? "", parts });
		view.sent = performance.now();
		view.first = undefined;
		view.form.inert = true;
		this.log.reveal(view.node);
		this.transcript.follow(view, message, request);
		return true;
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
		if (this.transcript.working || this.#regenerates) return;
		if (!extensionOf(this.owner.client.card) || !contextId) return void this.ask(lastParts);
		this.#regenerates = true;
		const again = () => this.regenerate(view);
		await this.#branch({ contextId, messageId: lastId }, lastParts, true, again, (branch) => this.composer.carry(branch)).finally(() => (this.#regenerates = false));
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
	 * Send a message as the first one of a branch; `again` repeats it with another token, and `begun` is called before the branch is
	 * opened. False if it was not sent, or if the user has left the conversation.
	 */
	async #branch(branch: Branch, parts: Part[], keepsTitle: boolean, again: () => unknown, begun: (contextId: string) => void): Promise<boolean> {
		const { owner } = this;
		const request = this.#fits(parts) && this.reactions.requestOptions();
		if (!request) return false;
		this.log.act();
		const { client } = owner;
		try {
			const task = await client.createTask(parts, { branch, request });
			if (client !== owner.client) return false;
			const stays = owner.contextId === branch.contextId;
			if (stays) begun(task.contextId);
			emit(owner, "messagesend", { contextId: task.contextId, parts });
			this.reactions.branched(task, keepsTitle ? branch.contextId : undefined);
			if (stays) await owner.open(task.contextId);
			return stays;
		} catch (error) {
			emit(owner, "chaterror", { id: "", contextId: branch.contextId, error: error as Error });
			if (client !== owner.client || owner.contextId !== branch.contextId) return false;
			if (error instanceof AgentError && error.status === 401) this.reactions.askToken(again);
			else this.log.fail(await this.#reason(error as Error, branch.contextId));
			return false;
		}
	}

	/** Why a branch did not begin, in words. */
	async #reason({ message }: Error, contextId: string): Promise<string> {
		const { client, strings } = this.owner;
		return (await client.hasConversation(contextId).catch(() => true)) ? message : strings.unknownConversation;
	}

	/** Whether a message is within the limit of the agent, if it is known; otherwise the message box shows the limit. */
	#fits(parts: Part[]): boolean {
		const { client, strings } = this.owner;
		const { maxRequestBytes = 0 } = extensionOf(client.card)?.params ?? {};
		const text = new TextEncoder().encode(JSON.stringify(parts.filter((part) => part.raw === undefined))).length;
		const raw = parts.reduce((sum, part) => sum + (part.raw?.length ?? 0), 0);
		if (!maxRequestBytes || text + raw + ENVELOPE <= maxRequestBytes) return true;
		const megabytes = (bytes: number) => (bytes / 1e6).toFixed(1);
		// Files are sent as base64, with four characters for three bytes.
		const [size, limit] = raw ? [raw * 0.75, Math.max(0, maxRequestBytes - text - ENVELOPE) * 0.75] : [text, maxRequestBytes - ENVELOPE];
		const reason = parts.every(isText) ? strings.longText : strings.largeFiles;
		const error = new Error(fill(reason, { size: megabytes(size), limit: megabytes(limit) }));
		this.composer.refuse(error.message);
		emit(this.owner, "chaterror", { id: "", contextId: this.owner.contextId ?? "", error });
		return false;
	}
}
