/**
 * What the tabs of a browser tell each other: ids only. A tab may be of another caller: what it says is only where to look, and
 * each tab asks the agent with its own token.
 */
export interface Announcement {
	/** A conversation that was used, renamed or deleted. */
	contextId: string;
	/** A new task of it. */
	taskId?: string;
}

export class Tabs {
	#channel?: BroadcastChannel;

	/** Whether the element is connected. */
	get joined(): boolean {
		return Boolean(this.#channel);
	}

	join(name: string, heard: (announcement: Announcement) => unknown): void {
		this.#channel = new BroadcastChannel(name);
		this.#channel.onmessage = ({ data }) => heard(data);
	}

	tell(announcement: Announcement): void {
		this.#channel?.postMessage(announcement);
	}

	leave(): void {
		this.#channel?.close();
		this.#channel = undefined;
	}
}
