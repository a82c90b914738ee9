/**
 * A client for agents of A2A 1.0 over JSON-RPC, with streams that resume by themselves.
 *
 *   const client = new AgentClient("http://127.0.0.1:8000/");
 *   for await (const event of client.send([{ text: "Hello" }])) if (event.type === "artifact") …
 *
 * It needs `fetch` and `TextDecoderStream`: browsers, Node 20, Deno, Bun. It imports nothing.
 */

/** The URI of the extension that numbers events; see docs/extension.md. */
export const EXTENSION = "urn:tailrace:ext:stream:v1";

export type TaskState =
	| "TASK_STATE_SUBMITTED"
	| "TASK_STATE_WORKING"
	| "TASK_STATE_INPUT_REQUIRED"
	| "TASK_STATE_AUTH_REQUIRED"
	| "TASK_STATE_COMPLETED"
	| "TASK_STATE_FAILED"
	| "TASK_STATE_CANCELED"
	| "TASK_STATE_REJECTED";

/** Extra data by extension URI. */
export type Metadata = Record<string, any>;

/** Exactly one of text, raw (base64), url and data is set. */
export interface Part {
	text?: string;
	raw?: string;
	url?: string;
	data?: any;
	filename?: string;
	mediaType?: string;
	metadata?: Metadata;
}

export interface Message {
	messageId: string;
	role: "ROLE_USER" | "ROLE_AGENT";
	parts: Part[];
	contextId?: string;
	taskId?: string;
	metadata?: Metadata;
}

export interface Artifact {
	artifactId: string;
	name?: string;
	parts?: Part[];
	metadata?: Metadata;
}

export interface TaskStatus {
	state: TaskState;
	message?: Message;
	timestamp?: string;
}

export interface Task {
	id: string;
	contextId: string;
	status: TaskStatus;
	history?: Message[];
	artifacts?: Artifact[];
	metadata?: Metadata;
}

export interface StatusUpdate {
	taskId: string;
	contextId: string;
	status: TaskStatus;
	metadata?: Metadata;
}

export interface ArtifactUpdate {
	taskId: string;
	contextId: string;
	artifact: Artifact;
	append?: boolean;
	lastChunk?: boolean;
}

export interface AgentExtension {
	uri: string;
	params?: Metadata;
}

export interface AgentCard {
	name?: string;
	description?: string;
	version?: string;
	skills?: { name?: string; description?: string; examples?: string[] }[];
	capabilities?: { extensions?: AgentExtension[] };
	supportedInterfaces?: { url: string; protocolBinding: string; protocolVersion: string }[];
	securitySchemes?: Record<string, any>;
}

/** A call of a tool that waits for an approval; see docs/approvals.md. */
export interface ApprovalRequest {
	call_id: string;
	name: string;
	/** The JSON object with the arguments, and its canonical form. */
	arguments: Metadata;
	canonical_arguments: string;
	/** Names the call with these arguments. */
	digest: string;
	/** The time in ISO 8601 after which the call can only be rejected. */
	expires_at: string;
	/** Set if the call ran before, and its result was lost. */
	reason?: string;
}

/** The decision about a call: to run it, not to run it, or to run it with other arguments. */
export type ApprovalDecision =
	| { digest: string; decision: "approve" }
	| { digest: string; decision: "reject"; reason?: string }
	| { digest: string; decision: "edit"; arguments: object };

/**
 * An event of a task. `number` is its number in the task's log (0 from an agent without the extension), `data` the JSON text
 * that was received.
 *
 * `connection` events are the client's own: `request` before each request, `retry` before each pause after a lost connection.
 */
export type TaskEvent =
	| { type: "task"; task: Task; number: number; data: string }
	| { type: "message"; message: Message; number: number; data: string }
	| { type: "status"; status: StatusUpdate; number: number; data: string }
	| { type: "artifact"; artifact: ArtifactUpdate; number: number; data: string }
	| { type: "connection"; state: "request"; method: string; after: number }
	| { type: "connection"; state: "retry"; error?: AgentError; after: number; milliseconds: number };

