/** The form for results of tools that the user executes. */
import { el } from "./dom.ts";
import { fill, type Strings } from "./strings.ts";

export function resultForm(strings: Strings, calls: any[], send: (results: object[]) => void): HTMLElement {
	const fields = calls.map((call) => {
		const output = el("textarea", { rows: 2, required: true }) as HTMLTextAreaElement;
		const failed = el("input", { type: "checkbox" }) as HTMLInputElement;
		const node = el("div", {}, el("label", {}, fill(strings.toolResult, call), output), el("label", {}, failed, ` ${strings.toolResultFailed}`));
		return { call, output, failed, node };
	});
	const onsubmit = (event: Event) => {
		event.preventDefault();
		send(fields.map(({ call: { call_id, name }, output, failed }) => ({ call_id, name, output: read(output.value), is_error: failed.checked })));
	};
	const submit = el("div", {}, el("button.main", { type: "submit" }, strings.sendResults));
	return el("form", { onsubmit }, el("div.ask", { role: "group", "aria-label": strings.toolResults }, ...fields.map(({ node }) => node), submit));
}

/** JSON for an object or an array, else the text. */
function read(text: string): unknown {
	try {
		return /^\s*[[{]/.test(text) ? JSON.parse(text) : text;
	} catch {
		return text;
	}
}
