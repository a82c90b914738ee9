/** One task on the page: the user's messages, the responses, its state. */
import { ApprovalCard, decidedCall, parsed, readable, type RecordedDecision } from "./approvals.ts";
import { Block, type Channel, dataOf, fields, isText, textOf, userMessage } from "./blocks.ts";
import { type AgentClient, type ApprovalDecision, type ApprovalRequest, approvalRequests, type Artifact, EXTENSION, extensionOf, type Message, type Metadata, type Part, type Task, type TaskEvent, type TaskState, type TaskStatus, type TaskStream } from "./client.ts";
import { button, copyButton, el, icon } from "./dom.ts";
import type { Outgoing } from "./outgoing.ts";
import { failureCard } from "./problems.ts";
import { fill, type Strings } from "./strings.ts";

/** The functions of the buttons and forms of a task. */
export interface Actions {
	/** Send a message: to a task that waits for it, or as a new one. */
	ask(parts: Part[], view?: TaskView): boolean;
	/** Send a decision about a call of a task; rejects if it is refused. */
	decide(view: TaskView, decision: ApprovalDecision): Promise<void>;
	/** Put a message into the message box, to be changed and sent. */
	edit(parts: Part[], messageId: string): void;
	/** Request another version of a response. */
	regenerate(view: TaskView): Promise<void>;
	/** Address the message in the message box to a task that waits, other than the latest one. */
	reply(view: TaskView): void;
	/** The form for the results of calls of a task. */
	resultForm(view: TaskView, calls: any[]): HTMLElement;
}

/** The element, as its views see it. */
export interface Host {
	changed(what: { draw(): void }): void;
	showModel(name: string): void;
	readonly actions: Actions;
	readonly client: AgentClient;
	readonly working: TaskView | undefined;
	readonly strings: Strings;
}

const REGENERATE = "M20 12a8 8 0 1 1-2.3-5.7L20 8.5M20 4v4.5h-4.5";

/** Sections of a task; messages of later turns are added to the last one. */
const MAX_TURNS = 10_000;
/** Whether a part is shown; those of approvals are shown with their calls. */
const isShown = (part: Part) => !part.data?.approval_requests && !part.data?.approval_responses && fields(part).channel !== "approval" && part.text !== "";
/** Channels with a title. */
const TITLES = ["reasoning", "refusal", "output"] as const;

export const inWords = (state: TaskState) => state.replace("TASK_STATE_", "").toLowerCase().replaceAll("_", " ");

/** A part with several calls, as parts with one. */
const eachCall = (part: Part): Part[] => (part.data?.tool_calls ? dataOf({ parts: [part] }, "tool_calls").map((call) => ({ data: { tool_calls: [call] } })) : [part]);

/** The channel of an artifact with such a part. */
const channelOf = (part: Part): string =>
	part.data?.tool_calls ? "tool_call" : part.data?.tool_results ? "tool_result" : (fields(part).channel ?? (part.data !== undefined ? "data" : isText(part) ? "text" : "file"));

const contentOf = ({ text, raw, url, data }: Part) => text ?? raw ?? url ?? JSON.stringify(data);

export class TaskView {
	readonly node: HTMLElement;
	readonly form = el("div");
	readonly problem = el("div");
	id = "";
	contextId = "";
	state = "";
	/** Of the status, as ISO text of the server's clock. */
	timestamp?: string;
	/** A disturbance of the connection, in words. */
	trouble = "";
	facts: Metadata = {};
	/** Of the last event that is on the page. */
	number = 0;
	stream?: TaskStream;
	/** A message that the agent has not accepted yet. */
	outgoing?: Outgoing;
	/** Times in milliseconds: of sending, and of the first and the last text. */
	sent?: number;
	first?: number;
	last?: number;
	readonly #turns: HTMLElement[] = [];
	readonly #blocks = new Map<string, Block>();
	readonly #calls = new Map<string, Block>();
	/** By the ids of the calls. */
	readonly #approvals = new Map<string, ApprovalCard>();
	readonly #messages = new Set<string>();
	/** Ids of messages whose decisions are on the page. */
	readonly #decided = new Set<string>();
	readonly #badge = el("span.badge");
	readonly #actions: HTMLElement;
	readonly #again: HTMLElement;
	readonly #reply: HTMLElement;
	readonly #waiting = el("p.waiting", { "aria-hidden": "true" }, el("i"), el("i"), el("i"));
	#userMessages = 0;
	/** Parts of the user's first message. */
	firstParts: Part[] = [];
	#lastParts: Part[] = [];
	#lastId = "";
	#reason = "";

