/**
 * <tailrace-chat>: a chat with an A2A agent, as one element that needs nothing else.
 *
 * Its attributes:
 *   agent    base URL of the agent; where this file came from, when left out
 *   token    lets the user in: a bearer token or an API key, as the agent's card asks for
 *   context  the conversation to begin with
 *   theme    light or dark; as the system has it, when left out
 *   page     fills the window, and keeps the conversation in the page's address
 *
 * What is shown of a task is the fold of its events: the same for one that streams, one that was lost and gone on with,
 * and one that is read again. Nothing that a model said is ever read as HTML.
 */
const EXT = "urn:tailrace:ext:stream:v1";
const ATTEMPTS = 10;
const MAX_ROWS = 1000; // of the inspector

const facts = (object) => object?.metadata?.[EXT] ?? {};
const inWords = (state) => state.replace("TASK_STATE_", "").toLowerCase().replaceAll("_", " ");
const uid = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16)).join("");
const pretty = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));
const isText = (part) => part.text !== undefined;
/** The texts of parts, with a blank line between; those with metadata may be pieces of one text. */
const textOf = (parts) => (parts ?? []).filter((part) => part.text).reduce((text, part, at, texts) => `${text}${at && !part.metadata && !texts[at - 1].metadata ? "\n\n" : ""}${part.text}`, "");
const dataOf = (message, name) => (message?.parts ?? []).flatMap((part) => part.data?.[name] ?? []);

/** An element: `el("p.note", {title: "…", onclick: f}, "text", child)`. Text is text, never HTML. */
function el(spec, attributes, ...children) {
	const [tag, ...classes] = spec.split(".");
	const node = document.createElement(tag);
	if (classes.length) node.className = classes.join(" ");
	if (attributes instanceof Node || typeof attributes !== "object") children.unshift(attributes ?? "");
	else
		for (const [name, value] of Object.entries(attributes)) {
			if (typeof value === "function") node.addEventListener(name.slice(2), value);
			else if (value !== false) node.setAttribute(name, value === true ? "" : value);
		}
	node.append(...children);
	return node;
}

const button = (spec, label, onclick, attributes) => el(`button.${spec}`, { type: "button", onclick, ...attributes }, label);
const source = (text, more) => el("pre", { tabindex: 0, ...more }, text);
const alarm = (...said) => el("p.bad", { role: "alert" }, ...said);
const svg = (tag, attributes) => {
	const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
	for (const name in attributes) node.setAttribute(name, attributes[name]);
	return node;
};

/** A button that shows a drawing, and is called what it means. */
function icon(label, drawing, onclick, attributes) {
	const image = svg("svg", { viewBox: "0 0 24 24", "aria-hidden": true });
	image.append(svg("path", { d: drawing }));
	return button("icon", image, onclick, { "aria-label": label, title: label, ...attributes });
}

function copyButton(give) {
	if (!navigator.clipboard) return ""; // only where the connection is secure
	const copy = async () => {
		await navigator.clipboard.writeText(give());
		node.textContent = "Copied";
		setTimeout(() => (node.textContent = "Copy"), 1500);
	};
	const node = button("small", "Copy", copy);
	return node;
}

// --- the wire ---

/** What an agent refused, or could not do; `again`: it may work when tried again. */
class Problem extends Error {
	constructor(message, again, status) {
		super(message);
		Object.assign(this, { again, status });
	}
}

/** Calls one agent by JSON-RPC. */
class Wire {
	constructor(base) {
		Object.assign(this, { base, token: "", card: {} });
	}

	async readCard() {
		const response = await fetch(new URL(".well-known/agent-card.json", this.base));
		if (response.ok) this.card = await response.json();
	}

	/** The result of a method; the response, where that is a stream. */
	async call(method, params, { signal, headers } = {}) {
		const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params });
		const known = { "Content-Type": "application/json", "A2A-Version": "1.0", "A2A-Extensions": EXT };
		const all = { ...known, ...this.credentials(), ...headers };
		const response = await fetch(this.base, { method: "POST", body, signal, headers: all }).catch(() => {
			const elsewhere = new URL(this.base).origin !== location.origin;
			const hint = elsewhere ? `, or TAILRACE_ALLOWED_ORIGINS there does not name ${location.origin}` : "";
			throw new Problem(`${this.base} cannot be reached${hint}.`, true);
		});
		if (response.ok && response.headers.get("content-type")?.startsWith("text/event-stream")) return response;
		const answer = await response.json().catch(() => ({}));
		if (response.ok && !answer.error) return answer.result;
		const { status } = response;
		throw new Problem(answer.error?.message ?? `The agent answered with status ${status}`, status >= 500, status);
	}

	credentials() {
		if (!this.token) return {};
		const schemes = Object.values(this.card.securitySchemes ?? {});
		const key = schemes.find((scheme) => scheme.apiKeySecurityScheme)?.apiKeySecurityScheme;
		const isJwt = this.token.split(".").length === 3 && schemes.some((scheme) => scheme.httpAuthSecurityScheme);
		return key && !isJwt ? { [key.name]: this.token } : { Authorization: `Bearer ${this.token}` };
	}
}

/** The server-sent events of a response: for each read of the network, all that came with it. */
async function* readEvents(response) {
	const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
	let unfinished = [];
	let event = { id: "", data: [] };
	for (;;) {
		const { value, done } = await reader.read().catch(() => {
			throw new Problem("The connection was lost.", true);
		});
		if (done) return;
		const lines = value.split("\n");
		const rest = lines.pop();
		const complete = [];
		for (const end of lines) {
			const line = (unfinished.length ? unfinished.join("") + end : end).replace(/\r$/, "");
			unfinished = [];
			const [, name, data = ""] = /^([^:]*)(?:: ?([^]*))?$/.exec(line);
			if (!line) {
				if (event.data.length) complete.push({ id: event.id, data: event.data.join("\n") });
				event = { id: "", data: [] };
			} else if (name === "data") event.data.push(data);
			else if (name === "id") event.id = data;
		}
		if (rest) unfinished.push(rest);
		if (complete.length) yield complete;
	}
}

// --- Markdown ---

