/** The tasks of the open conversation, on the page, and the streams by which the page follows them. */
import { fields, textOf } from "./blocks.ts";
import { AgentError, type Message, type Metadata, type Task, type TaskEvent } from "./client.ts";
import { alarm, arrange } from "./dom.ts";
import { emit } from "./events.ts";
import type { Log } from "./log.ts";
import { requestProblem } from "./problems.ts";
import { type Host, TaskView } from "./task-view.ts";

/** Waiting tasks that the page follows. Each has a connection, and with HTTP/1.1 a browser opens six to a server, for all tabs. */
const MAX_WAITING = 2;
/** Messages within which another tab's message is looked for. */
const NEWEST = 20;

/** The element, as the transcript sees it. */
interface Owner extends Host, EventTarget {
	readonly contextId: string | undefined;
	showVersions(): void;
}

/** The functions of the element that the transcript calls. */
interface Reactions {
	/** An event or a request is new. */
	received(event: TaskEvent): void;
	/** A task of this page has its id. */
	begun(view: TaskView): void;
	/** A task has another state. */
	moved(view: TaskView): void;
	/** A task is followed, or no longer. */
	followed(): void;
	/** The agent requires a token. */
	askToken(again: () => unknown): void;
}

/** Whether a message that belongs to no task on the page is the first one of a turn; others are results of tools, decisions, or of the agent. */
const beginsTurn = (message: Message): boolean =>
	message.role === "ROLE_USER" && !fields(message).approvals && !message.parts?.some((part) => part.data?.tool_results || part.data?.approval_responses);

export class Transcript {
	views: TaskView[] = [];
	/** Id of the conversation that is being loaded; empty if none is. */
	loading = "";
	#loaded: Promise<boolean> = Promise.resolve(true);
	/** Aborted when the conversation is left, or opened again. */
	#stay = new AbortController();
	/** Id of a task that this page has begun, and that is not on it yet. */
	#expected = "";

	constructor(
		private readonly owner: Owner,
		private readonly log: Log,
		private readonly reactions: Reactions,
	) {}

	/** The running task that the page follows. */
	get working(): TaskView | undefined {
		return this.views.findLast((view) => view.stream && !view.over && !view.waits);
	}

	find(id?: string): TaskView | undefined {
		return id ? this.views.find((view) => view.id === id) : undefined;
	}

	add(): TaskView {
		const view = new TaskView(this.owner);
		this.log.append(view.node);
		this.views.push(view);
		return view;
	}

	/** A task of this page has begun: it is reported when its conversation is opened. */
	expect(id: string): void {
		this.#expected = id;
	}

	/** Show and follow a task that another tab has begun, unless the conversation has it already when it is loaded. */
	async join(id: string): Promise<void> {
		const { signal } = this.#stay;
		await this.#loaded.catch(() => {});
		if (signal.aborted || this.find(id)) return;
		const view = this.add();
		view.id = id;
		this.follow(view);
		this.#order();
	}

