/**
 * Markdown that grows, as DOM nodes.
 *
 * marked splits the text into tokens; the nodes are made from tokens, so no HTML is ever parsed and there is nothing to
 * sanitize: raw HTML is text, links are http, https or mailto, and images are `data:` URLs. The result depends on the text
 * alone, not on the pieces in which it arrived. A block that a later block follows is final and is never looked at again;
 * of the last block, only the parts that changed are replaced.
 */
import { Lexer, Marked, Tokenizer, type Token, type Tokens, type TokensList } from "marked";
import remend from "remend";

import { copyButton, el, keepEqual, link, source } from "./dom.ts";
import { highlight, renderMath } from "./lazy.ts";
import { fill, STRINGS, type Strings } from "./strings.ts";

// Bounds of hostile text.
const MAX_DEPTH = 24; // of lists and quotes, and of inline marks; deeper nesting is text
const MAX_NESTED = 500_000; // depth × characters of nested text
const MAX_INLINE = 10_000; // characters of a block that may contain inline marks
const MAX_MARKS = 1000; // characters in it that may begin or end a mark
const MAX_CELLS = 200; // of a row
const MAX_HEALED = 10_000; // characters of a block whose open marks are closed while it grows
const MAX_DEFINITIONS = 100; // of links, each of which may change what came before

/** A line whose block is undecided until more of it arrives. */
const UNDECIDED =
	/^\s*([-*_=+][-*_=+\s]*|\d{1,9}[.)]?\s*|>|#{1,6}|[`~]{1,2}|[`~]{3,}[^`]*|\$\$?|\\\[?|[|:\s-]+|\[\^?[^\]\n]{0,80}(\](:.*)?)?|<[\w ]*)$/;

/** A piece of math, or a footnote: tokens of our own. */
interface MathToken {
	type: "math";
	raw: string;
	text: string;
	display: boolean;
	open: boolean;
}
interface Footnote {
	type: "footnote";
	raw: string;
	label: string;
	tokens: Token[];
}
interface Reference {
	type: "reference";
	raw: string;
	label: string;
}

const inlineMath = /^\\\((.+?)\\\)|^\$\$([^$\n]+)\$\$|^\$(?=[^\s$])((?:\\.|[^\\$\n])*?[^\s\\$])\$(?!\d)/s;
const displayMath = /^ {0,3}(?:\$\$((?:(?!\n[^\S\n]*\n)[^$])*)(\$\$|$|(?=\n[^\S\n]*\n))|\\\[((?:(?!\n[^\S\n]*\n|\\\])[\s\S])*)(\\\]|$|(?=\n[^\S\n]*\n)))[^\S\n]*(?:\n|$|(?=\n))/;

/** The line of a paragraph at which another block begins. */
function startOf(text: string, block: RegExp): number | undefined {
	const end = text.indexOf("\n\n");
	const at = (end < 0 ? text : text.slice(0, end)).search(block);
	return at < 0 ? undefined : at + 1;
}

