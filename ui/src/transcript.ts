/** The tasks of the open conversation, on the page, and the streams by which the page follows them. */
import { fields, textOf } from "./blocks.ts";
import { AgentError, type Message, type Metadata, randomId, type Task, type TaskEvent } from "./client.ts";
import { alarm, arrange, button } from "./dom.ts";
import { emit } from "./events.ts";
import type { Log } from "./log.ts";
import type { Place } from "./outgoing.ts";
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
	/** A task of this page has its id; its conversation is shown, or was left. */
	begun(view: TaskView, isShown: boolean): void;
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
	/** The conversation on the page. */
	place: Place = {};
	/** The conversation that the page looks for, to open it. */
	next?: Place;
	/** Messages of all conversations that are not accepted yet; another set for another caller. */
	unsent = new Set<TaskView>();
	/** Id of a task that this page has begun, and that is not on it yet. */
	#expected = "";

	constructor(
		private readonly owner: Owner,
		private readonly log: Log,
		private readonly reactions: Reactions,
	) {}

	/** The running task that the page follows, or the message that is under way. */
	get working(): TaskView | undefined {
		return this.views.findLast(({ runs }) => runs);
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

	/** Show a message that is to be sent; of a new task, if there is no view. */
	hold(message: Message, request: Metadata, place: Place, view = this.#make(place)): TaskView {
		view.outgoing = { message, request, place, key: randomId() };
		view.takeMessage(message);
		this.unsent.add(view);
		this.owner.changed(view);
		this.reactions.followed();
		return view;
	}

	#make(place: Place): TaskView {
		return place === this.place ? this.add() : new TaskView(this.owner);
	}

	/** Forget a message that is not sent. */
	drop(view: TaskView): void {
		this.unsent.delete(view);
		this.views = this.views.filter((each) => each !== view);
		view.node.remove();
		this.reactions.followed();
	}

	/** Show the messages of the conversation that are not accepted yet: those under way, and those that could not be sent. */
	adopt(): void {
		for (const view of this.unsent) {
			const { place, message } = view.outgoing!;
			const belongs = place === this.place || (place.contextId === this.place.contextId && (place.contextId || !view.runs));
			if (!belongs || this.views.includes(view)) continue;
			view.outgoing!.place = this.place;
			const at = this.views.findIndex(({ id }) => id && id === view.id);
			if (this.views.some((each) => each.has(message.messageId))) {
				this.unsent.delete(view); // it has arrived
				this.leave(view);
			} else if (at < 0) {
				this.views.push(view);
				this.log.append(view.node);
			} else {
				this.leave(this.views[at]!);
				this.views[at]!.node.replaceWith(view.node);
				this.views[at] = view;
			}
		}
		this.reactions.followed();
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
		this.views = [];
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
		this.adopt();
	}

	/** Report the loaded text and state of a task that this page has begun, as if its events had arrived. */
	#report(view: TaskView): void {
		this.#expected = "";
		const { id, contextId } = view;
		for (const [artifactId, text] of view.texts) emit(this.owner, "textdelta", { id, contextId, artifactId, text, append: false });
		this.reactions.moved(view);
	}

	/** Read a task's events until it is over: those of sending a message, or those after the last one on the page. */
	async follow(view: TaskView): Promise<void> {
		const { client } = this.owner;
		const { outgoing } = view;
		this.leave(view);
		this.#leaveOlder(view);
		const contextId = outgoing?.place.contextId;
		if (outgoing && contextId && contextId !== outgoing.message.contextId) {
			outgoing.message.contextId = contextId;
			outgoing.key = randomId(); // another request
		}
		const stream = outgoing ? client.sendMessage(outgoing.message, { request: outgoing.request, idempotencyKey: outgoing.key }) : client.subscribe(view.id, { after: view.number });
		view.stream = stream;
		this.reactions.followed();
		try {
			for await (const event of stream) {
				if (view.stream !== stream) return;
				this.#take(view, event);
			}
		} catch (error) {
			if (view.stream === stream) this.#refused(view, error as Error);
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

	/** Leave the conversation. Its messages that are under way remain so. */
	clear(): void {
		this.#stay.abort();
		this.#stay = new AbortController();
		this.loading = "";
		for (const view of this.views) {
			if (!view.outgoing) this.leave(view);
			view.close();
		}
		this.views = [];
	}

	/** The conversation that the page looks for; on the empty page, it is the one that is shown then. */
	expectGiven(): Place {
		return (this.next = this.place.contextId === undefined ? this.place : {});
	}

	/** Leave the conversation for another one. */
	enter(contextId: string, place = this.place.contextId === undefined ? this.place : {}): void {
		this.clear();
		place.contextId = contextId;
		this.place = place;
		this.next = undefined;
	}

	/** Forget the caller, also the messages that are under way. */
	forget(): void {
		this.clear();
		for (const view of this.unsent) this.leave(view);
		this.unsent = new Set();
		this.place = {};
		this.next = undefined;
	}

	/** Stop sending a message. */
	withdraw(view: TaskView): void {
		this.#refused(view);
	}

	/** Send the messages again that were refused for want of a token, one after another. */
	async resend(): Promise<void> {
		for (const view of this.unsent) {
			const { outgoing } = view;
			if (!outgoing?.needsToken) continue;
			outgoing.needsToken = false;
			await new Promise<void>((settled) => {
				outgoing.settled = settled;
				this.follow(view);
			});
			if (outgoing.needsToken) return;
		}
	}

	#take(view: TaskView, event: TaskEvent): void {
		const { owner, reactions } = this;
		const isShown = this.views.includes(view);
		if (isShown) reactions.received(event);
		if (event.type === "connection") {
			if (event.state === "retry") {
				view.trouble = event.error ? owner.strings.connectionLost : `cut after event ${event.after}`;
				if (event.error) view.problem.replaceChildren(alarm(event.error.message, ` ${owner.strings.tryingAgain}`));
			}
			return owner.changed(view);
		}
		if (view.trouble) view.problem.replaceChildren();
		view.trouble = "";
		const { state, id, outgoing } = view;
		view.take(event);
		if (outgoing) {
			this.unsent.delete(view);
			view.outgoing = undefined;
			outgoing.place.contextId ||= view.contextId;
			outgoing.settled?.();
		}
		owner.changed(view);
		if (id !== view.id && view.id) reactions.begun(view, isShown);
		if (!isShown) return this.leave(view);
		if (event.type === "artifact") {
			const { artifact, append = false } = event.artifact;
			const text = textOf(artifact.parts);
			if (text) emit(owner, "textdelta", { id: view.id, contextId: view.contextId, artifactId: artifact.artifactId, text, append });
		}
		if (state === view.state) return;
		this.#leaveOlder(view);
		reactions.moved(view);
	}

	/** The task cannot be followed further, or its message is not sent: show why, if there is an error, and offer another attempt. */
	#refused(view: TaskView, error?: Error): void {
		const { strings } = this.owner;
		const { outgoing } = view;
		const again = () => this.follow(view);
		this.leave(view);
		view.form.inert = false;
		view.trouble = outgoing ? strings.notSent : strings.connectionLost;
		view.draw();
		view.problem.replaceChildren(error ? requestProblem(strings, error, again) : alarm(button("small", strings.tryAgain, again)));
		this.reactions.followed();
		if (outgoing) this.adopt();
		if (error) this.#complain(view, error, again);
		outgoing?.settled?.();
	}

	#complain(view: TaskView, error: Error, again: () => unknown): void {
		if (!(error instanceof AgentError)) reportError(error); // a fault of this page
		emit(this.owner, "chaterror", { id: view.id, contextId: view.contextId, error });
		if (!(error instanceof AgentError && error.status === 401)) return;
		if (view.outgoing) view.outgoing.needsToken = true;
		this.reactions.askToken(view.outgoing ? () => {} : again); // the messages are sent again after any prompt
	}
}