	/** Put the newest tasks into the order of the conversation: two tabs may send messages at the same time. */
	async #order(): Promise<void> {
		const { client, contextId = "" } = this.owner;
		const messages = await client.conversation(contextId, { historyLength: NEWEST, omitFiles: true }).catch(() => []);
		if (this.owner.contextId !== contextId || this.owner.client !== client) return;
		const positions = new Map<TaskView, number>();
		for (const view of this.views) {
			const at = messages.findIndex(({ messageId, taskId }) => (view.firstId ? messageId === view.firstId : taskId === view.id));
			if (at >= 0) positions.set(view, at);
		}
		// The others keep their places, but a message that has not arrived yet will be the last one.
		const ordered = [...positions.keys()].sort((one, other) => positions.get(one)! - positions.get(other)!);
		const isUnderWay = (view: TaskView) => !positions.has(view) && Boolean(view.stream && !view.id);
		const known = this.views.filter((view) => !isUnderWay(view)).map((view) => (positions.has(view) ? ordered.shift()! : view));
		this.views = [...known, ...this.views.filter(isUnderWay)];
		arrange(
			this.log.node,
			this.views.map(({ node }) => node),
		);
		this.log.follow();
	}

	/** Show a conversation, and follow its running tasks; false if it was left before. */
	load(contextId: string): Promise<boolean> {
		const { signal } = this.#stay;
		const read = async () => {
			try {
				return await this.#read(contextId, signal);
			} catch (error) {
				if (signal.aborted) return false;
				throw error;
			} finally {
				if (!signal.aborted) this.loading = "";
			}
		};
		this.loading = contextId;
		return (this.#loaded = read());
	}

	async #read(contextId: string, signal: AbortSignal): Promise<boolean> {
		const { client } = this.owner;
		const conversation = client.conversation(contextId, { omitTaskFiles: true }, signal).catch(() => []); // a method of the extension
		const tasks = await this.#tasks(contextId, signal);
		let messages = await conversation;
		const isIncomplete = ({ taskId, parts }: Message) => taskId && !tasks.has(taskId) && parts?.some(({ raw }) => raw === "");
		// Some tasks are not in the list, for example those of other APIs. Their files are only in the conversation.
		if (messages.some(isIncomplete)) messages = await client.conversation(contextId, {}, signal);
		if (signal.aborted) return false;
		this.log.node.replaceChildren();
		this.#show(messages, tasks);
		return true;
	}

	async #tasks(contextId: string, signal: AbortSignal): Promise<Map<string, Task>> {
		const found = new Map<string, Task>();
		let pageToken = "";
		do {
			const page = await this.owner.client.listTasks({ contextId, includeArtifacts: true, pageSize: 100, pageToken }, signal);
			for (const task of page.tasks) found.set(task.id, task);
			pageToken = page.nextPageToken;
		} while (pageToken && found.size < 1000);
		return found;
	}

	/** Show tasks in the order of the conversation, between messages without a task. */
	#show(messages: Message[], tasks: Map<string, Task>): void {
		let view: TaskView | undefined;
		const begin = (task?: Task): TaskView => {
			view = this.add();
			if (task) view.takeTask(task);
			if (task) tasks.delete(task.id);
			return view;
		};
		for (const message of messages) {
			if (this.find(message.taskId)) continue;
			const task = tasks.get(message.taskId ?? "");
			if (task || !view || view.id || beginsTurn(message)) view = begin(task);
			if (!task) view.takeMessage(message);
		}
		for (const task of [...tasks.values()].reverse()) begin(task);
		for (const each of this.views) if (!each.id) each.end();
		this.owner.showVersions();
		this.log.scroll();
		const begun = this.find(this.#expected);
		if (begun) this.#report(begun);
		for (const each of this.views) if (each.id && !each.over) this.follow(each);
	}

	/** Report the loaded text and state of a task that this page has begun, as if its events had arrived. */
	#report(view: TaskView): void {
		this.#expected = "";
		const { id, contextId } = view;
		for (const [artifactId, text] of view.texts) emit(this.owner, "textdelta", { id, contextId, artifactId, text, append: false });
		this.reactions.moved(view);
	}

	/** Read a task's events until it is over: those of sending a message, or those after the last one on the page. */
	async follow(view: TaskView, message?: Message, request?: Metadata): Promise<void> {
		const { client } = this.owner;
		this.leave(view);
		this.#leaveOlder(view);
		const stream = message ? client.sendMessage(message, { request }) : client.subscribe(view.id, { after: view.number });
		view.stream = stream;
		this.reactions.followed();
		try {
			for await (const event of stream) {
				if (view.stream !== stream) return;
				this.#take(view, event);
			}
		} catch (error) {
			if (view.stream === stream) this.#refused(view, error as Error, message, request);
		}
		if (view.stream === stream) this.leave(view);
	}

	/** Leave waiting tasks beyond the bound: the oldest ones, but not this one. */
	#leaveOlder(view: TaskView): void {
		if (!view.waits) return;
		const others = this.views.filter((each) => each !== view && each.stream && each.waits);
		for (const each of others.slice(0, 1 - MAX_WAITING)) this.leave(each);
	}

	leave(view: TaskView): void {
		const { stream } = view;
		view.stream = undefined;
		stream?.close();
		this.reactions.followed();
	}

	leaveAll(): void {
		this.#stay.abort();
		this.#stay = new AbortController();
		this.loading = "";
		for (const view of this.views) {
			this.leave(view);
			view.close();
		}
	}

	/** Leave the conversation. */
	clear(): void {
		this.leaveAll();
		this.views = [];
	}

	#take(view: TaskView, event: TaskEvent): void {
		const { owner, reactions } = this;
		reactions.received(event);
		if (event.type === "connection") {
			if (event.state === "retry") {
				view.trouble = event.error ? owner.strings.connectionLost : `cut after event ${event.after}`;
				if (event.error) view.problem.replaceChildren(alarm(event.error.message, ` ${owner.strings.tryingAgain}`));
			}
			return owner.changed(view);
		}
		if (view.trouble) view.problem.replaceChildren();
		view.trouble = "";
		const { state, id } = view;
		view.take(event);
		owner.changed(view);
		if (id !== view.id && view.id) reactions.begun(view);
		if (event.type === "artifact") {
			const { artifact, append = false } = event.artifact;
			const text = textOf(artifact.parts);
			if (text) emit(owner, "textdelta", { id: view.id, contextId: view.contextId, artifactId: artifact.artifactId, text, append });
		}
		if (state === view.state) return;
		this.#leaveOlder(view);
		reactions.moved(view);
	}

	/** The task cannot be followed further: show why, and offer another attempt. */
	#refused(view: TaskView, error: Error, message?: Message, request?: Metadata): void {
		const { strings } = this.owner;
		if (!(error instanceof AgentError)) reportError(error); // a fault of this page
		const again = () => this.follow(view, view.id ? undefined : message, request);
		this.leave(view);
		view.form.inert = false;
		view.trouble = view.id ? strings.connectionLost : strings.notSent;
		emit(this.owner, "chaterror", { id: view.id, contextId: view.contextId, error });
		view.draw();
		view.problem.replaceChildren(requestProblem(strings, error, again));
		if (error instanceof AgentError && error.status === 401) this.reactions.askToken(again);
	}
}