export interface Page {
	tasks: Task[];
	nextPageToken: string;
}

/** A conversation in a list. */
export interface Conversation {
	contextId: string;
	/** The title that the caller chose, or the first words of its first message; empty for a message of unnamed files. */
	title: string;
	/** The time of the caller's first message, as ISO text. */
	createTime: string;
	/** The time of the caller's newest message, as ISO text. */
	updateTime: string;
	/** The message that began the conversation, if it is a branch, and the message before which it branched off. */
	branch?: { messageId: string; from: Branch };
}

export interface ConversationPage {
	conversations: Conversation[];
	/** Left out on the last page. */
	nextPageToken?: string;
}

export interface ConversationFilter {
	/** Text of the title, in upper or lower case. */
	query?: string;
	pageSize?: number;
	pageToken?: string;
	/** A conversation: only itself, those from which it was branched, and all their branches. */
	relatedTo?: string;
}

/**
 * A refused or failed request. `status` is the HTTP status (0: none), `retryable` whether the same request may succeed later,
 * `code` the code of JSON-RPC (0: none).
 */
export class AgentError extends Error {
	constructor(
		message: string,
		readonly retryable = false,
		readonly status = 0,
		readonly code = 0,
	) {
		super(message);
		this.name = "AgentError";
	}
}

export type Token = string | (() => string | Promise<string>);

export interface ClientOptions {
	/** Bearer token or API key, sent in the header that the agent card names; a function is called for each request. */
	token?: Token;
	/** Headers of every request. */
	headers?: Record<string, string>;
	fetch?: typeof fetch;
}

/** A message of a conversation, before which another conversation branches off. */
export interface Branch {
	contextId: string;
	messageId: string;
}

export interface SendOptions {
	/** The conversation; a new one if left out. */
	contextId?: string;
	/** A task that waits for the message. */
	taskId?: string;
	/** Begin a conversation with the messages before this one; a field of the extension. */
	branch?: Branch;
	/** Request options of the extension: tools, temperature, … */
	request?: Metadata;
	signal?: AbortSignal;
	/** Repeated requests with one key run once; random if left out. */
	idempotencyKey?: string;
}

/** The code of an error for a method that the agent does not have. */
export const METHOD_NOT_FOUND = -32601;

/** Attempts without an event between them, after which a stream fails. */
const ATTEMPTS = 10;

/** Attempts to send a message whose events are not streamed. */
const SENDS = 3;

const ENDED = /COMPLETED|FAILED|CANCELED|REJECTED/;
const WAITING = /_REQUIRED$/;

/** The calls that wait for an approval, of a task or of the update of its status. */
export const approvalRequests = ({ status }: { status: TaskStatus }): ApprovalRequest[] =>
	(WAITING.test(status.state) ? (status.message?.parts ?? []) : [])
		.flatMap((part) => part.data?.approval_requests ?? [])
		.filter((request: Partial<ApprovalRequest> | null) => request?.digest);

/** The extension of tailrace in an agent card. */
export const extensionOf = (card: AgentCard): AgentExtension | undefined => card.capabilities?.extensions?.find(({ uri }) => uri === EXTENSION);

/** 128 random bits as hexadecimal digits; `crypto.randomUUID` exists in secure contexts only. */
export const randomId = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** An agent. Methods reject with `AgentError`, and with an `AbortError` after their signal. */
export class AgentClient {
	card: AgentCard = {};
	/** The last call of `readCard`. */
	cardRead: Promise<unknown> = Promise.resolve();
	token: Token;
	/** Headers of every request. */
	headers: Record<string, string>;
	/** The base URL, of which the agent card is. */
	readonly url: string;
	/** Where requests go: the base URL, or that of the card's interface if the base URL has no agent. */
	#endpoint: string;
	/** The URL of the card's interface, unless the base URL is known to have an agent. */
	#alternative = "";
	/** The URL of the card's interface, if it has another origin. */
	#foreign = "";
	readonly #fetch: typeof fetch;

