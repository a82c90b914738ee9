/** The prompt for a token or key. */
import { el } from "./dom.ts";
import type { Strings } from "./strings.ts";

/** Append the prompt to the log; `use` is called with what the user enters. */
export function askToken(strings: Strings, log: HTMLElement, use: (token: string) => void): void {
	const field = el("input", { type: "password", autocomplete: "off", required: true }) as HTMLInputElement;
	const onsubmit = (event: Event) => {
		event.preventDefault();
		form.remove();
		use(field.value.trim());
	};
	const form = el("form.ask", { onsubmit }, el("label", {}, `${strings.token} `, field), el("div", {}, el("button.main", { type: "submit" }, strings.continue)));
	log.append(form);
	field.focus();
}
