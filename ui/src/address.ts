/** The id of the open conversation: in the URL of a page, and for an embedded chat in the storage of the browser tab. */
import type { BrowserStorage } from "./storage.ts";

export class Address {
	#inUrl = false;
	#changed = () => {};

	constructor(private readonly storage: BrowserStorage) {}

	/** Begin with the id in the URL, or in the storage. */
	join(inUrl: boolean): void {
		this.#inUrl = inUrl;
	}

	/** Empty if there is none, as for a new conversation. */
	get contextId(): string {
		if (!this.#inUrl) return this.storage.get("context", "sessionStorage");
		try {
			return decodeURIComponent(location.hash.slice(1));
		} catch {
			return ""; // cut in the middle of a character
		}
	}

	/** Keep an id; `replaces`: the former one is no place to go back to. */
	write(contextId: string, replaces: boolean): void {
		if (!this.#inUrl) this.storage.set("context", contextId, "sessionStorage");
		else if (this.contextId !== contextId) history[replaces ? "replaceState" : "pushState"](null, "", `#${encodeURIComponent(contextId)}`);
	}

	/** Call a function when the user changes the URL. */
	follow(changed: (contextId: string) => unknown): void {
		this.leave();
		if (!this.#inUrl) return;
		this.#changed = () => changed(this.contextId);
		addEventListener("hashchange", this.#changed);
	}

	leave(): void {
		removeEventListener("hashchange", this.#changed);
	}
}
