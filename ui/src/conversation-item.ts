/** One conversation in the list: its buttons, the field for another title, and the question before it is deleted. */
import { button, el, icon } from "./dom.ts";
import { fill, type Strings } from "./strings.ts";

const RENAME = "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3";
const REMOVE = "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13M10 11v6M14 11v6";

/** Of a title, and of the searched text, in characters. */
export const MAX_TITLE = 200;

/** The functions of the list that an item calls. */
interface Actions {
	open(): unknown;
	/** An empty title restores the first one. */
	rename(title: string): Promise<unknown>;
	remove(): Promise<unknown>;
}

/** The node stays when the list is drawn again, and so do the keyboard's focus, a title that is typed, and a question. */
export class ConversationItem {
	readonly node = el("li");
	readonly #open: HTMLButtonElement;
	readonly #rename: HTMLButtonElement;
	readonly #remove: HTMLButtonElement;
	readonly #words = el("span", { dir: "auto" });
	readonly #tools: HTMLElement;
	/** Whether the question before the deletion is visible. */
	#asks = false;
	#title = "";
	#hasVersions = false;
	/** Whether it is the conversation that is open. */
	current = false;

	constructor(
		private readonly strings: Strings,
		private readonly actions: Actions,
	) {
		const onkeydown = ({ key }: KeyboardEvent) => (key === "F2" ? this.#askTitle() : key === "Delete" && this.#askRemoval());
		this.#open = button("context", this.#words, () => actions.open(), { onkeydown });
		this.#rename = icon("", RENAME, () => this.#askTitle());
		this.#remove = icon("", REMOVE, () => this.#askRemoval());
		this.#tools = el("span.tools", {}, this.#rename, this.#remove);
		this.#close();
	}

	/** `hasVersions`: branches of the conversation belong to the item. */
	draw(title: string, current: boolean, hasVersions: boolean): void {
		this.#hasVersions = hasVersions;
		if (title !== this.#title) {
			this.#title = this.#words.textContent = this.#open.title = title;
			this.#rename.ariaLabel = this.#rename.title = fill(this.strings.rename, { title });
			this.#remove.ariaLabel = this.#remove.title = fill(this.strings.deleteTitle, { title });
		}
		if (current) this.#open.setAttribute("aria-current", "true");
		else this.#open.removeAttribute("aria-current");
		this.current = current;
	}

	/** Whether the Tab key stops at its buttons. */
	set isStop(stops: boolean) {
		for (const each of [this.#open, this.#rename, this.#remove]) each.tabIndex = stops ? 0 : -1;
	}

	focus(): void {
		this.node.querySelector<HTMLElement>("button, input")!.focus();
	}

	/** Show the buttons. */
	#close(): void {
		this.node.onkeydown = null;
		this.#asks = false;
		this.node.replaceChildren(this.#open, this.#tools);
	}

	/** Close the question: the focus is at another conversation. */
	leave(): void {
		if (this.#asks) this.#close();
	}

	/** Show something else; Escape, and `end`, return to the buttons. An error moves the focus only if it was here. */
	#show(focused: HTMLElement, error: boolean, ...children: (Node | string)[]): () => void {
		const focuses = !error || this.node.matches(":focus-within");
		this.#asks = false;
		const end = () => {
			this.#close();
			this.focus();
		};
		this.node.replaceChildren(...children);
		this.node.onkeydown = (event) => {
			if (event.key !== "Escape") return;
			event.stopPropagation(); // the panel stays open
			end();
		};
		if (focuses) focused.focus();
		return end;
	}

	/** Ask for a title; again with a title that was refused, and the reason. */
	#askTitle(refused?: string, reason = ""): void {
		const field = el("input", { "aria-label": this.strings.title, maxlength: MAX_TITLE }) as HTMLInputElement;
		field.value = refused ?? this.#title;
		const save = () => {
			const title = field.value.trim();
			if (refused !== undefined || title !== this.#title) this.actions.rename(title).catch(({ message }: Error) => this.#askTitle(title, message));
		};
		const end = this.#show(field, Boolean(reason), field, reason && el("span.bad", { role: "alert" }, reason));
		if (field.matches(":focus")) field.select();
		field.onkeydown = (event) => {
			if (event.key === "Escape") field.onblur = null;
			if (event.key !== "Enter" || event.isComposing) return;
			event.preventDefault(); // it would click the button that gets the focus
			field.onblur = null;
			end();
			save();
		};
		field.onblur = () => {
			this.#close();
			if (field.value.trim() !== refused) save();
		};
	}

	#askRemoval(): void {
		const { strings, actions } = this;
		const remove = () => {
			const progress = el("span.dim", { role: "status", tabindex: -1 }, strings.deleting);
			const end = this.#show(progress, false, progress);
			actions.remove().then(
				() => (progress.matches(":focus") ? end() : progress.isConnected && this.#close()),
				(error: Error) => this.#fail(error),
			);
		};
		const yes = button("small", strings.delete, remove, { class: "small bad" });
		const keep = button("small", strings.keep, () => end());
		const end = this.#show(yes, false, el("span", {}, fill(this.#hasVersions ? strings.deleteVersionsQuestion : strings.deleteQuestion, { title: this.#title })), yes, keep);
		this.#asks = true;
	}

	/** Show an error. */
	#fail({ message }: Error): void {
		const close = button("small", this.strings.close, () => end());
		const end = this.#show(close, true, el("span.bad", { role: "alert" }, message), close);
	}
}
