/** Artifacts on the page: text of a response or of the reasoning, a call of a tool, files, data. */
import { EXTENSION, type Message, type Metadata, type Part } from "./client.ts";
import { copyButton, el, icon, link, source } from "./dom.ts";
import { Markdown } from "./markdown.ts";
import type { Strings } from "./strings.ts";

const EDIT = "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3";

export const fields = (object?: { metadata?: Metadata }): Metadata => object?.metadata?.[EXTENSION] ?? {};
export const pretty = (value: unknown) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));
export const isText = (part: Part) => part.text !== undefined;
export const dataOf = (holder: Pick<Message, "parts"> | { parts?: Part[] } | undefined, name: string): any[] =>
	(holder?.parts ?? []).flatMap((part) => part.data?.[name] ?? []);

/** The texts of parts, with a blank line between; those with metadata may be parts of one text. */
export const textOf = (parts: Part[] = []) =>
	parts
		.filter((part) => part.text)
		.reduce((text, part, at, texts) => `${text}${at && !part.metadata && !texts[at - 1]!.metadata ? "\n\n" : ""}${part.text}`, "");

/** A file or data, as an element. A file never gets an address of this page's origin. */
export function partNode(strings: Strings, part: Part): HTMLElement {
	if (part.data !== undefined) return source(pretty(part.data));
	const name = part.filename || strings.file;
	if (part.raw === undefined) return el("p", {}, link(part.url ?? "", part.filename || part.url || "") ?? part.url ?? "");
	const [kind] = /^(image|audio|video)(?=\/[\w.+-]+$)/.exec(part.mediaType ?? "") ?? [];
	const src = `data:${part.mediaType};base64,${part.raw}`;
	if (kind === "image") return el("img", { src, alt: part.filename || strings.image });
	if (kind) return el(kind, { src, controls: true, "aria-label": name });
	return el("a", { href: `data:application/octet-stream;base64,${part.raw}`, download: name }, name);
}

export type Channel = "text" | "reasoning" | "refusal" | "tool_call" | "message" | (string & {});

export class Block {
	readonly node: HTMLElement;
	readonly #note = el("span.dim");
	readonly #approval = el("div");
	readonly #others = el("div");
	readonly #body: HTMLElement;
	readonly #markdown?: Markdown;
	readonly #began = performance.now();
	#pieces: string[] = [];
	#drawn = 0;
	#folded = false;
	#atProvider = false;

	constructor(
		private readonly strings: Strings,
		readonly channel: Channel,
		name = "",
	) {
		const calls = channel === "tool_call";
		const folds = calls || channel === "reasoning";
		this.#body = calls ? source("", { "aria-label": strings.arguments }) : el("div.md");
		if (!calls) this.#markdown = new Markdown(this.#body, strings);
		const label = el(folds ? "summary" : "h3", {}, el("b", {}, name), " ", this.#note);
		const part = calls ? "tool-call" : channel;
		this.node = el(`${folds ? "details" : "div"}.block.${channel}`, { open: folds, part }, folds || name ? label : "", this.#body, this.#approval, this.#others);
	}

	get text(): string {
		return this.#pieces.join("");
	}

	add(parts: Part[]): void {
		for (const part of parts) {
			if (part.text) this.#pieces.push(part.text);
			else if (dataOf({ parts: [part] }, "tool_calls").length) this.complete(part.data.tool_calls[0]);
			else if (!isText(part)) this.#others.append(partNode(this.strings, part));
		}
	}

	/** Show all of it: the same text changes nothing, a longer one is added to. */
	replace(parts: Part[], text = textOf(parts)): void {
		const known = this.text;
		const grows = known && text.startsWith(known);
		if (!grows) this.#clear();
		if (this.channel !== "tool_call") this.#others.replaceChildren();
		this.add([{ text: grows ? text.slice(known.length) : text }, ...parts.filter((part) => !isText(part))]);
	}

	#clear(): void {
		if (this.#markdown) this.#markdown.clear();
		else this.#body.replaceChildren();
		this.#pieces = [];
		this.#drawn = 0;
	}

	/** Show the complete call. */
	complete(call: any): void {
		const text = call.arguments_text ?? pretty(call.arguments ?? {});
		if (text !== this.text) {
			this.#clear();
			this.#pieces.push(text);
		}
		this.#atProvider ||= call.kind === "server";
		this.#note.textContent = call.arguments_error ?? this.#note.textContent;
		this.draw();
	}

	/** Show the card of the call's approval. */
	approval(card: HTMLElement): void {
		this.#approval.replaceChildren(card);
	}

	/** The turn of the call is over. Of a call of the provider, there may be no result. */
	endCall(): void {
		if (!this.#atProvider && !this.#others.hasChildNodes() && !this.#approval.hasChildNodes()) this.#note.textContent ||= this.strings.noResult;
	}

	/** Show the result of the tool. */
	answer({ output, is_error: failed }: { output?: unknown; is_error?: boolean }): void {
		this.#others.replaceChildren(source(pretty(output ?? ""), { "aria-label": this.strings.result, class: failed ? "bad" : "good" }));
		this.#note.textContent = failed ? this.strings.toolFailed : this.strings.toolDone;
		if (!failed && !this.#approval.hasChildNodes()) this.#close();
	}

	draw(): void {
		const more = this.#pieces.slice(this.#drawn).join("");
		this.#drawn = this.#pieces.length;
		if (!more) return;
		if (this.#markdown) this.#markdown.add(more);
		else this.#body.append(more);
	}

	end(live: boolean): void {
		this.draw();
		this.#markdown?.end();
		this.fold(live);
	}

	/** Close reasoning that has ended. */
	fold(live: boolean): void {
		if (this.#folded || this.channel !== "reasoning") return;
		this.#close();
		const seconds = (performance.now() - this.#began) / 1000;
		if (live && seconds >= 1) this.#note.append(`${seconds.toFixed(0)} s`);
	}

	/** Close the details once: the user may open them again. */
	#close(): void {
		if (this.#folded) return;
		this.#folded = true;
		(this.node as HTMLDetailsElement).open = false;
	}
}

/** A user's message, with actions. */
export function userMessage(strings: Strings, parts: Part[], edit: () => void, id: string): HTMLElement {
	const text = textOf(parts);
	const others = parts.filter((part) => !isText(part)).map((part) => partNode(strings, part));
	const body = el("div.said", { part: "user-message" }, el("span.sr", {}, `${strings.you} `), el("p", {}, text), ...others);
	const change = icon(strings.edit, EDIT, edit, { title: strings.editTitle });
	const actions = text ? [copyButton(strings, () => text), change] : [];
	return el("div.user", { "data-message": id }, body, el("div.actions", {}, ...actions), el("div.versions", { role: "group", "aria-label": strings.versions }));
}
