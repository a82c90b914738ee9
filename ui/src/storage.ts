/** Values that the browser keeps. */
type Area = "localStorage" | "sessionStorage";

/** Values for one agent. Without a storage, everything works until the page is closed. */
export class BrowserStorage {
	/** `url` returns the URL of the agent. */
	constructor(private readonly url: () => string) {}

	/** The name of a value, and with an empty one of the channel between tabs. */
	name(what: string): string {
		return `tailrace:${this.url()}:${what}`;
	}

	get(name: string, area: Area = "localStorage"): string {
		try {
			return window[area].getItem(this.name(name)) ?? "";
		} catch {
			return ""; // a frame or a browser without storage
		}
	}

	set(name: string, value: string, area: Area = "localStorage"): void {
		try {
			window[area].setItem(this.name(name), value);
		} catch {
			// As above.
		}
	}
}
