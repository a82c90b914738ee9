/** The card of a call that waits for an approval: its expiry, buttons, and what was decided. */
import type { ApprovalDecision, ApprovalRequest } from "./client.ts";
import { alarm, button, el } from "./dom.ts";
import { fill, type Strings } from "./strings.ts";

/** A decision, as the server has recorded it. */
export interface RecordedDecision {
	callId: string;
	decision: ApprovalDecision["decision"];
	reason?: string;
	arguments?: object | null;
}

/** Milliseconds that a timer can wait. */
const MAX_WAIT = 2 ** 31 - 1;

/** JSON with indentation. Characters that are invisible or change the order of others are escaped, so that it reads as what it is. */
export function readable(json: unknown): string {
	const escape = (each: string) => [...Array(each.length).keys()].map((at) => `\\u${each.charCodeAt(at).toString(16).padStart(4, "0")}`).join("");
	return JSON.stringify(json, null, 2).replace(/[\p{Cf}\p{Zl}\p{Zp}]/gu, escape);
}

/** What was decided about a call, in words. */
function outcome(strings: Strings, decided?: RecordedDecision): HTMLElement {
	const { decision, reason } = decided ?? {};
	if (decision === "approve") return el("p.good", {}, strings.approved);
	if (decision === "edit") return el("p.good", {}, strings.approvedEdited);
	if (decision === "reject") return el("p.bad", {}, reason ? fill(strings.rejectedReason, { reason }) : strings.rejected);
	return el("p.dim", {}, strings.notDecided);
}

/** A decision about a call whose request is not known. */
export const decidedCall = (strings: Strings, decided: RecordedDecision) => el("div", { part: "approval" }, outcome(strings, decided));

export class ApprovalCard {
	readonly node = el("div", { part: "approval" });
	/** The arguments of the call; after an edit, those that replaced them. */
	arguments: string;
	isOpen = true;
	readonly #form: HTMLElement;
	readonly #expiry = el("p.dim");
	readonly #approve: HTMLButtonElement;
	readonly #edit: HTMLButtonElement;
	readonly #edited: HTMLTextAreaElement;
	readonly #editor: HTMLElement;
	readonly #reason: HTMLInputElement;
	readonly #problem = el("div");
	#timer?: ReturnType<typeof setTimeout>;

	constructor(
		private readonly strings: Strings,
		readonly request: ApprovalRequest,
		private readonly decide: (decision: ApprovalDecision) => Promise<unknown>,
	) {
		const { name, reason } = request;
		this.arguments = readable(parsed(`${request.canonical_arguments}`));
		this.#approve = button("main", strings.approve, () => this.#approved());
		this.#edit = button("edit", strings.editArguments, () => this.#toggle());
		this.#edited = el("textarea", { rows: 4, spellcheck: "false" }) as HTMLTextAreaElement;
		this.#editor = el("label", { hidden: true }, strings.editedArguments, this.#edited);
		this.#reason = el("input", { autocomplete: "off" }) as HTMLInputElement;
		// Enter in the field of the reason submits the form: it rejects the call.
		const onsubmit = (event: Event) => {
			event.preventDefault();
			this.#send({ digest: request.digest, decision: "reject", ...(this.#reason.value.trim() && { reason: this.#reason.value.trim() }) });
		};
		// A group: a form with a name is a landmark, whose name must be unique, and two tasks may wait for the same call.
		const fields = el(
			"div.ask",
			{ role: "group", "aria-label": fill(strings.approvalOf, { name }) },
			el("b", {}, strings.approvalRequired),
			reason ? el("p", {}, reason) : "",
			this.#expiry,
			this.#editor,
			el("label", {}, strings.rejectionReason, this.#reason),
			el("div.row", {}, this.#approve, el("button", { type: "submit" }, strings.reject), this.#edit),
			this.#problem,
		);
		this.#form = el("form", { onsubmit }, fields);
		this.node.append(this.#form);
		this.#expire();
	}

	/** Show what was decided; without a decision, that there was none. */
	close(decided?: RecordedDecision): void {
		if (!this.isOpen && !decided) return;
		this.stop();
		this.isOpen = false;
		if (decided?.arguments) this.arguments = readable(decided.arguments);
		const focused = this.#form.matches(":focus-within");
		this.node.replaceChildren(outcome(this.strings, decided));
		if (focused) this.node.closest("details")?.querySelector("summary")?.focus({ preventScroll: true });
	}

	/** While the task works, nothing can be decided. */
	set inert(inert: boolean) {
		this.#form.inert = inert;
	}

	/** End the timer of the expiry. */
	stop(): void {
		clearTimeout(this.#timer);
	}

	#expire(): void {
		const expires = new Date(this.request.expires_at);
		const left = expires.getTime() - Date.now();
		const time = expires.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
		this.#expiry.textContent = fill(left > 0 ? this.strings.approvalExpires : this.strings.approvalExpired, { time });
		if (left > 0) this.#timer = setTimeout(() => this.#expire(), Math.min(left, MAX_WAIT));
		else this.#approve.disabled = this.#edit.disabled = this.#edited.disabled = true;
	}

	/** Begin or discard an edit of the arguments. */
	#toggle(): void {
		const { strings } = this;
		const edits = (this.#editor.hidden = !this.#editor.hidden) === false;
		this.#approve.textContent = edits ? strings.approveEdited : strings.approve;
		this.#edit.textContent = edits ? strings.discardEdit : strings.editArguments;
		this.#problem.replaceChildren();
		if (!edits) return;
		this.#edited.value = this.arguments;
		this.#edited.focus();
	}

	#approved(): void {
		const { digest } = this.request;
		if (this.#editor.hidden || this.#edited.value === this.arguments) {
			this.#send({ digest, decision: "approve" });
			return;
		}
		const edited = parsed(this.#edited.value);
		const isObject = typeof edited === "object" && edited !== null && !Array.isArray(edited);
		this.#edited.setAttribute("aria-invalid", `${!isObject}`);
		if (isObject) {
			this.#send({ digest, decision: "edit", arguments: edited });
			return;
		}
		this.#problem.replaceChildren(alarm(this.strings.notObject));
		this.#edited.focus();
	}

	/** Send a decision. The card is closed when the task has recorded it. */
	async #send(decision: ApprovalDecision): Promise<void> {
		if (this.#form.ariaBusy === "true") return;
		this.#form.ariaBusy = "true";
		this.#problem.replaceChildren();
		try {
			await this.decide(decision);
		} catch (error) {
			this.#problem.replaceChildren(alarm((error as Error).message));
		}
		this.#form.ariaBusy = "false";
	}
}

/** The value of a JSON text, or the text if it is none. */
export function parsed(text: string): unknown {
	try {
		return JSON.parse(text);
	} catch {
		return text;
	}
}