	constructor(url: string, options: ClientOptions = {}) {
		this.url = this.#endpoint = url.replace(/\/?$/, "/");
		this.token = options.token ?? "";
		this.headers = options.headers ?? {};
		this.#fetch = options.fetch ?? ((input, init) => fetch(input, init));
	}

	/** Load the agent card, which also names the header of the token, and a URL for requests if the base URL has no agent. */
	readCard(): Promise<AgentCard> {
		return (this.cardRead = this.#readCard());
	}

	async #readCard(): Promise<AgentCard> {
		const response = await this.#fetch(new URL(".well-known/agent-card.json", this.url), { headers: this.headers });
		if (!response.ok) throw new AgentError(`The agent card has status ${response.status}`, response.status >= 500, response.status);
		this.card = await response.json();
		this.#readInterface();
		return this.card;
	}

	/** The card is no reason to send a token, or messages, to another origin than that of the agent. */
	#readInterface(): void {
		const named = this.card.supportedInterfaces?.find((each) => each.protocolBinding === "JSONRPC" && each.protocolVersion === "1.0");
		if (!named || !URL.canParse(named.url, this.url)) return;
		const { origin, href } = new URL(named.url, this.url);
		if (origin !== new URL(this.url).origin) this.#foreign = href;
		else if (href !== this.url) this.#alternative = href;
	}

	/** Send a message and stream its task. Closing the stream does not cancel the task. */
	send(parts: Part[], options: SendOptions = {}): TaskStream {
		return this.sendMessage(userMessage(parts, options), options);
	}

	/** As `send`, with a message of your own. */
	sendMessage(message: Message, { request, signal, idempotencyKey }: SendOptions = {}): TaskStream {
		const params = { message, ...(request && { metadata: { [EXTENSION]: request } }) };
		return new TaskStream(this, { params, signal, idempotencyKey, taskId: message.taskId });
	}

	/**
	 * Send a message, and return its task as soon as it exists. If the response is lost, or the agent cannot be reached, the message
	 * is sent up to three times, with the same idempotency key.
	 */
	async createTask(parts: Part[], options: SendOptions = {}): Promise<Task> {
		const { request, signal, idempotencyKey = randomId() } = options;
		const params = {
			message: userMessage(parts, options),
			configuration: { returnImmediately: true },
			...(request && { metadata: { [EXTENSION]: request } }),
		};
		const init = { signal, headers: { "Idempotency-Key": idempotencyKey } };
		for (let attempt = 1; ; attempt += 1) {
			try {
				const { task } = await this.call<{ task?: Task }>("SendMessage", params, init);
				if (!task) throw new AgentError("The agent replied without a task: use send().");
				return task;
			} catch (error) {
				if (!(error instanceof AgentError && error.retryable) || attempt === SENDS) throw error;
				await new Promise((resume) => setTimeout(resume, 1000 * attempt));
			}
		}
	}

	/** Decide about calls of a task; rejects if a call is not waiting, its time has ended, or the caller may not decide. */
	decide(taskId: string, decisions: ApprovalDecision[], options: Pick<SendOptions, "signal" | "idempotencyKey"> = {}): Promise<Task> {
		return this.createTask([{ data: { approval_responses: decisions } }], { ...options, taskId });
	}

	/** Stream a task: its present state and what follows, or every event after the number `after`. */
	subscribe(taskId: string, { after = 0, signal }: { after?: number; signal?: AbortSignal } = {}): TaskStream {
		return new TaskStream(this, { taskId, after, signal });
	}

	cancel(taskId: string, signal?: AbortSignal): Promise<Task> {
		return this.call("CancelTask", { id: taskId }, { signal });
	}

	getTask(taskId: string, signal?: AbortSignal): Promise<Task> {
		return this.call("GetTask", { id: taskId }, { signal });
	}

	/** One page of tasks, the one with the newest status first. */
	listTasks(filter: { contextId?: string; includeArtifacts?: boolean; pageSize?: number; pageToken?: string } = {}, signal?: AbortSignal): Promise<Page> {
		return this.call("ListTasks", filter, { signal });
	}

	/** Whether the caller has tasks in a conversation. */
	async hasConversation(contextId: string): Promise<boolean> {
		return (await this.listTasks({ contextId, pageSize: 1 })).tasks.length > 0;
	}

	/**
	 * The messages of a conversation, or its newest `historyLength` ones, oldest first; a method of the extension. With
	 * `omitTaskFiles`, files that `listTasks` returns have no content; with `omitFiles`, no file has.
	 */
	async conversation(contextId: string, options: { historyLength?: number; omitTaskFiles?: boolean; omitFiles?: boolean } = {}, signal?: AbortSignal): Promise<Message[]> {
		return (await this.call<{ messages?: Message[] }>("GetConversation", { contextId, ...options }, { signal })).messages ?? [];
	}

	/** One page of conversations, the newest first; a method of the extension. No messages are read or sent. */
	listConversations(filter: ConversationFilter = {}): Promise<ConversationPage> {
		return this.call("ListConversations", filter);
	}

	/** Set the title of a conversation; an empty title restores the default. A method of the extension. */
	renameConversation(contextId: string, title: string): Promise<Conversation> {
		return this.call("RenameConversation", { contextId, title });
	}

	/** Delete a conversation with its tasks; a method of the extension. */
	async deleteConversation(contextId: string): Promise<void> {
		await this.call("DeleteConversation", { contextId });
	}

	/** The result of a JSON-RPC method. */
	async call<Result>(method: string, params: object, init: { signal?: AbortSignal; headers?: Record<string, string> } = {}): Promise<Result> {
		return (await this.request(method, params, init)) as Result;
	}

	/** The result of a method, or the response if it is a stream. */
	async request(method: string, params: object, { signal, headers }: { signal?: AbortSignal; headers?: Record<string, string> } = {}): Promise<unknown> {
		const known = { "Content-Type": "application/json", "A2A-Version": "1.0", "A2A-Extensions": EXTENSION };
		const endpoint = this.#endpoint;
		const response = await this.#fetch(endpoint, {
			method: "POST",
			body: JSON.stringify({ jsonrpc: "2.0", id: 1, method, params }),
			signal,
			headers: { ...known, ...this.headers, ...(await this.#credentials()), ...headers },
		}).catch((error) => {
			if (signal?.aborted) throw error;
			throw new AgentError(`${endpoint} cannot be reached${this.#hint()}.`, true);
		});
		const { ok, status } = response;
		const streams = ok && response.headers.get("content-type")?.startsWith("text/event-stream");
		const answer = streams ? undefined : await response.json().catch(() => undefined);
		signal?.throwIfAborted();
		const isAgent = streams || (answer && (answer.jsonrpc || "result" in answer || answer.error?.code));
		if (ok && isAgent && endpoint === this.url) this.#alternative = "";
		if (streams) return response;
		if (ok && isAgent && !answer.error) return answer.result;
		// A page in place of an agent has the status 200 in applications with one page for all URLs, and after redirects.
		if ((ok || status === 404 || status === 405) && !isAgent && endpoint === this.url && this.#alternative) {
			this.#endpoint = this.#alternative;
			return this.request(method, params, { signal, headers });
		}
		const foreign = this.#foreign && ` Its card names ${this.#foreign}, which is not used, because it has another origin.`;
		const fault = ok ? `${endpoint} is not the URL of an agent.` : `The agent responded with status ${status}.`;
		throw new AgentError(answer?.error?.message ?? `${fault}${foreign}`, status >= 500, status, answer?.error?.code);
	}

	#hint(): string {
		const page = globalThis.location?.origin;
		return !page || new URL(this.url).origin === page ? "" : `, or TAILRACE_ALLOWED_ORIGINS of the server does not contain ${page}`;
	}

	async #credentials(): Promise<Record<string, string>> {
		const token = typeof this.token === "function" ? await this.token() : this.token;
		if (!token) return {};
		const schemes = Object.values(this.card.securitySchemes ?? {});
		const key = schemes.find((scheme) => scheme.apiKeySecurityScheme)?.apiKeySecurityScheme;
		const isJwt = token.split(".").length === 3 && schemes.some((scheme) => scheme.httpAuthSecurityScheme);
		return key && !isJwt ? { [key.name]: token } : { Authorization: `Bearer ${token}` };
	}
}

