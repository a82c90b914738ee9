/** The prompt for a token or key. */
import { alarm, el } from "./dom.ts";
import type { Strings } from "./strings.ts";

export class TokenPrompt {
	readonly #field = el("input", { type: "password", autocomplete: "off", required: true }) as HTMLInputElement;
	readonly #refusal = el("div");
	readonly #form: HTMLElement;
	#again?: () => unknown;
	/** Whether the user has entered a token since the last prompt. */
	#entered = false;

	/** `use` is called with what the user enters, and the request to repeat. */
	constructor(
		private readonly strings: Strings,
		private readonly log: HTMLElement,
		use: (token: string, again?: () => unknown) => void,
	) {
		const onsubmit = (event: Event) => {
			event.preventDefault();
			this.#form.remove();
			this.#entered = true;
			const token = this.#field.value.trim();
			this.#field.value = "";
			use(token, this.#again);
		};
		const buttons = el("div", {}, el("button.main", { type: "submit" }, strings.continue));
		this.#form = el("form.ask", { onsubmit }, this.#refusal, el("label", {}, `${strings.token} `, this.#field), buttons);
	}

	get isOpen(): boolean {
		return this.#form.isConnected;
	}

	/**
	 * Append the prompt to the log. `refused`: the agent has refused a token. `again` repeats the user's request that needs the
	 * token; without it, an earlier prompt remains.
	 */
	ask(refused: boolean, again?: () => unknown): void {
		if (refused) this.#refusal.replaceChildren(alarm(this.strings.tokenRefused));
		if (!again && this.isOpen) return;
		this.#show(again);
		const field = focusedField();
		// Nothing that is typed goes into the prompt. An empty field gives its focus to the prompt only if the user expects one, or if
		// the page has set the focus itself.
		const isExpected = again || this.#entered || !navigator.userActivation?.hasBeenActive;
		if (!field || (isExpected && !contentOf(field))) this.#field.focus();
		this.#entered = false;
	}

	/** Append the prompt to the log of another conversation. */
	stay(): void {
		this.#show();
	}

	#show(again?: () => unknown): void {
		this.#again = again;
		this.log.append(this.#form);
	}
}

const contentOf = (field: Element) => (field as HTMLInputElement).value ?? field.textContent;

/** The field in which the user is, also one of the page that embeds the element. */
function focusedField(): Element | undefined {
	let node = document.activeElement;
	while (node?.shadowRoot?.activeElement) node = node.shadowRoot.activeElement;
	return node?.matches("input, textarea, [contenteditable]") ? node : undefined;
}
