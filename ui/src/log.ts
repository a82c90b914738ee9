/** The log of the conversation, which follows its end until the user scrolls up. */
import { alarm, el, icon } from "./dom.ts";
import type { Strings } from "./strings.ts";

const DOWN = "M12 5v14M6 13l6 6 6-6";

/** Pixels from the end of the log within which it follows new text. */
const NEAR = 60;

export class Log {
	readonly node: HTMLElement;
	/** The button that leads to the end. */
	readonly latest: HTMLElement;
	/** Why the last action failed. */
	readonly #problem = el("div");
	/** Responses also grow after they were drawn: when a module for code or math is loaded. The log shrinks when the message box grows. */
	readonly #sizes = new ResizeObserver(() => this.follow());
	/** The log follows the latest message. */
	#sticks = true;
	/** Where the log was scrolled to at the last event, in pixels. */
	#top = 0;
	/** Pixels of free space at the end, by which a message stays in its place although less follows it than before. */
	#room = 0;

	constructor(strings: Strings) {
		this.node = el("div.log", { role: "log", "aria-live": "polite", "aria-label": strings.conversation, tabindex: 0, part: "log", onscroll: () => this.#scrolled() });
		this.latest = icon(strings.latest, DOWN, () => this.scroll(), { class: "icon latest", hidden: true });
	}

	/** Begin again at the end, with this. */
	restart(content: HTMLElement): void {
		this.#sizes.disconnect();
		this.#sizes.observe(this.node);
		this.#sticks = true;
		this.#leave(0);
		this.node.replaceChildren(content);
	}

	/** Show why an action failed, until the next action. */
	fail(...reason: (Node | string)[]): void {
		this.#problem.replaceChildren(alarm(...reason));
		this.node.append(this.#problem);
		this.scroll();
	}

	/** An action begins: the failure of an earlier one is history. */
	act(): void {
		this.#problem.remove();
	}

	/** Append the node of a task. */
	append(node: HTMLElement): void {
		this.node.querySelector(".welcome")?.remove();
		this.node.append(node);
		this.#sizes.observe(node);
	}

	/** Scroll to the end, and follow it. */
	scroll(): void {
		this.#sticks = true;
		this.#leave(0);
		this.node.scrollTop = this.node.scrollHeight;
	}

	/** Scroll to the end of a task. Below it, half of the log is left for its response. */
	reveal(node: HTMLElement): void {
		if (node === this.node.lastElementChild) return this.scroll();
		const { top, height } = this.node.getBoundingClientRect();
		this.node.scrollTop += node.getBoundingClientRect().bottom - top - height / 2;
	}

	/** Pixels from the top of the log to that of a node in it. */
	place(node: Element): number {
		return node.getBoundingClientRect().top - this.node.getBoundingClientRect().top;
	}

	/** Scroll until a node is at this place. The log then follows its end only if that is visible, and not made of free space. */
	keep(node: Element, place: number): void {
		const { clientHeight } = this.node;
		const top = this.node.scrollTop + this.place(node) - place;
		this.#leave(Math.max(0, top + clientHeight - this.#height));
		this.node.scrollTop = top;
		this.#sticks = this.#height - this.node.scrollTop - clientHeight < NEAR;
	}

	/** The height of the content. */
	get #height(): number {
		return this.node.scrollHeight - this.#room;
	}

	/** Leave room at the end. */
	#leave(room: number): void {
		this.#room = Math.ceil(room);
		this.node.style.paddingBottom = room ? `calc(1rem + ${this.#room}px)` : "";
	}

	/** Scroll to the end, unless the user has left it. */
	follow(): void {
		if (this.#room) this.#leave(Math.max(0, this.node.scrollTop + this.node.clientHeight - this.#height)); // as much as is still seen
		if (this.#sticks && !this.#room) this.scroll();
	}

	/** Show avatars of the agent and the user: texts, or addresses of images. */
	showAvatars(avatars: string[]): void {
		for (const [at, name] of ["agent", "user"].entries()) {
			const avatar = avatars[at] ?? "";
			const image = /[./]/.test(avatar) ? `url(${JSON.stringify(new URL(avatar, document.baseURI).href)})` : "none";
			this.node.style.setProperty(`--${name}-avatar`, image === "none" && avatar ? JSON.stringify(avatar) : '""');
			this.node.style.setProperty(`--${name}-image`, image);
			this.node.classList.toggle(`${name}-avatar`, avatar !== "");
		}
	}

	// The content may have grown since the scrolling that this event reports: only a scroll upwards leaves the end.
	#scrolled(): void {
		const { scrollTop, scrollHeight, clientHeight } = this.node;
		if (scrollHeight - scrollTop - clientHeight < NEAR) this.#sticks = true;
		else if (scrollTop < this.#top) this.#sticks = false;
		this.#top = scrollTop;
		if (this.#room) this.follow();
		this.latest.hidden = this.#sticks;
	}
}