const FENCE = /^\s*(`{3,}|~{3,})\s*([^`]*)$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+)(?=\S)/;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const DELIMITERS = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const UNDECIDED = /^\s*([-*_][-*_\s]*|\d{1,9}[.)]?\s*|>|#{1,6}|`{1,2}|~{1,2}|[`~]{3}.*)$/; // more of the line will tell
const INLINE = new RegExp(
	[
		"(`+)(.+?)\\1(?!`)", // 2: code
		"\\\\([!-/:-@\\[-`{-~])", // 3: an escaped character
		"!?\\[([^\\[\\]]*)\\]\\(([^()\\s]*(?:\\([^()\\s]*\\)[^()\\s]*)*)(?:\\s+\"[^\"]*\")?\\)", // 4, 5: a link or an image
		"(\\*\\*|(?<!\\w)__|~~)(?=\\S)(.+?)\\6(?!\\*)", // 6, 7: strong, or struck out
		"\\*(?=[^\\s*])((?:[^*]|\\*\\*[^*]+\\*\\*)+?)\\*(?!\\*)", // 8: stressed
		"(?<!\\w)_(?=[^\\s_])([^_]+)_(?!\\w)", // 9
		"(https?://[^\\s<>\"'`]*[^\\s<>\"'`.,;:!?)\\]*_])", // 10: an address
	].join("|"),
	"gs",
);

// What a model writes may be nested, or as long as it likes, and each level takes some of the stack.
const MAX_DEPTH = 32; // of lists and quotes, and of inline marks; what is nested deeper is text
const MAX_INLINE = 10000; // characters in which inline marks are looked for
const MAX_CELLS = 200; // of a row

/** The inline marks of a text, as nodes. */
function inline(text, depth = 0) {
	if (depth > MAX_DEPTH || text.length > MAX_INLINE) return [text];
	const nodes = [];
	let at = 0;
	for (const match of text.matchAll(INLINE)) {
		if (match.index > at) nodes.push(text.slice(at, match.index));
		at = match.index + match[0].length;
		const [whole, , code, escaped, label, address, mark, strong, stressed, stressed2, url] = match;
		if (code) nodes.push(el("code", code.replace(/^ (.+) $/s, "$1")));
		else if (escaped) nodes.push(escaped);
		else if (address !== undefined) nodes.push(link(address, inline(label || address, depth + 1), whole));
		else if (url) nodes.push(link(url, [url], whole));
		else if (mark) nodes.push(el(mark === "~~" ? "del" : "strong", {}, ...inline(strong, depth + 1)));
		else nodes.push(el("em", {}, ...inline(stressed ?? stressed2, depth + 1)));
	}
	if (at < text.length) nodes.push(text.slice(at));
	return nodes;
}

