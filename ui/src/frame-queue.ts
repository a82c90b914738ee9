/** Drawing: once per frame, with a pause after a frame that took long. */

/** Frames that took longer are followed by a pause of three times as long, so that input is not delayed. */
const BUSY_MILLISECONDS = 8;

export interface Drawable {
	draw(): void;
}

export class FrameQueue {
	readonly #dirty = new Set<Drawable>();
	#drawTime = 0;
	#scheduled = false;

	/** `end` is called at the end of each frame. */
	constructor(private readonly end: () => void) {}

	/** Draw this in the next frame; without it, only the end of the frame. */
	add(what?: Drawable): void {
		if (what) this.#dirty.add(what);
		if (this.#scheduled) return;
		this.#scheduled = true;
		const frame = () => requestAnimationFrame(() => this.draw());
		if (this.#drawTime > BUSY_MILLISECONDS) setTimeout(frame, 3 * this.#drawTime);
		else frame();
	}

	draw(): void {
		const began = performance.now();
		this.#scheduled = false;
		for (const each of this.#dirty) each.draw();
		this.#dirty.clear();
		this.end();
		this.#drawTime = performance.now() - began;
	}
}