	constructor(readonly chat: Host) {
		const { strings } = chat;
		this.#again = icon(strings.regenerate, REGENERATE, () => chat.actions.regenerate(this));
		this.#actions = el("span.actions", {}, copyButton(strings, () => this.answer), this.#again);
		this.#reply = button("small.reply", strings.reply, () => chat.actions.reply(this), { title: strings.replyTitle });
		this.node = el("article", { part: "turn" }, this.form, this.problem, this.#waiting, el("footer", {}, this.#badge, this.#reply, this.#actions));
	}

	get over(): boolean {
		return ["completed", "failed", "canceled", "rejected"].includes(this.state);
	}

	get waits(): boolean {
		return this.state.endsWith("required");
	}

	/** Whether a message is under way, or its response. */
	get runs(): boolean {
		if (this.outgoing) return Boolean(this.stream || !this.trouble);
		return Boolean(this.stream) && !this.over && !this.waits;
	}

	/** Whether a message is on the page. */
	has(messageId: string): boolean {
		return this.#messages.has(messageId);
	}

	/** The task with its last message, without the content of files. */
	get summary(): Task {
		const parts = this.#lastParts.map(({ text, filename }) => ({ text, filename }));
		return { id: this.id, contextId: this.contextId, history: [{ messageId: "", role: "ROLE_USER", parts }], status: { state: "TASK_STATE_WORKING", timestamp: this.timestamp } };
	}

	/** The state in words, for screen readers. */
	get announcement(): string {
		const { working, waiting, approvalAnnounced, state } = this.chat.strings;
		const unapproved = [...this.#approvals.values()].filter(({ isOpen }) => isOpen).map(({ request }) => request.name);
		const asked = unapproved.length ? fill(approvalAnnounced, { names: unapproved.join(", ") }) : waiting;
		const words: Record<string, string> = { working, "input required": asked };
		return words[this.state] ?? fill(state, { state: this.state });
	}

	/** End the timers. */
	close(): void {
		for (const card of this.#approvals.values()) card.stop();
	}

	/** The source of the response's text. */
	get answer(): string {
		const texts = [...this.#blocks.values()].filter((block) => block.channel === "text");
		return texts.map((block) => block.text).join("\n\n");
	}

	/** The texts of the artifacts, with their ids. */
	get texts(): [string, string][] {
		return [...this.#blocks].filter(([, { text }]) => text).map(([id, { text }]) => [id, text]);
	}

	/** Parts of the user's last message. */
	get lastParts(): Part[] {
		return this.#lastParts;
	}

	/** Id of the first message on the page. */
	get firstId(): string | undefined {
		return this.#messages.values().next().value;
	}

	/** Id of the user's last message. */
	get lastId(): string {
		return this.#lastId;
	}

	/** The section of a turn. Its number comes from the agent, which may send anything. */
	#turn(given: unknown): HTMLElement {
		const number = Number.isInteger(given) ? Math.min(Math.max(given as number, 1), MAX_TURNS) : 1;
		while (this.#turns.length < number) {
			const turn = el("section");
			this.#turns.push(turn);
			this.form.before(turn);
		}
		return this.#turns[number - 1]!;
	}

	take(event: TaskEvent): void {
		if (event.type !== "connection" && event.number) this.number = event.number;
		if (event.type === "task") this.takeTask(event.task, true);
		const { taskId, contextId } = event.type === "status" ? event.status : event.type === "artifact" ? event.artifact : {};
		this.id ||= taskId ?? "";
		this.contextId ||= contextId ?? "";
		if (event.type === "artifact") this.#takeArtifact(event.artifact.artifact, event.artifact.append, event.artifact.lastChunk, true);
		if (event.type === "status") {
			const { received, ...more } = fields(event.status);
			if (received) this.takeMessage(received);
			this.#takeStatus(event.status.status, more, true);
		}
		if (event.type === "message") {
			this.takeMessage(event.message);
			this.end();
		}
	}

	/** All messages are on the page, of a turn without a task: it is over. */
	end(): void {
		this.state = "completed";
		for (const block of this.#blocks.values()) block.end(false);
		this.#drawApprovals([]);
		for (const block of this.#calls.values()) block.endCall();
		this.draw();
	}

	takeTask(task: Task, live = false): void {
		const { number, ...more } = fields(task);
		this.id = task.id;
		this.contextId = task.contextId;
		this.number = number ?? this.number;
		// The history of a task that is over contains the agent's message, whose parts are those of the artifacts.
		const shown = new Set(task.artifacts?.flatMap(({ parts = [] }) => parts.map(contentOf)));
		for (const message of task.history ?? []) {
			const parts = message.role === "ROLE_USER" ? message.parts : message.parts?.filter((part) => !shown.has(contentOf(part)));
			this.takeMessage({ ...message, parts });
		}
		for (const artifact of task.artifacts ?? []) this.#takeArtifact(artifact, false, false, live);
		this.#takeStatus(task.status, more, live); // ends the artifacts of a task that is over; others may still grow
	}

	takeMessage(message: Message): void {
		this.#takeDecisions(message);
		if (this.#messages.has(message.messageId)) return;
		this.#messages.add(message.messageId);
		this.contextId ||= message.contextId ?? "";
		const ours = message.role === "ROLE_USER";
		if (!ours && !this.id) return this.#takeResponse(message);
		for (const result of dataOf(message, "tool_results")) this.#call(result).answer(result);
		for (const request of approvalRequests({ status: { state: "TASK_STATE_INPUT_REQUIRED", message } })) this.#approve(request);
		if (ours && fields(message).by !== "agent") this.#userMessages += 1;
		const turn = this.#turn(this.#userMessages || 1);
		const parts = (message.parts ?? []).filter((part) => isShown(part) && !part.data?.tool_results && !part.data?.tool_calls);
		if (!parts.length) return;
		if (ours) {
			this.#lastParts = parts;
			if (!this.firstParts.length) this.firstParts = parts;
			this.#lastId = message.messageId;
			turn.append(userMessage(this.chat.strings, parts, () => this.chat.actions.edit(parts, message.messageId), message.messageId));
		} else if (this.state === "failed") this.#reason = textOf(parts);
		else {
			const block = new Block(this.chat.strings, "message");
			block.replace(parts);
			block.end(false);
			turn.append(block.node);
		}
	}

	/** Show a message of the agent like the artifacts of a task, which it has none of: a copy in a branch, or of another agent. */
	#takeResponse({ messageId, parts }: Message): void {
		const runs: { channel: string; parts: Part[] }[] = [];
		for (const part of (parts ?? []).filter(isShown).flatMap(eachCall)) {
			const channel = channelOf(part);
			const last = runs.at(-1);
			if (last?.channel === channel && isText(part)) last.parts.push(part);
			else runs.push({ channel, parts: [part] });
		}
		for (const [at, { channel, parts }] of runs.entries()) {
			const [call] = dataOf({ parts }, "tool_calls");
			const metadata = { [EXTENSION]: { channel, callId: call?.call_id, turn: this.#userMessages || 1 } };
			this.#takeArtifact({ artifactId: `${messageId}/${at}`, name: call?.name, parts: parts.every(isText) ? [{ text: textOf(parts) }] : parts, metadata });
		}
	}

	#takeArtifact(artifact: Artifact, append = false, last = false, live = false): void {
		const { artifactId: id, parts = [] } = artifact;
		const { channel = "text", callId, choice, turn } = fields(artifact) as { channel?: Channel; callId?: string; choice?: number; turn?: unknown };
		for (const result of dataOf(artifact, "tool_results")) this.#call(result).answer(result);
		if (channel === "tool_result") return;
		const [call] = dataOf(artifact, "tool_calls");
		let block = this.#blocks.get(id);
		if (!block) {
			for (const other of this.#blocks.values()) other.fold(live);
			const { strings } = this.chat;
			const titled = TITLES.find((name) => name === channel);
			const title = choice ? fill(strings.choice, { number: choice + 1 }) : titled && strings[titled];
			block = channel === "tool_call" ? this.#call({ call_id: callId, name: artifact.name }) : new Block(strings, channel, title);
			this.#turn(turn ?? 1).append(block.node); // the message with a call's result may be earlier on the page than the call
			this.#blocks.set(id, block);
			this.#waiting.hidden = true;
		}
		if (call) this.#calls.set(call.call_id, block);
		if (append) block.add(parts);
		else if (extensionOf(this.chat.client.card)) block.replace(parts);
		// Other agents may keep each part that they have appended. It continues the text, as it did when it arrived.
		else block.replace(parts, parts.map(({ text = "" }) => text).join(""));
		if (live && textOf(parts)) {
			this.last = performance.now();
			this.first ??= this.last;
		}
		if (last) block.end(live);
		this.chat.changed(block);
	}

	/** The call of an id; made if there is none. */
	#call({ call_id: id, name }: { call_id?: string; name?: string }): Block {
		const known = id && this.#calls.get(id);
		if (known) return known;
		const block = new Block(this.chat.strings, "tool_call", name || "tool");
		if (id) this.#calls.set(id, block);
		this.#turn(this.#userMessages || 1).append(block.node);
		return block;
	}

	/** Show the card of a call that waits for an approval. */
	#approve(request: ApprovalRequest): void {
		const known = this.#approvals.get(request.call_id);
		if (known?.isOpen && known.request.digest === request.digest) return;
		known?.stop();
		const card = new ApprovalCard(this.chat.strings, request, (decision) => this.chat.actions.decide(this, decision));
		this.#approvals.set(request.call_id, card);
		this.#call(request).approval(card.node);
	}

	/** Close the cards of the calls that a message decides about; a message of another kind leaves all calls out. */
	#takeDecisions(message: Message): void {
		if (!fields(message).approvals || this.#decided.has(message.messageId)) return;
		this.#decided.add(message.messageId);
		const { decisions, pending } = fields(message).approvals as { decisions?: RecordedDecision[]; pending?: ApprovalRequest[] };
		if (!this.id) for (const request of pending ?? []) this.#approve(request);
		for (const decision of decisions ?? []) {
			const card = this.#approvals.get(decision.callId);
			if (card) card.close(decision);
			else this.#takeDecision(decision);
		}
		const continues = pending && !decisions?.length && message.parts.some((part) => !part.data?.tool_results);
		if (continues) for (const card of this.#approvals.values()) card.close();
	}

	/** Show a decision about a call of a message, which has no request. */
	#takeDecision(decision: RecordedDecision): void {
		const block = this.#call({ call_id: decision.callId });
		block.approval(decidedCall(this.chat.strings, decision));
		block.complete({ arguments_text: readable(decision.arguments ?? parsed(block.text)) });
	}

	/** Close the cards of calls that cannot be decided any more, and show the arguments of all. */
	#drawApprovals(requests: ApprovalRequest[]): void {
		for (const request of requests) this.#approve(request);
		for (const [id, card] of this.#approvals) {
			const waits = requests.some(({ call_id }) => call_id === id);
			if (!waits && (this.over || this.waits)) card.close();
			card.inert = !waits;
			this.#call(card.request).complete({ arguments_text: card.arguments });
		}
	}

	#takeStatus(status: TaskStatus, more: Metadata, live: boolean): void {
		const { state, message } = status;
		this.state = inWords(state);
		this.timestamp = status.timestamp;
		this.facts = { ...this.facts, ...more };
		const calls = this.waits ? dataOf(message, "tool_calls") : [];
		for (const call of calls) this.#call(call).complete(call);
		if (this.over || this.waits) {
			if (message) this.takeMessage(message);
			for (const block of this.#blocks.values()) block.end(live);
		}
		this.#drawApprovals(approvalRequests({ status }));
		this.form.inert = false;
		this.form.replaceChildren(calls.length ? this.chat.actions.resultForm(this, calls) : "");
		if (this.facts.response?.model) this.chat.showModel(this.facts.response.model);
		const failed = this.state === "failed" || this.state === "rejected";
		if (failed) this.problem.replaceChildren(failureCard(this.chat.strings, this.#reason || (message ? textOf(message.parts) : ""), this.facts, () => this.chat.actions.regenerate(this)));
		this.draw();
	}

	draw(): void {
		const shown = this.trouble || (["completed", "working", "submitted", "failed"].includes(this.state) ? "" : this.state);
		this.#badge.textContent = shown;
		this.node.dataset.state = this.trouble ? "trouble" : this.state;
		this.node.dataset.event = `${this.number}`;
		this.#reply.hidden = !this.waits;
		this.#waiting.hidden = !this.runs || this.#blocks.size > 0;
		// A failed response without text has its own button to try again, and nothing to copy.
		this.drawRegenerate();
		this.#actions.hidden = !this.over || (this.state === "failed" && !this.answer) || !this.#lastParts.some((part) => isText(part) || part.raw);
	}

	/** Show whether the response can be regenerated: not while another one runs. */
	drawRegenerate(): void {
		const { client, strings, working } = this.chat;
		this.#again.ariaDisabled = `${Boolean(working)}`;
		this.#again.title = working ? strings.regenerateLater : extensionOf(client.card) ? strings.regenerateTitle : strings.regenerateAgain;
	}

	/** Figures for the inspector. */
	get figures(): [string, string][] {
		const { usage, finishReason, response, error } = this.facts;
		const seconds = ((this.last ?? 0) - (this.first ?? 0)) / 1000;
		const { strings } = this.chat;
		const rows: [string, string][] = [[strings.figureState, this.trouble || this.state]];
		if (response?.model) rows.push([strings.figureModel, response.model]);
		if (usage) rows.push([strings.figureTokens, fill(strings.figureTokensValue, { input: usage.inputTokens ?? "?", output: usage.outputTokens ?? "?" })]);
		if (usage?.outputTokens && seconds > 0.1) rows.push([strings.figureSpeed, fill(strings.figureSpeedValue, { speed: (usage.outputTokens / seconds).toFixed(1) })]);
		if (this.sent && this.first) rows.push([strings.figureFirstText, fill(strings.figureFirstTextValue, { seconds: ((this.first - this.sent) / 1000).toFixed(2) })]);
		if (finishReason) rows.push([strings.figureFinishReason, finishReason.replaceAll("_", " ")]);
		if (error?.type) rows.push([strings.figureError, error.type.replaceAll("_", " ")]);
		if (this.number) rows.push([strings.figureLastEvent, `${this.number}`]);
		return rows;
	}
}