function userMessage(parts: Part[], { contextId, taskId, branch }: SendOptions): Message {
	const metadata = branch && { metadata: { [EXTENSION]: { branch } } };
	return { messageId: randomId(), role: "ROLE_USER", parts, ...(contextId && { contextId }), ...(taskId && { taskId }), ...metadata };
}

/**
 * The events of one task, in order and without repetition, until it ends or waits for its caller; one iteration only.
 *
 * After a lost connection it resumes after the last event. If a sent message may not have arrived, it is sent again with the
 * same idempotency key. Iteration throws `AgentError` if the agent refuses, or after ten attempts.
 */
export class TaskStream implements AsyncIterable<TaskEvent> {
	/** The task; empty until its first event. */
	taskId: string;
	/** The number of the last event. */
	number: number;
	state: TaskState | "" = "";
	#params?: object;
	#closed = false;
	#interrupted = false;
	#connection?: AbortController;
	#wake = () => {};
	readonly #key: string;

	constructor(
		readonly client: AgentClient,
		options: { params?: object; taskId?: string; after?: number; signal?: AbortSignal; idempotencyKey?: string },
	) {
		this.taskId = options.taskId ?? "";
		this.number = options.after ?? 0;
		this.#params = options.params;
		this.#key = options.idempotencyKey ?? randomId();
		if (options.signal?.aborted) this.close();
		options.signal?.addEventListener("abort", () => this.close(), { once: true });
	}

