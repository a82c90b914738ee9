/** The panels beside the log, and their buttons. */
import { icon } from "./dom.ts";
import type { Strings } from "./strings.ts";

const LIST = "M4 6h16M4 12h16M4 18h10";
const INSPECT = "M8 6l-5 6 5 6M16 6l5 6-5 6M13 5l-2 14";

/** A panel and the button that shows and hides it. */
class Panel {
	readonly toggle: HTMLButtonElement;

	/** `flipped` is called after the panel was shown or hidden. */
	constructor(
		readonly node: HTMLElement,
		label: string,
		drawing: string,
		private readonly flipped: () => void,
	) {
		this.toggle = icon(label, drawing, () => this.#flip(), { "aria-expanded": "false" });
	}

	#flip(): void {
		this.node.hidden = !this.node.hidden;
		this.toggle.setAttribute("aria-expanded", `${!this.node.hidden}`);
		this.flipped();
	}

	show(shown: boolean): void {
		if (shown === this.node.hidden) this.#flip();
	}
}

export class Panels {
	readonly list: Panel;
	readonly inspector: Panel;

	constructor(strings: Strings, list: HTMLElement, inspector: HTMLElement, flipped: { list(): void; inspector(): void }) {
		this.list = new Panel(list, strings.conversations, LIST, flipped.list);
		this.inspector = new Panel(inspector, strings.inspector, INSPECT, flipped.inspector);
	}

	close(): void {
		this.list.show(false);
		this.inspector.show(false);
	}

	/** Hide the buttons of the panels with these names, and the panels. */
	hide(names: string[]): void {
		for (const [name, panel] of [["conversations", this.list], ["inspector", this.inspector]] as const) {
			panel.toggle.hidden = names.includes(name);
			if (panel.toggle.hidden) panel.show(false);
		}
	}

	/** Close the panel with the focused element, and move the focus to its button. False if it is in no panel. */
	leave(focused: Element | null): boolean {
		const panel = [this.inspector, this.list].find(({ node }) => node.contains(focused));
		panel?.show(false);
		panel?.toggle.focus();
		return Boolean(panel);
	}
}
