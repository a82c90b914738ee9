/** The panel with figures of the last task, its events and requests, and the options of requests. */
import { textOf } from "./blocks.ts";
import type { Metadata, TaskEvent } from "./client.ts";
import { el, source } from "./dom.ts";
import { fill, type Strings } from "./strings.ts";
import { inWords, type TaskView } from "./task-view.ts";

const MAX_ROWS = 1000;

export class Inspector {
	/** Request options as JSON. */
	readonly options = el("textarea", { rows: 4, placeholder: '{"temperature": 0, "tools": []}', spellcheck: "false" }) as HTMLTextAreaElement;
	readonly node: HTMLElement;
	readonly #figures = el("dl");
	readonly #events = el("div");
	#rows: TaskEvent[] = [];

	constructor(private readonly strings: Strings) {
		const options = el("label", {}, strings.requestOptions, this.options);
		this.node = el("aside", { "aria-label": strings.inspector, hidden: true }, options, el("h3", {}, strings.lastResponse), this.#figures, el("h3", {}, strings.events), this.#events);
	}

	/** Request options; if they are not JSON, `refuse` is called with the reason and shows this panel, and their field is focused. */
	readOptions(refuse: (reason: string) => void): Metadata | undefined {
		try {
			const options = JSON.parse(this.options.value || "{}");
			this.options.removeAttribute("aria-invalid");
			return options;
		} catch (error) {
			this.options.setAttribute("aria-invalid", "true");
			refuse(fill(this.strings.notJson, { error: (error as Error).message }));
			this.options.focus();
			return undefined;
		}
	}

	add(event: TaskEvent): void {
		this.#rows.push(event);
		if (this.#rows.length > 2 * MAX_ROWS) this.#rows.splice(0, MAX_ROWS);
	}

	clear(): void {
		this.#rows = [];
		this.#figures.replaceChildren();
		this.#events.replaceChildren();
	}

	draw(view?: TaskView): void {
		if (this.node.hidden) return;
		const { scrollHeight, scrollTop, clientHeight } = this.node;
		this.#figures.replaceChildren(...(view?.figures ?? []).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
		this.#events.append(...this.#rows.splice(0).slice(-MAX_ROWS).map(row));
		while (this.#events.childElementCount > MAX_ROWS) this.#events.firstChild!.remove();
		if (scrollHeight - scrollTop - clientHeight < 60) this.node.scrollTop = this.node.scrollHeight;
	}
}

function row(event: TaskEvent): HTMLElement {
	if (event.type === "connection") {
		const { after, state } = event;
		if (state === "retry") return el("p.dim", {}, `→ ${event.error ? "connection lost" : `cut after event ${after}`}`);
		return el("p.dim", {}, `→ ${event.method}${after ? ` after event ${after}` : ""}`);
	}
	const whole = source("");
	const ontoggle = () => (whole.textContent ||= JSON.stringify(JSON.parse(event.data), null, 2));
	return el("details", { ontoggle }, el("summary", {}, el("b", {}, event.number ? `${event.number}` : "–"), ` ${summary(event)}`), whole);
}

function summary(event: Exclude<TaskEvent, { type: "connection" }>): string {
	if (event.type === "task") return `task ${inWords(event.task.status.state)}`;
	if (event.type === "status") return `statusUpdate ${inWords(event.status.status.state)}`;
	if (event.type === "message") return `message ${JSON.stringify(textOf(event.message.parts)).slice(0, 200)}`;
	const { artifact, append } = event.artifact;
	const content = JSON.stringify(textOf(artifact.parts) || artifact.parts?.[0]?.data || "").slice(0, 200);
	return `artifactUpdate ${artifact.artifactId} ${append ? "+" : "="} ${content}`;
}
