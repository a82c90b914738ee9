/** The versions of messages: an edited message begins a branch, a conversation of its own. */
import type { AgentClient, Branch, Conversation } from "./client.ts";
import { el, icon } from "./dom.ts";
import type { Log } from "./log.ts";
import { fill, type Strings } from "./strings.ts";

const BEFORE = "M15 5l-7 7 7 7";
const AFTER = "M9 5l7 7-7 7";

/** Frames within which the layout of a conversation settles. */
const MAX_FRAMES = 10;

/** The element, as the versions see it. */
interface Owner {
	readonly client: AgentClient;
	readonly strings: Strings;
	readonly contextId: string | undefined;
	open(contextId: string): Promise<unknown>;
	announce(text: string): void;
}

interface Version extends Branch {
	/** The version that was edited. */
	from: Branch;
	time: string;
}

export class Versions {
	/** The open conversation, those that branch off from it, and those from which it branched off. */
	#family: Conversation[] = [];

	constructor(
		private readonly owner: Owner,
		private readonly log: Log,
	) {}

	/** Load the branches of the open conversation; returns these conversations. An agent without branches has none. */
	async load(): Promise<Conversation[]> {
		const { client, contextId } = this.owner;
		const family: Conversation[] = [];
		const isOpen = () => client === this.owner.client && contextId === this.owner.contextId;
		let pageToken: string | undefined;
		do {
			const page = await client.listConversations({ relatedTo: contextId, pageSize: 100, pageToken }).catch(() => undefined);
			family.push(...(page?.conversations ?? []));
			pageToken = page?.nextPageToken;
		} while (pageToken && isOpen());
		if (!isOpen()) return [];
		this.#family = family;
		this.draw();
		return family;
	}

	/** Forget all conversations. */
	clear(): void {
		this.#family = [];
	}

	/** Forget a conversation. */
	remove(contextId: string): void {
		this.#family = this.#family.filter((each) => each.contextId !== contextId);
		this.draw();
	}

	/** The versions of a message: the first one, then the others in the order of their creation. */
	#of(messageId: string): Branch[] {
		const branches = new Map<string, Version>();
		for (const { contextId, branch, createTime } of this.#family) if (branch) branches.set(branch.messageId, { ...branch, contextId, time: createTime });
		const path = (id: string): string[] => {
			const found = [id];
			for (let above = branches.get(id); above && !found.includes(above.from.messageId); above = branches.get(found[0]!)) found.unshift(above.from.messageId);
			return found;
		};
		const [root] = path(messageId);
		const found = [...branches.values()].filter((each) => path(each.messageId)[0] === root);
		const depth = (version: Version) => path(version.messageId).length;
		found.sort((one, other) => one.time.localeCompare(other.time) || depth(one) - depth(other));
		const first = found[0]?.from ?? { contextId: "", messageId };
		return [first, ...found].filter(({ contextId }) => this.#family.some((each) => each.contextId === contextId));
	}

	/** Show which version of a message the log has, and buttons to switch. */
	draw(): void {
		const { strings } = this.owner;
		for (const node of this.log.node.querySelectorAll<HTMLElement>("[data-message]")) {
			const id = node.dataset.message!;
			const versions = this.#of(id);
			const at = versions.findIndex(({ messageId }) => messageId === id);
			const row = node.querySelector<HTMLElement>(".versions")!;
			const shown = at >= 0 && versions.length > 1 ? `${at + 1}/${versions.length} ${versions.map(({ contextId }) => contextId)}` : "";
			if (shown === (row.dataset.shown ?? "")) continue; // a button may have the focus
			row.dataset.shown = shown;
			const go = (label: string, drawing: string, to?: Branch) => icon(label, drawing, ({ currentTarget }) => this.#switch(currentTarget as Element, to!), { disabled: !to });
			const position = el("span", {}, `${at + 1}/${versions.length}`);
			const focused = this.#focused(row);
			row.replaceChildren(...(shown ? [go(strings.previousVersion, BEFORE, versions[at - 1]), position, go(strings.nextVersion, AFTER, versions[at + 1])] : []));
			this.#focus(row, focused);
		}
	}

	/** Open the conversation with another version. The message and the focus stay where they are. */
	async #switch(button: Element, { contextId, messageId }: Branch): Promise<void> {
		const { log, owner } = this;
		const row = button.parentElement!;
		const label = button.ariaLabel!;
		const place = log.place(row);
		await owner.open(contextId);
		const found = [...log.node.querySelectorAll<HTMLElement>("[data-message]")].find((node) => node.dataset.message === messageId)?.querySelector<HTMLElement>(".versions");
		if (!found?.firstChild || owner.contextId !== contextId) return;
		log.keep(found, place);
		this.#focus(found, label);
		const [number, count] = found.textContent!.split("/");
		owner.announce(fill(owner.strings.version, { number, count }));
		// Turns above are laid out when they come close to the window, and are then higher or lower than estimated.
		for (let frames = 0; frames < MAX_FRAMES && found.isConnected; frames += 1) {
			await new Promise(requestAnimationFrame);
			if (Math.abs(log.place(found) - place) > 1) log.keep(found, place);
		}
	}

	/** The name of the button with the focus. */
	#focused(row: HTMLElement): string {
		return row.querySelector(":focus")?.ariaLabel ?? "";
	}

	/** Focus the button of this name, or the other one, if the message has no further version. */
	#focus(row: HTMLElement, label: string): void {
		const buttons = [...row.querySelectorAll<HTMLElement>("button:enabled")];
		if (label) (buttons.find((each) => each.ariaLabel === label) ?? buttons[0])?.focus({ preventScroll: true });
	}
}