	/** Stop reading; the iteration ends, and the task continues. */
	close(): void {
		this.#closed = true;
		this.#connection?.abort();
		this.#wake();
	}

	/** Cut the connection. The stream resumes after the last event. */
	interrupt(): void {
		this.#interrupted = true;
		this.#connection?.abort();
	}

	get #ended(): boolean {
		return ENDED.test(this.state);
	}

	get #waits(): boolean {
		return WAITING.test(this.state);
	}

	async *[Symbol.asyncIterator](): AsyncGenerator<TaskEvent, void> {
		try {
			for (let attempt = 1; !this.#closed; attempt += 1) {
				let failure: AgentError | undefined;
				try {
					for await (const event of this.#connect()) {
						if (this.#closed) return;
						if (event.type !== "connection") {
							attempt = 0;
							if (this.taskId) this.#params = undefined; // it arrived
						}
						yield event;
						if (this.#closed) return;
					}
				} catch (error) {
					if (this.#closed) return;
					failure = error instanceof AgentError ? error : undefined;
					if (!failure && !this.#interrupted) throw error;
					if (failure && (!failure.retryable || attempt >= ATTEMPTS)) throw failure;
				}
				if (this.#params && attempt >= ATTEMPTS && !this.#interrupted) throw new AgentError("The agent responded without a task.");
				if (this.#ended || (this.#waits && !this.number)) return;
				// The stream of a sent message ends when the task waits; subscribing continues it.
				if (this.#waits && !attempt) continue;
				const milliseconds = this.#interrupted ? 1200 : Math.min(500 * 2 ** attempt, 10_000);
				yield { type: "connection", state: "retry", after: this.number, milliseconds, ...(this.#interrupted ? {} : { error: failure }) };
				if (!this.#closed) await new Promise<void>((resume) => ((this.#wake = resume), setTimeout(resume, milliseconds)));
				this.#interrupted = false;
			}
		} finally {
			this.close();
		}
	}

	async *#connect(): AsyncGenerator<TaskEvent> {
		const { signal } = (this.#connection = new AbortController());
		const { client } = this;
		let response: unknown;
		if (this.#params) {
			yield { type: "connection", state: "request", method: "SendStreamingMessage", after: 0 };
			response = await this.#request("SendStreamingMessage", this.#params, signal, { "Idempotency-Key": this.#key });
		} else {
			yield { type: "connection", state: "request", method: "SubscribeToTask", after: this.number };
			if (!this.number) {
				const task = await client.getTask(this.taskId, signal);
				yield this.#noted({ task }, 0, JSON.stringify({ result: { task } }));
				if (this.#ended) return;
			}
			const headers = this.number ? { "Last-Event-ID": `${this.number}` } : undefined;
			response = await this.#request("SubscribeToTask", { id: this.taskId }, signal, headers);
		}
		if (!(response instanceof Response)) {
			if (response) yield this.#noted(response, 0, JSON.stringify({ result: response })); // an agent that does not stream
			return;
		}
		for await (const { id, data } of serverSentEvents(response)) {
			const { result, error } = JSON.parse(data);
			if (error) throw new AgentError(error.message, true);
			const number = Number(id) || 0;
			if (number && number <= this.number && !result.task) continue;
			if (number > this.number + 1 && result.artifactUpdate?.append) throw new AgentError("Events are missing.", true);
			yield this.#noted(result, number, data);
		}
	}

	#request(method: string, params: object, signal: AbortSignal, headers?: Record<string, string>): Promise<unknown> {
		return this.client.request(method, params, { signal, headers });
	}

	#noted(result: any, number: number, data: string): TaskEvent {
		const { task, message, statusUpdate, artifactUpdate } = result;
		const { taskId, status } = statusUpdate ?? artifactUpdate ?? {};
		this.taskId = task?.id ?? taskId ?? this.taskId;
		this.state = message ? "TASK_STATE_COMPLETED" : ((task?.status ?? status)?.state ?? this.state);
		this.number = number || (task?.metadata?.[EXTENSION]?.number ?? this.number);
		if (task) return { type: "task", task, number, data };
		if (message) return { type: "message", message, number, data };
		if (statusUpdate) return { type: "status", status: statusUpdate, number, data };
		return { type: "artifact", artifact: artifactUpdate, number, data };
	}
}

/** The server-sent events of a response. */
export async function* serverSentEvents(response: Response): AsyncGenerator<{ id: string; data: string }> {
	const reader = response.body!.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array<ArrayBuffer>>).getReader();
	let unfinished: string[] = [];
	let id = "";
	let data: string[] = [];
	try {
		for (;;) {
			const { value, done } = await reader.read().catch(() => {
				throw new AgentError("The connection was lost.", true);
			});
			if (done) return;
			const lines = value.split("\n");
			const rest = lines.pop()!;
			for (const end of lines) {
				const line = (unfinished.length ? unfinished.join("") + end : end).replace(/\r$/, "");
				unfinished = [];
				const [, name, text = ""] = /^([^:]*)(?:: ?([^]*))?$/.exec(line)!;
				if (!line) {
					if (data.length) yield { id, data: data.join("\n") };
					id = "";
					data = [];
				} else if (name === "data") data.push(text);
				else if (name === "id") id = text;
			}
			if (rest) unfinished.push(rest);
		}
	} finally {
		reader.cancel().catch(() => {});
	}
}