/** A link that leads out of the page. An image is one too: fetching it would tell somebody that it was seen. */
function link(href, children, otherwise) {
	if (!/^(https?:|mailto:)/i.test(href)) return otherwise;
	return el("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}

/**
 * Markdown that grows. What is complete is never looked at again: a piece costs what its own block is long, and in code
 * and in very long paragraphs not even that.
 */
class Markdown {
	constructor(root, depth = 0) {
		Object.assign(this, { root, depth });
		this.clear();
	}

	clear() {
		this.root.replaceChildren();
		this.rest = "";
		this.where = null; // what takes the present line, once its beginning has told
		this.begin();
	}

	/** Another block begins at the end of the text: this one. */
	begin(block) {
		this.code = this.paragraph = this.table = this.list = this.quote = null;
		if (block) this.root.append(block);
		return block;
	}

	add(text) {
		const lines = (this.rest + text).split("\n");
		this.rest = lines.pop();
		for (const line of lines) this.line(line.replace(/\r$/, ""), true);
		if (this.rest) this.line(this.rest, false);
	}

	end() {
		if (this.rest) this.line(this.rest, true);
		this.rest = "";
	}

	/** A line so far; `whole` when no more of it comes. */
	line(text, whole) {
		this.where ??= this.place(text, whole);
		this.where?.(text, whole);
		if (whole) this.where = null;
	}

	/** What takes a line that begins like this; null as long as that cannot be told. */
	place(text, whole) {
		const nothing = () => {};
		if (this.code) return this.placeInCode(text, whole);
		if (!/\S/.test(text)) {
			if (!whole) return null;
			this.list?.child.line("", true);
			if (this.list) this.list.loose = true;
			this.paragraph = this.table = this.quote = null;
			return nothing;
		}
		const indent = /^\s*/.exec(text)[0].length;
		const { list } = this;
		if (list && indent >= list.indent) return this.into(list, list.indent);
		const rows = this.paragraph?.text.includes("|");
		if (!whole && (UNDECIDED.test(text) || (rows && /^[\s|:-]*$/.test(text)) || (this.table && !text.includes("|")))) return null;
		const nests = this.depth < MAX_DEPTH;
		const item = nests && ITEM.exec(text);
		if (item && !RULE.test(text)) {
			const ordered = /\d/.test(item[2]);
			if (list?.ordered === ordered || !this.paragraph || !ordered || parseInt(item[2]) === 1) return this.placeItem(item, ordered);
		}
		if (list && !list.loose && list.child.isOpen && !/^\s*(#{1,6}\s|>|[`~]{3})/.test(text)) return this.into(list, indent); // lazily
		this.list = null;
		const quoted = nests && /^ {0,3}> ?/.exec(text);
		if (quoted) {
			this.quote ??= { node: this.begin(el("blockquote")) };
			this.quote.child ??= new Markdown(this.quote.node, this.depth + 1);
			return this.into(this.quote, quoted[0].length);
		}
		this.quote = null;
		const fence = FENCE.exec(text);
		const heading = /^\s{0,3}(#{1,6})(\s+|$)/.exec(text);
		if (fence) this.beginCode(fence, indent);
		else if (heading) {
			const node = this.begin(el(`h${Math.min(heading[1].length + 2, 6)}`));
			return (line) => node.replaceChildren(...inline(line.slice(heading[0].length).replace(/\s+#+\s*$/, "")));
		} else if (RULE.test(text)) this.begin(el("hr"));
		else if (this.table && text.includes("|")) return this.placeRow(this.table, "td");
		else if (rows && text.includes("|") && DELIMITERS.test(text)) this.beginTable(this.paragraph);
		else {
			this.table = null;
			return this.placeText();
		}
		return nothing;
	}

	get isOpen() {
		return this.paragraph || this.list?.child.isOpen || this.quote?.child.isOpen;
	}

	into({ child }, skip) {
		return (line, whole) => child.line(line.slice(skip), whole);
	}

	placeItem([whole, , mark, space], ordered) {
		if (this.list?.ordered !== ordered) {
			const node = this.begin(ordered ? el("ol", { start: parseInt(mark) }) : el("ul"));
			this.list = { node, ordered };
		}
		const child = new Markdown(this.list.node.appendChild(el("li")), this.depth + 1);
		Object.assign(this.list, { child, indent: whole.length - Math.max(0, space.length - 4), loose: false });
		return this.into(this.list, this.list.indent);
	}

	beginCode([, fence, info], indent) {
		const text = new Text();
		const caption = el("figcaption", info.trim().split(/\s/)[0] || "text", copyButton(() => text.data));
		this.begin(el("figure", caption, source(el("code", text))));
		this.code = { text, indent, end: new RegExp(`^\\s*${fence[0]}{${fence.length},}\\s*$`) };
	}

	placeInCode(text, whole) {
		if (!whole && /^\s*[`~]*$/.test(text)) return null;
		const { text: node, indent, end } = this.code;
		if (end.test(text)) {
			this.code = null;
			return () => {};
		}
		let shown = Math.min(indent, /^\s*/.exec(text)[0].length);
		return (line, last) => {
			node.appendData(line.slice(shown) + (last ? "\n" : ""));
			shown = line.length;
		};
	}

	placeText() {
		this.paragraph ??= { node: this.begin(el("p")), done: 0, text: "" };
		const { paragraph } = this;
		let before = paragraph.text && `${paragraph.text}\n`;
		let from = 0;
		return (line, whole) => {
			this.paragraph = paragraph;
			paragraph.text = before + line.slice(from);
			// Of a very long paragraph the beginning is left alone, even if a mark is open in it.
			const cut = paragraph.text.length > 4000 && (paragraph.text.lastIndexOf(" ", 3000) + 1 || 3000);
			if (cut) {
				this.show(paragraph, paragraph.text.slice(0, cut));
				paragraph.done = paragraph.node.childNodes.length;
				from += Math.max(0, cut - before.length);
				before = before.slice(cut);
				paragraph.text = before + line.slice(from);
			}
			this.show(paragraph, whole ? paragraph.text : healed(paragraph.text));
		};
	}

	show({ node, done }, text) {
		if (!done && this.root.localName === "li") text = text.replace(/^\[( |x)\] /i, (_, x) => (x === " " ? "☐ " : "☑ "));
		while (node.childNodes.length > done) node.lastChild.remove();
		node.append(...inline(text));
	}

	/** The last line of a paragraph was the head of a table. */
	beginTable({ node, text }) {
		const lines = text.split("\n");
		const head = lines.pop();
		if (lines.length) node.replaceChildren(...inline(lines.join("\n")));
		else node.remove();
		this.table = el("table");
		const { table } = this;
		this.begin(el("div.table", { tabindex: 0 }, table));
		this.placeRow(table, "th")(head);
		this.table = table;
	}

	placeRow(table, kind) {
		const row = table.appendChild(el("tr"));
		return (line) => {
			const cells = line.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/).slice(0, MAX_CELLS);
			row.replaceChildren(...cells.map((cell) => el(kind, {}, ...inline(cell.trim().replaceAll("\\|", "|")))));
		};
	}
}

/** A text that is not at its end, with the marks closed that are open in it. */
function healed(text) {
	if (text.split("`").length % 2 === 0) return `${text}\``;
	return text.split("**").length % 2 === 0 && !/[\s*]$/.test(text) ? `${text}**` : text;
}

// --- what a task shows ---

/** A file or data, as an element. What a file holds never gets an address of this page's origin. */
function shown(part) {
	if (part.data !== undefined) return source(pretty(part.data));
	const name = part.filename || "file";
	if (part.raw === undefined) return el("p", link(part.url ?? "", [part.filename || part.url], part.url));
	const [kind] = /^(image|audio|video)(?=\/[\w.+-]+$)/.exec(part.mediaType) ?? [];
	const src = `data:${part.mediaType};base64,${part.raw}`;
	if (kind === "image") return el("img", { src, alt: part.filename || "Image" });
	if (kind) return el(kind, { src, controls: true, "aria-label": name });
	return el("a", { href: `data:application/octet-stream;base64,${part.raw}`, download: name }, name);
}

/** An artifact: text of the answer or of the reasoning, a call of a tool, files, data. */
class Block {
	constructor(channel, name) {
		const calls = channel === "tool_call";
		const folds = calls || channel === "reasoning";
		this.channel = channel;
		this.others = el("div");
		this.note = el("span.dim");
		this.label = el(folds ? "summary" : "h3", el("b", name ?? ""), " ", this.note);
		const text = new Text();
		const body = calls ? source(text, { "aria-label": "Arguments" }) : el("div.md");
		this.text = calls ? { add: (more) => text.appendData(more), clear: () => (text.data = ""), end() {} } : new Markdown(body);
		this.node = el(`${folds ? "details" : "div"}.block.${channel}`, { open: folds }, folds || name ? this.label : "", body, this.others);
		this.began = performance.now();
		this.pieces = [];
		this.drawn = 0;
	}

	/** More of it. */
	add(parts) {
		for (const part of parts) {
			if (part.text) this.pieces.push(part.text);
			else if (dataOf({ parts: [part] }, "tool_calls").length) this.complete(part.data.tool_calls[0]);
			else if (!isText(part)) this.others.append(shown(part));
		}
	}

	/** All of it: the same again changes nothing, a longer text adds to what is there. */
	replace(parts) {
		const [text, known] = [textOf(parts), this.said];
		const grows = known && text.startsWith(known);
		if (!grows) this.clear();
		if (this.channel !== "tool_call") this.others.replaceChildren();
		this.add([{ text: grows ? text.slice(known.length) : text }, ...parts.filter((part) => !isText(part))]);
	}

	get said() {
		return this.pieces.join("");
	}

	clear() {
		this.text.clear();
		this.pieces = [];
		this.drawn = 0;
	}

	/** The call as a whole. */
	complete(call) {
		this.clear();
		this.pieces.push(call.arguments_text ?? pretty(call.arguments ?? {}));
		this.note.textContent = call.arguments_error ?? this.note.textContent;
		this.draw();
	}

	/** What the tool answered. */
	answer({ output, is_error: failed }) {
		this.others.replaceChildren(source(pretty(output ?? ""), { "aria-label": "Result", class: failed ? "bad" : "good" }));
		this.note.textContent = failed ? "failed" : "done";
	}

	draw() {
		const more = this.pieces.slice(this.drawn).join("");
		this.drawn = this.pieces.length;
		if (more) this.text.add(more);
	}

	end(live) {
		this.draw();
		this.text.end();
		this.fold(live);
	}

	/** Reasoning that is over makes room for what came of it. */
	fold(live) {
		if (this.folded || this.channel !== "reasoning") return;
		this.folded = true;
		this.node.open = false;
		if (live) this.note.append(`${((performance.now() - this.began) / 1000).toFixed(1)} s`);
	}
}

const TITLES = { reasoning: "Reasoning", refusal: "Refused", output: "Output" };

/** One task: what was said to it, what it answers, how it stands. */
class TaskView {
	constructor(chat) {
		Object.assign(this, { chat, id: "", contextId: "", state: "", facts: {}, turns: [], blocks: new Map(), calls: new Map() });
		this.number = 0; // of the last event that is shown
		this.asked = 0; // messages of the user
		this.messages = new Set();
		this.badge = el("span.badge");
		this.about = el("span.dim");
		this.form = el("div");
		this.problem = el("div");
		this.node = el("article", this.form, this.problem, el("footer", this.badge, copyButton(() => this.answer), this.about));
	}

	get over() {
		return ["completed", "failed", "canceled", "rejected"].includes(this.state);
	}

	get waits() {
		return this.state.endsWith("required");
	}

	get answer() {
		return [...this.blocks.values()].filter((block) => block.channel === "text").map((block) => block.said).join("\n\n");
	}

	turn(number) {
		while (this.turns.length < number) this.form.before((this.turns[this.turns.length] = el("section")));
		return this.turns[number - 1];
	}

	/** One event. */
	take({ task, statusUpdate, artifactUpdate, message }) {
		if (task) this.takeTask(task, true);
		if (artifactUpdate) this.takeArtifact(artifactUpdate.artifact, artifactUpdate.append, artifactUpdate.lastChunk, true);
		if (statusUpdate) {
			const { received, ...more } = facts(statusUpdate);
			if (received) this.takeMessage(received);
			this.takeStatus(statusUpdate.status, more, true);
		}
		if (message) {
			this.takeMessage(message);
			this.state = "completed";
		}
	}

	takeTask(task, live) {
		const { number, ...more } = facts(task);
		Object.assign(this, { id: task.id, contextId: task.contextId, number: number ?? this.number });
		for (const message of task.history ?? []) this.takeMessage(message);
		for (const artifact of task.artifacts ?? []) this.takeArtifact(artifact, false, false, live);
		this.takeStatus(task.status, more, live); // ends the artifacts of a task that is over; others may still grow
	}

	takeMessage(message) {
		if (this.messages.has(message.messageId)) return;
		this.messages.add(message.messageId);
		for (const result of dataOf(message, "tool_results")) this.call(result).answer(result);
		const ours = message.role === "ROLE_USER";
		if (ours) this.asked += 1;
		const turn = this.turn(this.asked || 1);
		const parts = (message.parts ?? []).filter((part) => !part.data?.tool_results && !part.data?.tool_calls);
		if (ours && parts.length) turn.append(el("div.said", el("span.sr", "You: "), el("p", textOf(parts)), ...parts.filter((part) => !isText(part)).map(shown)));
		else if (parts.length) {
			const block = new Block("message");
			block.replace(parts);
			block.end();
			if (this.state === "failed") block.node.classList.add("bad");
			turn.append(block.node);
		}
	}

	takeArtifact(artifact, append, last, live) {
		const { artifactId: id, parts = [] } = artifact;
		const { channel = "text", callId, choice, turn } = facts(artifact);
		for (const result of dataOf(artifact, "tool_results")) this.call(result).answer(result);
		if (channel === "tool_result") return;
		const [call] = dataOf(artifact, "tool_calls");
		let block = this.blocks.get(id);
		if (!block) {
			for (const other of this.blocks.values()) other.fold(live);
			const title = choice ? `Choice ${choice + 1}` : TITLES[channel];
			if (channel === "tool_call") block = this.call({ call_id: callId, name: artifact.name }, turn);
			else this.turn(turn ?? 1).append((block = new Block(channel, title)).node);
			this.blocks.set(id, block);
		}
		if (call) this.calls.set(call.call_id, block);
		if (append) block.add(parts);
		else block.replace(parts);
		if (live && textOf(parts)) {
			this.last = performance.now();
			this.first ??= this.last;
		}
		if (last) block.end(live);
		this.chat.changed(block);
	}

	/** The call of an id; made where there is none. */
	call({ call_id: id, name }, turn = this.asked || 1) {
		const known = this.calls.get(id);
		if (known) return known;
		const block = new Block("tool_call", name || "tool");
		if (id) this.calls.set(id, block);
		this.turn(turn).append(block.node);
		return block;
	}

	takeStatus({ state, message }, more, live) {
		this.state = inWords(state);
		this.facts = { ...this.facts, ...more };
		const calls = this.waits ? dataOf(message, "tool_calls") : [];
		for (const call of calls) this.call(call).complete(call);
		if (this.over || this.waits) {
			if (message) this.takeMessage(message);
			for (const block of this.blocks.values()) block.end(live);
		}
		this.form.inert = false;
		this.form.replaceChildren(calls.length ? this.chat.resultForm(this, calls) : "");
		this.draw();
	}

	draw() {
		const { usage, finishReason, error } = this.facts;
		const said = [];
		const seconds = (this.last - this.first) / 1000;
		if (usage) said.push(`${usage.inputTokens ?? "?"} tokens in, ${usage.outputTokens ?? "?"} out`);
		if (usage?.outputTokens && seconds > 0.1) said.push(`${(usage.outputTokens / seconds).toFixed(1)} tokens/s`);
		if (this.sent && this.first) said.push(`first after ${((this.first - this.sent) / 1000).toFixed(2)} s`);
		for (const word of [finishReason, error?.type]) if (word && word !== "stop") said.push(word.replaceAll("_", " "));
		if (this.number) said.push(`event ${this.number}`);
		this.badge.textContent = this.trouble || this.state;
		this.badge.dataset.state = this.trouble ? "trouble" : this.state;
		this.about.textContent = said.join(" · ");
	}
}

// --- the element ---

const style = new CSSStyleSheet();
style.replaceSync(`
:host { --accent: light-dark(#0a6b8c, #63c7ea); --back: light-dark(#fff, #10171d); --panel: light-dark(#f3f6f8, #18212a);
	--text: light-dark(#18222c, #e3eaf0); --dim: light-dark(#55636f, #9dadbb); --line: light-dark(#d7e0e6, #2f3c48);
	--said: light-dark(#dff0f6, #1b3a49); --bad: light-dark(#b3261e, #ff9b92); --good: light-dark(#1b6e3c, #78d69b);
	color-scheme: light dark; container-type: inline-size; display: block; height: min(44rem, 90vh); overflow: hidden;
	background: var(--back); color: var(--text); border: 1px solid var(--line); border-radius: .6rem;
	font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
:host([theme=light]) { color-scheme: light }
:host([theme=dark]) { color-scheme: dark }
:host([page]) { position: fixed; inset: 0; height: auto; border: 0; border-radius: 0 }
[hidden] { display: none !important }
* { box-sizing: border-box; margin: 0 }
.app { display: grid; grid: auto minmax(0, 1fr) / auto minmax(0, 1fr) auto; height: 100%; position: relative }
header { grid-area: 1 / 1 / 2 / 4; display: flex; align-items: center; gap: .5rem; padding: .4rem .6rem; border-bottom: 1px solid var(--line) }
h2 { font-size: 1rem; flex: 1 }
h2, nav button, aside summary { overflow: hidden; text-overflow: ellipsis; white-space: nowrap }
nav, aside { background: var(--panel); overflow: auto; padding: .6rem; border: 0 solid var(--line) }
nav { grid-area: 2 / 1; width: 15rem; border-right-width: 1px }
aside { grid-area: 2 / 3; width: 25rem; border-left-width: 1px; font-size: .82rem }
nav ul { list-style: none; padding: 0; margin-top: .6rem }
nav li { display: flex; align-items: center }
nav li > :first-child { flex: 1; text-align: left; border: 0; background: none }
[aria-current] { font-weight: 600; color: var(--accent) }
.chat { grid-area: 2 / 2; display: grid; grid-template-rows: minmax(0, 1fr) auto }
.log { overflow: auto; padding: 1rem }
.log > * { max-width: 48rem; margin: 0 auto 1.6rem }
.log > .welcome { color: var(--dim); margin-top: 12vh; text-align: center }
.composer { border-top: 1px solid var(--line); padding: .6rem }
.composer > * { max-width: 48rem; margin: 0 auto }
.row { display: flex; gap: .4rem; align-items: end; flex-wrap: wrap }
.row textarea { flex: 1; resize: none; field-sizing: content; max-height: 40vh; min-height: 2.5rem; border-color: var(--dim) }
button, textarea, input { font: inherit; color: inherit; background: var(--back); border: 1px solid var(--line); border-radius: .5rem; padding: .4rem .7rem }
textarea { width: 100%; min-width: 0 }
::placeholder { color: var(--dim); opacity: 1 }
button { cursor: pointer; flex-shrink: 0 }
button:hover { border-color: var(--accent) }
.main { background: var(--accent); border-color: var(--accent); color: var(--back); font-weight: 600 }
.small { font-size: .8rem; padding: .1rem .5rem }
.icon { padding: .5rem; line-height: 0; border-color: transparent; background: none }
.icon[aria-expanded=true] { background: var(--said) }
svg { width: 1.4rem; height: 1.4rem; fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linecap: round; stroke-linejoin: round }
:focus-visible { outline: 2px solid var(--accent); outline-offset: -1px }
.said { background: var(--said); border-radius: .8rem; padding: .5rem .9rem; margin: 0 0 .8rem auto; width: fit-content; max-width: 85% }
.said, .md p, .tool_call pre, aside pre { white-space: pre-wrap }
section > * + *, .md > * + *, li > * + *, blockquote > * + *, .ask { margin-top: .6rem }
section + section { margin-top: 1rem }
li > p + ul, li > p + ol { margin-top: 0 }
.bad, .refusal { color: var(--bad) }
h3 { font-size: 1.15rem } h4 { font-size: 1.05rem } h5, h6 { font-size: 1rem }
details.block, .ask { border: 1px solid var(--line); border-radius: .6rem; padding: .3rem .8rem }
summary { cursor: pointer }
.reasoning { color: var(--dim); font-size: .92rem }
ul, ol { padding-left: 1.6rem }
blockquote { border-left: 3px solid var(--line); padding-left: .8rem; color: var(--dim) }
hr { border: 0; border-top: 1px solid var(--line) }
a { color: var(--accent) }
code, pre { font: .86rem/1.5 ui-monospace, monospace }
pre, code { background: var(--panel); border-radius: .4rem; padding: .1rem .3rem }
pre { overflow: auto; padding: .6rem .8rem; margin: .4rem 0; max-height: 30rem }
pre.good, pre.bad { border-left: 3px solid }
aside pre { background: var(--back) }
figure { border: 1px solid var(--line); border-radius: .5rem; overflow: hidden }
figure pre { margin: 0; border-radius: 0 }
figure code { padding: 0 }
figcaption { display: flex; justify-content: space-between; align-items: center; padding: .2rem .8rem; font-size: .8rem; color: var(--dim) }
.table { overflow: auto }
table { border-collapse: collapse }
th, td { border: 1px solid var(--line); padding: .25rem .6rem; text-align: left }
img, video, audio { display: block; max-width: 100%; max-height: 24rem; border-radius: .5rem; margin-top: .4rem }
footer { display: flex; flex-wrap: wrap; gap: .3rem .6rem; align-items: center; margin-top: .5rem; font-size: .8rem }
.dim { color: var(--dim) }
.badge { border: 1px solid; border-radius: 1rem; padding: 0 .5rem; color: var(--dim) }
.badge:empty { display: none }
.good, .badge[data-state=completed] { color: var(--good) }
.badge[data-state=failed], .badge[data-state=rejected], .badge[data-state=trouble] { color: var(--bad) }
.badge[data-state=working], .badge[data-state$=required] { color: var(--accent) }
.ask { border-color: var(--accent); padding: .8rem; display: grid; gap: .5rem }
aside details { border-bottom: 1px solid var(--line) }
aside b { color: var(--accent) }
.sr { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%) }
@container (max-width: 46rem) { nav, aside { grid-area: 2 / 1 / 3 / 4; width: auto; z-index: 1; border: 0 } .log { padding: .8rem } }
`);

const LIST = "M4 6h16M4 12h16M4 18h10";
const INSPECT = "M8 6l-5 6 5 6M16 6l5 6-5 6M13 5l-2 14";
const ATTACH = "M20 11l-8.5 8.5a5 5 0 0 1-7-7l9-9a3.3 3.3 0 0 1 4.7 4.7l-9 9a1.6 1.6 0 0 1-2.3-2.3l8-8";
const CUT = "M4 4l16 16M9 5a13 13 0 0 1 12 4M3 9a13 13 0 0 1 3-2M7 13a8 8 0 0 1 4-2M12 19h.01";
const REMOVE = "M6 6l12 12M18 6L6 18";

class TailraceChat extends HTMLElement {
	constructor() {
		super();
		Object.assign(this, { views: [], files: [], rows: [], dirty: new Set(), sticks: true });
		this.heading = el("h2", "Chat");
		this.list = el("ul");
		// The button stays when the list is drawn again, and so does the keyboard's focus on it.
		this.nav = el("nav", { "aria-label": "Conversations", hidden: true }, button("main", "New conversation", () => this.open("")), this.list);
		const onscroll = () => (this.sticks = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 60);
		this.log = el("div.log", { role: "log", "aria-live": "polite", "aria-label": "Conversation", tabindex: 0, onscroll });
		this.live = el("div.sr", { role: "status" });
		this.input = el("textarea", { rows: 1, placeholder: "Message", "aria-label": "Message", onkeydown: (event) => this.key(event) });
		this.picker = el("input", { type: "file", multiple: true, hidden: true, onchange: () => this.attach(this.picker.files) });
		this.chips = el("div.row");
		this.send = el("button.main", { type: "submit" }, "Send");
		this.stop = button("main", "Stop", () => this.cancel(), { hidden: true });
		this.drop = icon("Cut the connection, and go on after the last event", CUT, () => this.cut(), { hidden: true });
		this.wish = el("textarea", { rows: 4, placeholder: '{"temperature": 0, "tools": []}', spellcheck: "false" });
		this.events = el("div");
		const wish = el("label", "Asked for with each request, as JSON", this.wish);
		this.aside = el("aside", { "aria-label": "Inspector", hidden: true }, wish, el("h3", "Events"), this.events);
		const tools = el("div.row", icon("Attach files", ATTACH, () => this.picker.click()), this.picker, this.input, this.drop, this.stop, this.send);
		const composer = el("form.composer", { onsubmit: (event) => this.submit(event) }, this.chips, tools);
		const drop = { ondragover: (event) => event.preventDefault(), ondrop: (event) => this.dropped(event) };
		const header = el("header", this.toggle("Conversations", LIST, this.nav), this.heading, this.toggle("Inspector", INSPECT, this.aside));
		const chat = el("section.chat", { "aria-label": "Chat", ...drop }, this.log, composer);
		this.shadow = this.attachShadow({ mode: "open" });
		this.shadow.adoptedStyleSheets = [style];
		this.shadow.append(el("div.app", { onkeydown: (event) => this.escape(event) }, header, this.nav, chat, this.aside, this.live));
	}

	/** The button of a panel. */
	toggle(label, drawing, panel) {
		const flip = () => {
			panel.hidden = !panel.hidden;
			panel.button.setAttribute("aria-expanded", !panel.hidden);
			this.draw();
		};
		return (panel.button = icon(label, drawing, flip, { "aria-expanded": "false" }));
	}

	connectedCallback() {
		const agent = this.getAttribute("agent");
		const base = new URL(agent ?? ".", agent === null ? import.meta.url : document.baseURI).href;
		this.wire = new Wire(base.replace(/\/?$/, "/"));
		this.wire.token = this.getAttribute("token") ?? this.stored("token", "sessionStorage");
		this.wish.value = this.stored("request");
		this.channel = new BroadcastChannel(this.name(""));
		this.channel.onmessage = ({ data }) => this.heard(data);
		this.fills = this.hasAttribute("page");
		if (this.fills && this.clientWidth > 900) this.nav.button.click();
		const named = this.fills ? this.addressed : this.stored("context", "sessionStorage");
		this.followAddress = () => {
			if (this.addressed !== this.contextId) this.open(this.addressed);
		};
		const ready = () => {
			this.heading.textContent = this.wire.card.name ?? "Chat";
			if (!this.isConnected) return;
			if (this.fills) addEventListener("hashchange", this.followAddress);
			return this.open(this.getAttribute("context") ?? named);
		};
		this.opened = this.wire.readCard().then(ready, ready);
	}

	disconnectedCallback() {
		removeEventListener("hashchange", this.followAddress);
		this.views.forEach((view) => this.leave(view));
		this.channel.close();
	}

	name(what) {
		return `tailrace:${this.wire.base}:${what}`;
	}

	stored(name, where = "localStorage") {
		try {
			return window[where].getItem(this.name(name)) ?? "";
		} catch {
			return ""; // a frame or a browser that may keep nothing
		}
	}

	store(name, value, where = "localStorage") {
		try {
			window[where].setItem(this.name(name), value);
		} catch {
			// As above: it works all the same, until the page is left.
		}
	}

	// --- conversations ---

	/** The conversation that the page's address names. */
	get addressed() {
		try {
			return decodeURIComponent(location.hash.slice(1));
		} catch {
			return ""; // cut in the middle of a character
		}
	}

	get contexts() {
		return JSON.parse(this.stored("contexts") || "[]");
	}

	keep(contexts) {
		this.store("contexts", JSON.stringify(contexts.slice(0, 100)));
		this.drawContexts();
	}

	drawContexts() {
		const items = this.contexts.map(({ id, title }) => {
			const forget = () => this.keep(this.contexts.filter((each) => each.id !== id));
			const open = button("context", title, () => this.open(id), id === this.contextId ? { "aria-current": "true" } : {});
			return el("li", open, icon(`Take “${title}” off the list`, REMOVE, forget));
		});
		this.list.replaceChildren(...items);
	}

	/** The conversation is this one from now on; `named`: the one before has got its name only now, and is no place to go back to. */
	enter(contextId, named = this.contextId === undefined) {
		this.contextId = contextId;
		if (this.fills && this.addressed !== contextId) history[named ? "replaceState" : "pushState"](null, "", `#${encodeURIComponent(contextId)}`);
		if (!this.fills) this.store("context", contextId, "sessionStorage");
		this.drawContexts();
	}

	/** Show a conversation from its beginning, and follow what is still at work in it. */
	open(contextId) {
		return (this.opened = this.load(contextId));
	}

	async load(contextId) {
		this.views.forEach((view) => this.leave(view));
		this.views = [];
		this.enter(contextId);
		if (this.clientWidth < 740) for (const panel of [this.nav, this.aside]) if (!panel.hidden) panel.button.click();
		this.log.replaceChildren(el("p.welcome", contextId ? "Loading …" : this.wire.card.description || "Say something."));
		this.drawButtons();
		if (!contextId) return;
		try {
			const said = this.wire.call("GetConversation", { contextId }).catch(() => null); // other servers have no such method
			const tasks = await this.tasks(contextId);
			const messages = (await said)?.messages ?? [];
			if (this.contextId !== contextId) return;
			this.log.replaceChildren();
			this.show(messages, tasks);
		} catch (error) {
			this.log.replaceChildren(alarm(error.message));
			if (error.status === 401) this.askToken(() => this.open(contextId));
		}
	}

	async tasks(contextId) {
		const found = new Map();
		let pageToken = "";
		do {
			const page = await this.wire.call("ListTasks", { contextId, includeArtifacts: true, pageSize: 100, pageToken });
			for (const task of page.tasks) found.set(task.id, task);
			pageToken = page.nextPageToken;
		} while (pageToken && found.size < 1000);
		return found;
	}

	/** Tasks in the order in which the conversation has them, between what was said without a task. */
	show(messages, tasks) {
		let view;
		const begin = (task) => {
			view = this.addView();
			if (task) view.takeTask(task);
			tasks.delete(task?.id);
		};
		for (const message of messages) {
			if (this.find(message.taskId)) continue;
			const task = tasks.get(message.taskId);
			if (task || !view || view.id || message.role === "ROLE_USER") begin(task);
			if (!task) view.takeMessage(message);
		}
		for (const task of [...tasks.values()].reverse()) begin(task);
		this.scroll();
		for (const each of this.views) if (each.id && !each.over && (!each.waits || each === view)) this.follow(each);
	}

	find(id) {
		return id && this.views.find((view) => view.id === id);
	}

	addView() {
		const view = new TaskView(this);
		this.log.querySelector(".welcome")?.remove();
		this.log.append(view.node);
		this.views.push(view);
		return view;
	}

	/** Another tab has begun a task. */
	heard({ contextId, id }) {
		this.drawContexts();
		if (contextId !== this.contextId || this.find(id)) return;
		const view = this.addView();
		view.id = id;
		this.follow(view);
	}

	// --- saying something ---

	key(event) {
		if (event.key === "Enter" && !event.shiftKey && !event.isComposing) this.submit(event);
	}

	escape(event) {
		if (event.key !== "Escape") return;
		const panel = [this.aside, this.nav].find((each) => each.contains(this.shadow.activeElement));
		if (panel) {
			panel.button.click();
			panel.button.focus();
		} else if (this.working) this.cancel();
	}

	dropped(event) {
		event.preventDefault();
		this.attach(event.dataTransfer.files);
	}

	attach(files) {
		for (const file of files) {
			const reader = new FileReader();
			reader.onload = () => {
				const raw = reader.result.split(",")[1] ?? "";
				this.files.push({ raw, filename: file.name, mediaType: file.type || "application/octet-stream" });
				this.drawFiles();
			};
			reader.readAsDataURL(file);
		}
		this.picker.value = "";
	}

	drawFiles() {
		const remove = (file) => {
			this.files = this.files.filter((each) => each !== file);
			this.drawFiles();
			this.input.focus();
		};
		this.chips.replaceChildren(...this.files.map((file) => el("span.badge", file.filename, icon(`Remove ${file.filename}`, REMOVE, () => remove(file)))));
	}

	async submit(event) {
		event.preventDefault();
		await this.opened; // what is said before is of this conversation, and comes after what was said in it
		const text = this.input.value.trim();
		if (this.working || !(text || this.files.length)) return;
		const parts = [...(text ? [{ text }] : []), ...this.files];
		if (!this.ask(parts, this.views.findLast((view) => view.waits))) return;
		this.input.value = "";
		this.files = [];
		this.drawFiles();
		this.input.focus();
	}

	/** Send a message: to a task that waits for it, or as a new one. False when what is asked for cannot be read. */
	ask(parts, view) {
		let wish;
		try {
			wish = { ...this.request, ...JSON.parse(this.wish.value || "{}") };
		} catch (error) {
			this.say(`Not JSON: ${error.message}`);
			if (this.aside.hidden) this.aside.button.click();
			this.wish.focus();
			return false;
		} finally {
			this.wish.setAttribute("aria-invalid", !wish);
		}
		this.store("request", this.wish.value);
		const message = { messageId: uid(), role: "ROLE_USER", parts };
		if (this.contextId) message.contextId = this.contextId;
		if (view) message.taskId = view.id;
		view ??= this.addView();
		view.takeMessage(message);
		Object.assign(view, { sent: performance.now(), first: undefined });
		view.form.inert = true;
		this.scroll();
		this.follow(view, { message, metadata: { [EXT]: wish } });
		return true;
	}

	/** What the user answers for tools that run nowhere else. */
	resultForm(view, calls) {
		const fields = calls.map((call) => {
			const output = el("textarea", { rows: 2, required: true });
			const failed = el("input", { type: "checkbox" });
			const node = el("div", el("label", `Result of ${call.name} (text, or JSON)`, output), el("label", failed, " it failed"));
			return { call, output, failed, node };
		});
		const read = (text) => {
			try {
				return /^\s*[[{]/.test(text) ? JSON.parse(text) : text;
			} catch {
				return text;
			}
		};
		const onsubmit = (event) => {
			event.preventDefault();
			const results = fields.map(({ call: { call_id, name }, output, failed }) => ({ call_id, name, output: read(output.value), is_error: failed.checked }));
			this.ask([{ data: { tool_results: results } }], view);
			this.input.focus();
		};
		const send = el("div", el("button.main", { type: "submit" }, "Send results"));
		return el("form.ask", { "aria-label": "Results of tools", onsubmit }, ...fields.map(({ node }) => node), send);
	}

	askToken(again) {
		const field = el("input", { type: "password", autocomplete: "off", required: true });
		const onsubmit = (event) => {
			event.preventDefault();
			this.wire.token = field.value.trim();
			this.store("token", this.wire.token, "sessionStorage");
			form.remove();
			again();
		};
		const form = el("form.ask", { onsubmit }, el("label", "Token or key ", field), el("div", el("button.main", { type: "submit" }, "Go on")));
		this.log.append(form);
		field.focus();
	}

	// --- following a task ---

	/** The task that is at work and followed. */
	get working() {
		return this.views.findLast((view) => view.reader && !view.over && !view.waits);
	}

	leave(view) {
		view.reader = null;
		view.connection?.abort();
		this.drawButtons();
	}

	cut() {
		const view = this.working;
		if (!view) return;
		view.wasCut = true;
		view.connection.abort();
	}

	async cancel() {
		const { working } = this;
		if (!working) return;
		if (working.id) await this.wire.call("CancelTask", { id: working.id }).catch((error) => this.say(error.message));
		else this.leave(working);
	}

	/** Read a task's events until it is over: what sending `params` gives, then what follows the last event. */
	async follow(view, params) {
		this.leave(view);
		const reader = (view.reader = {}); // another one takes its place when the task is followed anew
		const key = uid();
		this.drawButtons();
		for (let attempt = 1; view.reader === reader; attempt += 1) {
			try {
				view.connection = new AbortController();
				const response = await this.connect(view, params, key);
				view.trouble = "";
				view.problem.replaceChildren();
				for await (const events of response ? readEvents(response) : []) {
					if (view.reader !== reader) return;
					attempt = 0;
					for (const event of events) this.take(view, event);
					if (view.id) params = null; // it arrived: from here on its events are asked for
				}
			} catch (error) {
				if (view.reader !== reader) return;
				if (!error.again || attempt >= ATTEMPTS) return this.refused(view, error, params);
				if (!view.wasCut) view.problem.replaceChildren(alarm(error.message, " Trying again …"));
			}
			if (view.over || (view.waits && !view.number)) break;
			// A stream of sending ends when the task waits; following it goes on, without a word of that.
			if (!view.waits || attempt) await this.pause(view, attempt);
		}
		if (view.reader === reader) this.leave(view);
	}

	async pause(view, attempt) {
		view.trouble = view.wasCut ? `cut after event ${view.number}` : "connection lost";
		this.note(view, view.trouble);
		view.draw();
		await new Promise((resume) => setTimeout(resume, view.wasCut ? 1200 : Math.min(500 * 2 ** attempt, 10000)));
		view.wasCut = false;
	}

	async connect(view, params, key) {
		const { signal } = view.connection;
		this.note(view, params ? "SendStreamingMessage" : `SubscribeToTask after event ${view.number}`);
		if (params) return this.wire.call("SendStreamingMessage", params, { signal, headers: { "Idempotency-Key": key } });
		if (!view.number) {
			view.takeTask(await this.wire.call("GetTask", { id: view.id }, { signal }), true);
			if (view.over) return null;
		}
		const headers = view.number ? { "Last-Event-ID": `${view.number}` } : {};
		return this.wire.call("SubscribeToTask", { id: view.id }, { signal, headers });
	}

	/** It goes no further: say why, and let it be tried again. */
	refused(view, error, params) {
		if (!(error instanceof Problem)) reportError(error); // our own fault
		const again = () => this.follow(view, params);
		this.leave(view);
		view.form.inert = false;
		view.trouble = "";
		view.draw();
		view.problem.replaceChildren(alarm(error.message, " ", button("small", "Try again", again)));
		if (error.status === 401) this.askToken(again);
	}

	take(view, event) {
		const answer = JSON.parse(event.data);
		if (answer.error) throw new Problem(answer.error.message, true);
		const { result } = answer;
		const number = Number(event.id);
		this.row({ id: event.id, result, raw: event.data });
		if (number && number <= view.number && !result.task) return; // it is shown already
		if (number > view.number + 1 && result.artifactUpdate?.append) throw new Problem("events are missing", true);
		const { state, id } = view;
		view.take(result);
		if (number) view.number = number;
		this.changed(view);
		if (id !== view.id) this.begun(view);
		if (state !== view.state) this.moved(view);
	}

	/** A task of ours has its name. */
	begun({ id, contextId, node }) {
		if (this.contextId !== contextId) this.enter(contextId, true);
		const known = this.contexts.find((each) => each.id === contextId);
		const title = known?.title ?? (node.querySelector(".said p")?.textContent.slice(0, 60) || "Files");
		this.keep([{ id: contextId, title }, ...this.contexts.filter((each) => each.id !== contextId)]);
		this.channel.postMessage({ contextId, id });
	}

	moved({ id, contextId, state }) {
		this.drawButtons();
		this.say({ working: "Answering", "input required": "The agent waits for you" }[state] ?? `The task is ${state}`);
		this.dispatchEvent(new CustomEvent("taskstate", { detail: { id, contextId, state } }));
	}

	drawButtons() {
		const working = Boolean(this.working);
		this.stop.hidden = this.drop.hidden = !working;
		this.send.hidden = working;
		this.log.setAttribute("aria-busy", working);
	}

	say(text) {
		this.live.textContent = text;
	}

	// --- drawing: once a frame, whatever has come by then ---

	changed(what) {
		if (!this.dirty.size) requestAnimationFrame(() => this.draw());
		this.dirty.add(what);
	}

	draw() {
		for (const each of this.dirty) if (each !== this) each.draw();
		this.dirty.clear();
		if (this.sticks) this.scroll();
		this.inspect();
	}

	scroll() {
		this.log.scrollTop = this.log.scrollHeight;
	}

	// --- the inspector ---

	note(view, note) {
		this.row({ note, raw: JSON.stringify({ note, taskId: view.id }) });
	}

	row(row) {
		this.changed(this);
		this.rows.push(row);
		if (this.rows.length > 2 * MAX_ROWS) this.rows.splice(0, MAX_ROWS);
	}

	inspect() {
		if (this.aside.hidden) return;
		const { scrollHeight, scrollTop, clientHeight } = this.aside;
		this.events.append(...this.rows.splice(0).slice(-MAX_ROWS).map(rowNode));
		while (this.events.childElementCount > MAX_ROWS) this.events.firstChild.remove();
		if (scrollHeight - scrollTop - clientHeight < 60) this.aside.scrollTop = this.aside.scrollHeight;
	}
}

function rowNode({ id, note, result, raw }) {
	if (note) return el("p.dim", `→ ${note}`);
	const { task, statusUpdate, artifactUpdate } = result;
	const { artifactId, parts } = artifactUpdate?.artifact ?? {};
	const piece = JSON.stringify(textOf(parts) || parts?.[0].data || "").slice(0, 200);
	const state = (task ?? statusUpdate)?.status.state ?? "";
	const said = artifactId ? `${artifactId} ${artifactUpdate.append ? "+" : "="} ${piece}` : inWords(state);
	const whole = source("");
	const ontoggle = () => (whole.textContent ||= pretty(JSON.parse(raw)));
	return el("details", { ontoggle }, el("summary", el("b", id || "–"), ` ${Object.keys(result)[0]} ${said}`), whole);
}

customElements.define("tailrace-chat", TailraceChat);
