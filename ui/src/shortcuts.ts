/** Keyboard shortcuts: those of the whole element, and the dialog that lists all. */
import { button, el } from "./dom.ts";
import type { Strings } from "./strings.ts";

const MAC = /Mac|iP(hone|ad)/.test(navigator.platform);
const COMMAND = MAC ? "⌘" : "Ctrl";

const shortcuts = (strings: Strings): [string, string][] => [
	["Enter", strings.send],
	["Shift + Enter", strings.shortcutNewLine],
	[strings.shortcutEmpty, strings.shortcutEdit],
	["Escape", strings.shortcutEscape],
	["F2, Delete", strings.shortcutConversation],
	[`${COMMAND} + K`, strings.searchConversations],
	[`${COMMAND} + Shift + O`, strings.newConversation],
];

type Name = "escape" | "search" | "begin";

function nameOf(event: KeyboardEvent): Name | undefined {
	if (event.key === "Escape") return "escape";
	if (!(MAC ? event.metaKey : event.ctrlKey)) return undefined;
	const key = event.key.toLowerCase();
	return key === "k" ? "search" : key === "o" && event.shiftKey ? "begin" : undefined;
}

/** Calls functions of the element for its keys. After a function that returns false, the key has its effect in the browser, too. */
export class Shortcuts {
	#target?: EventTarget;

	constructor(private readonly functions: Record<Name, () => unknown>) {}

	/** Begin with the keys that this receives: the window, or the element. */
	listen(target: EventTarget): void {
		this.#target = target;
		target.addEventListener("keydown", this.#pressed);
	}

	leave(): void {
		this.#target?.removeEventListener("keydown", this.#pressed);
	}

	readonly #pressed = (event: Event): void => {
		const name = nameOf(event as KeyboardEvent);
		if (name && this.functions[name]() !== false) event.preventDefault();
	};
}

export function shortcutsDialog(strings: Strings): HTMLDialogElement {
	const dialog = el("dialog", { "aria-label": strings.shortcuts }) as HTMLDialogElement;
	const keys = shortcuts(strings).flatMap(([key, meaning]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, meaning)]);
	dialog.append(el("h3", {}, strings.shortcuts), el("dl", {}, ...keys), button("small", strings.close, () => dialog.close()));
	return dialog;
}