const { defaults } = new Marked({
	extensions: [
		{
			name: "math",
			level: "block",
			start: (text: string) => startOf(text, /\n {0,3}(\$\$|\\\[)/),
			tokenizer(text: string): MathToken | undefined {
				const match = displayMath.exec(text);
				if (!match) return;
				return { type: "math", raw: match[0], text: (match[1] ?? match[3] ?? "").trim(), display: true, open: !(match[2] || match[4]) };
			},
		},
		{
			name: "inlineMath",
			level: "inline",
			start: (text: string) => text.search(/\\\(|\$/),
			tokenizer(text: string): MathToken | undefined {
				const match = inlineMath.exec(text);
				if (!match || match[0].length > MAX_MARKS) return;
				return { type: "math", raw: match[0], text: match[1] ?? match[2] ?? match[3] ?? "", display: false, open: false };
			},
		},
		{
			name: "footnote",
			level: "block",
			start: (text: string) => startOf(text, /\n {0,3}\[\^[^\]\s]+\]:/),
			tokenizer(text: string): Footnote | undefined {
				const match = /^ {0,3}\[\^([^\]\s]+)\]:[^\S\n]*([^\n]*(?:\n(?:    |\t)[^\n]*)*)(?:\n|$)/.exec(text);
				if (!match) return;
				const tokens = this.lexer.inlineTokens(match[2]!.replace(/\n[^\S\n]+/g, "\n"), []);
				return { type: "footnote", raw: match[0], label: match[1]!, tokens };
			},
		},
		{
			name: "reference",
			level: "inline",
			start: (text: string) => text.search(/\[\^/),
			tokenizer(text: string): Reference | undefined {
				const match = /^\[\^([^\]\s]{1,60})\](?!\()/.exec(text);
				return match ? { type: "reference", raw: match[0], label: match[1]! } : undefined;
			},
		},
	],
});

/** marked's tokenizer without HTML, and with a bound for nesting. */
class BoundedTokenizer extends Tokenizer {
	#depth = 0;

	#nested<Found>(text: string, tokenize: () => Found): Found | undefined {
		if (this.#depth >= MAX_DEPTH || this.#depth * text.length > MAX_NESTED) return undefined;
		this.#depth += 1;
		try {
			return tokenize();
		} finally {
			this.#depth -= 1;
		}
	}

	override html(): undefined {}

	override tag(text: string): any {
		const [raw] = /^<br ?\/?>/i.exec(text) ?? [];
		return raw && { type: "br", raw };
	}

	override list(text: string) {
		return this.#nested(text, () => super.list(text));
	}

	override blockquote(text: string) {
		return this.#nested(text, () => super.blockquote(text));
	}

	override emStrong(text: string, masked: string, before?: string) {
		return this.#nested(text, () => super.emStrong(text, masked, before));
	}

	override del(text: string, masked: string, before?: string) {
		return this.#nested(text, () => super.del(text, masked, before));
	}

	override link(text: string) {
		return this.#nested(text, () => super.link(text));
	}

	override reflink(text: string, links: TokensList["links"]) {
		return this.#nested(text, () => super.reflink(text, links));
	}
}

/** marked's lexer; text that is long, or full of marks, has no inline tokens. */
class BoundedLexer extends Lexer {
	override inlineTokens(text: string, tokens: Token[] = []): Token[] {
		if (text.length <= MAX_INLINE && (text.match(/[*_~[\]`$\\<]/g)?.length ?? 0) <= MAX_MARKS) return super.inlineTokens(text, tokens);
		tokens.push({ type: "text", raw: text, text, escaped: false });
		return tokens;
	}
}

function lex(text: string, links: TokensList["links"]): Token[] {
	const lexer = new BoundedLexer({ ...defaults, gfm: true, tokenizer: new BoundedTokenizer() });
	lexer.tokens.links = links;
	try {
		return lexer.lex(text);
	} catch {
		return [{ type: "paragraph", raw: text, text, tokens: [{ type: "text", raw: text, text, escaped: false }] }];
	}
}

/** A drawn block. */
interface Drawn {
	key: string;
	type: string;
	node: Element;
	/** Show another token of the same type, if that is possible. */
	update?: (token: any) => boolean;
}

const silent = (token: Token) => token.type === "space" || token.type === "def";

export class Markdown {
	#text = "";
	#tail = ""; // the part after the final blocks
	#links: TokensList["links"] = {};
	#final = 0; // blocks
	#drawn: Drawn[] = [];

	/** `root` gets the blocks. */
	constructor(
		readonly root: Element,
		readonly strings: Strings = STRINGS,
	) {}

	clear(): void {
		this.root.replaceChildren();
		this.#text = this.#tail = "";
		this.#links = {};
		this.#final = 0;
		this.#drawn = [];
	}

	add(text: string): void {
		const more = text.replaceAll("\r", "");
		this.#text += more;
		this.#tail += more;
		if (more.includes("\n")) this.#finish(this.#tail.lastIndexOf("\n") + 1);
		this.#draw(growing(this.#tail));
	}

	/** The text is complete. */
	end(): void {
		this.#finish(this.#tail.length);
		this.#draw(this.#tail);
	}

	/** Draw the blocks that nothing can change any more, which are those before the last one, and take them off the tail. */
	#finish(length: number): void {
		const lines = this.#tail.slice(0, length);
		const known = Object.keys(this.#links).length;
		const tokens = lex(lines, this.#links);
		if (Object.keys(this.#links).length > known && known < MAX_DEFINITIONS) {
			length += this.#text.length - this.#tail.length;
			this.#tail = this.#text;
			this.#final = 0;
			this.#drawn = [];
			this.root.replaceChildren();
			return this.#finish(length);
		}
		let last = tokens.length - 1;
		while (last > 0 && silent(tokens[last]!)) last -= 1;
		if (tokens[last] && isClosed(tokens[last]!)) last += 1;
		const done = tokens.slice(0, Math.max(last, 0));
		const raw = done.map((token) => token.raw).join("");
		if (!raw || !lines.startsWith(raw)) return;
		const blocks = done.filter((token) => !silent(token));
		patch(this.strings, this.root, this.#drawn, this.#final, blocks);
		this.#final += blocks.length;
		this.#tail = this.#tail.slice(raw.length);
	}

	#draw(tail: string): void {
		const blocks = tail ? lex(tail, { ...this.#links }).filter((token) => !silent(token)) : [];
		patch(this.strings, this.root, this.#drawn, this.#final, blocks);
	}
}

const FENCE = /^ {0,3}(`{3,}|~{3,})/;

/** Whether a block is code with its last fence. */
function isClosed({ type, raw }: Pick<Token, "type" | "raw">): boolean {
	const [, fence] = (type === "code" && FENCE.exec(raw)) || [];
	return Boolean(fence) && new RegExp(`\\n {0,3}${fence![0]}{${fence!.length},}[ \\t]*\\n*$`).test(raw);
}

/** A text that is not complete: without an undecided last line, and with its open marks closed. */
function growing(tail: string): string {
	const at = tail.lastIndexOf("\n") + 1;
	if (at && FENCE.test(tail)) return tail.replace(/\n {0,3}[`~]{1,2}$/, "\n"); // open code, without what may end it
	const text = UNDECIDED.test(tail.slice(at)) ? tail.slice(0, at) : tail;
	return text.length > MAX_HEALED ? text : remend(text, HEALED);
}

const HEALED = { linkMode: "text-only", katex: false, htmlTags: false, setextHeadings: false, singleTilde: false, comparisonOperators: false } as const;

/** Make the blocks of a parent, from one on, show these tokens. */
function patch(strings: Strings, parent: Element, drawn: Drawn[], from: number, tokens: Token[]): void {
	for (const [offset, token] of tokens.entries()) {
		const at = from + offset;
		const known = drawn[at];
		const key = keyOf(token);
		if (known?.key === key) continue;
		if (known?.type === token.type && known.update?.(token)) {
			known.key = key;
			continue;
		}
		const block = { key, type: token.type, ...draw(strings, token as any) };
		if (known) known.node.replaceWith(block.node);
		else parent.append(block.node);
		drawn[at] = block;
	}
	for (const { node } of drawn.splice(from + tokens.length)) node.remove();
}

const keyOf = (token: Token) => `${token.type} ${(token as Tokens.ListItem).loose ?? ""} ${(token as MathToken).open ?? ""} ${token.raw}`;

/** The node of a block, and how it changes. */
function draw(strings: Strings, token: any): { node: Element; update?: (token: any) => boolean } {
	switch (token.type) {
		case "heading":
			return drawInline(strings, el(`h${Math.min(token.depth + 2, 6)}`), token, (other) => other.depth === token.depth);
		case "paragraph":
			return drawInline(strings, el("p"), token);
		case "text":
			return drawInline(strings, el("span"), token);
		case "code":
			return drawCode(strings, token);
		case "blockquote":
			return drawBlocks(strings, el("blockquote"), token);
		case "list":
			return drawList(strings, token);
		case "list_item":
			return drawBlocks(strings, el("li"), token);
		case "checkbox":
			return { node: checkbox(strings, token) };
		case "table":
			return drawTable(strings, token);
		case "hr":
			return { node: el("hr") };
		case "math":
			return { node: token.open ? el("p", {}, token.raw.trimEnd()) : math(token) };
		case "footnote":
			return drawInline(strings, el("div.footnote", { "data-note": token.label, tabindex: -1 }), token, (other) => other.label === token.label);
		default:
			return { node: el("p", {}, token.raw) };
	}
}

function drawInline(strings: Strings, node: HTMLElement, first: any, same: (token: any) => boolean = () => true) {
	const update = (token: any) => {
		if (!same(token)) return false;
		const nodes: (Node | string)[] = token.type === "footnote" ? [el("b", {}, token.label), " "] : [];
		nodes.push(...inline(strings, token.tokens ?? [{ type: "text", text: token.text }]));
		keepEqual(node, nodes);
		return true;
	};
	update(first);
	return { node, update };
}

function drawBlocks(strings: Strings, node: Element, first: any) {
	const drawn: Drawn[] = [];
	const update = (token: any) => {
		if (token.type === "list_item" && token.loose !== first.loose) return false;
		const tokens = token.tokens as Token[];
		patch(strings, node, drawn, 0, tokens.filter((each) => !silent(each)));
		return true;
	};
	update(first);
	return { node, update };
}

function drawList(strings: Strings, first: Tokens.List) {
	const node = first.ordered ? el("ol", first.start === 1 ? {} : { start: first.start }) : el("ul");
	const drawn: Drawn[] = [];
	const update = (token: Tokens.List) => {
		if (token.ordered !== first.ordered || token.start !== first.start) return false;
		patch(strings, node, drawn, 0, token.items);
		return true;
	};
	update(first);
	return { node, update };
}

function drawCode(strings: Strings, first: Tokens.Code) {
	const code = el("code");
	let shown = "";
	const language = first.lang?.trim().split(/\s/)[0] ?? "";
	const caption = el("figcaption", {}, language || strings.plainText, copyButton(strings, () => shown));
	const update = (token: Tokens.Code) => {
		if (token.lang !== first.lang) return false;
		shown = codeOf(token);
		highlight(code, shown, language);
		return true;
	};
	update(first);
	return { node: el("figure", {}, caption, source(code)), update };
}

/** The code of a block, each line with its end. (marked's `text` lacks some.) */
function codeOf({ raw, text }: Tokens.Code): string {
	const fence = FENCE.exec(raw);
	if (!fence) return `${text.replace(/\n+$/, "")}\n`;
	const body = raw.includes("\n") ? raw.slice(raw.indexOf("\n") + 1) : "";
	const code = isClosed({ type: "code", raw }) ? body.replace(/[^\n]*\n*$/, "") : body;
	const indent = fence[0].indexOf(fence[1]!);
	const lines = indent ? code.replace(new RegExp(`^ {1,${indent}}`, "gm"), "") : code;
	return lines && !lines.endsWith("\n") ? `${lines}\n` : lines;
}

function drawTable(strings: Strings, first: Tokens.Table) {
	const [head, body] = [el("thead"), el("tbody")];
	const rows: Drawn[] = [];
	const drawRow = (cells: Tokens.TableCell[], kind: string) => {
		const shown = cells.slice(0, MAX_CELLS).map((cell) => el(kind, cell.align ? { class: cell.align } : {}, ...inline(strings, cell.tokens)));
		return el("tr", {}, ...shown);
	};
	const update = (token: Tokens.Table) => {
		if (token.align.join() !== first.align.join()) return false;
		if (!head.firstChild) head.append(drawRow(token.header, "th"));
		for (const [at, cells] of token.rows.entries()) {
			const key = cells.map((cell) => cell.text).join("\n");
			if (rows[at]?.key === key) continue;
			const node = drawRow(cells, "td");
			if (rows[at]) rows[at].node.replaceWith(node);
			else body.append(node);
			rows[at] = { key, type: "row", node };
		}
		for (const { node } of rows.splice(token.rows.length)) node.remove();
		return true;
	};
	update(first);
	return { node: el("div.table", { tabindex: 0, role: "region", "aria-label": strings.table }, el("table", {}, head, body)), update };
}

function math({ text, display }: MathToken): HTMLElement {
	const node = el(display ? "div.math" : "span.math", {}, el("code", {}, text));
	renderMath(node, text, display);
	return node;
}

const checkbox = (strings: Strings, { checked }: { checked: boolean }) => el("input", { type: "checkbox", disabled: true, checked, "aria-label": checked ? strings.checked : strings.unchecked });

/** The nodes of inline tokens. */
function inline(strings: Strings, tokens: any[]): (Node | string)[] {
	return tokens.flatMap((token): (Node | string)[] => {
		switch (token.type) {
			case "text":
				return token.tokens ? inline(strings, token.tokens) : [decoded(token.text)];
			case "escape":
				return [token.text];
			case "strong":
			case "em":
			case "del":
				return [el(token.type, {}, ...inline(strings, token.tokens))];
			case "codespan":
				return [el("code", {}, token.text)];
			case "br":
				return [el("br")];
			case "link":
				return [link(token.href, ...inline(strings, token.tokens)) ?? token.raw];
			case "image":
				return [image(strings, token)];
			case "math":
				return [math(token)];
			case "reference":
				return [reference(strings, token)];
			case "checkbox":
				return [checkbox(strings, token), " "];
			default:
				return [token.raw];
		}
	});
}

/** An image in a `data:` URL; else a link, because loading it would reveal the reader to its server. */
function image(strings: Strings, { href, text, raw }: Tokens.Image): Node | string {
	if (/^data:image\/(png|jpeg|gif|webp|avif);base64,/i.test(href)) return el("img", { src: href, alt: text || strings.image });
	return link(href, text || href) ?? raw;
}

/** The mark of a footnote, which leads to its text in the same response. */
function reference(strings: Strings, { label }: Reference): HTMLElement {
	const show = () => {
		const note = [...(node.closest(".md")?.querySelectorAll<HTMLElement>(".footnote") ?? [])].find((each) => each.dataset.note === label);
		note?.scrollIntoView({ block: "nearest" });
		note?.focus();
	};
	const node = el("sup", {}, el("button.note", { type: "button", "aria-label": fill(strings.footnote, { label }), onclick: show }, label));
	return node;
}

const ENTITIES: Record<string, string> = {
	amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", trade: "™", hellip: "…", mdash: "—", ndash: "–",
	lsquo: "‘", rsquo: "’", ldquo: "“", rdquo: "”", laquo: "«", raquo: "»", bull: "•", middot: "·", deg: "°", plusmn: "±", times: "×",
	divide: "÷", frac12: "½", euro: "€", pound: "£", yen: "¥", sect: "§", para: "¶", micro: "µ", larr: "←", rarr: "→", uarr: "↑", darr: "↓",
	harr: "↔", le: "≤", ge: "≥", ne: "≠", infin: "∞", sum: "∑", minus: "−", alpha: "α", beta: "β", gamma: "γ", delta: "δ", pi: "π", mu: "μ",
	ensp: "\u2002", emsp: "\u2003", thinsp: "\u2009", zwj: "\u200d", zwnj: "\u200c", shy: "\u00ad",
}; // prettier-ignore

/** A text with its character references replaced: numbers, and the names that models write. */
function decoded(text: string): string {
	return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w{2,8}));/gi, (whole, decimal, hex, name) => {
		if (name) return Object.hasOwn(ENTITIES, name) ? ENTITIES[name]! : whole;
		const point = decimal ? Number(decimal) : parseInt(hex, 16);
		return point > 0 && point <= 0x10ffff && !(point >= 0xd800 && point < 0xe000) ? String.fromCodePoint(point) : "\ufffd";
	});
}
