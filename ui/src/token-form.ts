/** The prompt for a token or key. */
import { el } from "./dom.ts";
import type { Strings } from "./strings.ts";

export class TokenPrompt {
	#form?: HTMLElement;

	/** `use` is called with what the user enters. */
	constructor(
		private readonly strings: Strings,
		private readonly log: HTMLElement,
		private readonly use: (token: string) => void,
	) {}

	/** Append the prompt to the log. `again` repeats the request that needs the token; without it, an earlier prompt remains. */
	ask(again?: () => unknown): void {
		if (!again && this.#form?.isConnected) return;
		this.#form?.remove();
		const field = el("input", { type: "password", autocomplete: "off", required: true }) as HTMLInputElement;
		const onsubmit = (event: Event) => {
			event.preventDefault();
			form.remove();
			this.use(field.value.trim());
			again?.();
		};
		const form = el("form.ask", { onsubmit }, el("label", {}, `${this.strings.token} `, field), el("div", {}, el("button.main", { type: "submit" }, this.strings.continue)));
		this.#form = form;
		this.log.append(form);
		field.focus();
	}
}
