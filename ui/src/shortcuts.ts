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

/** The function of the element that a key calls. */
export function shortcutOf(event: KeyboardEvent): "escape" | "search" | "begin" | undefined {
	if (event.key === "Escape") return "escape";
	if (!(MAC ? event.metaKey : event.ctrlKey)) return undefined;
	const key = event.key.toLowerCase();
	return key === "k" ? "search" : key === "o" && event.shiftKey ? "begin" : undefined;
}

export function shortcutsDialog(strings: Strings): HTMLDialogElement {
	const dialog = el("dialog", { "aria-label": strings.shortcuts }) as HTMLDialogElement;
	const keys = shortcuts(strings).flatMap(([key, meaning]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, meaning)]);
	dialog.append(el("h3", {}, strings.shortcuts), el("dl", {}, ...keys), button("small", strings.close, () => dialog.close()));
	return dialog;
}
