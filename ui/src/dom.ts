/** Elements. Text is always text, never HTML. */
import type { Strings } from "./strings.ts";

const COPY = "M9 9h11v11H9zM6 15H4V4h11v2";
const DONE = "M5 13l4 4L19 7";
const REFUSED = "M6 6l12 12M18 6L6 18";

type Child = Node | string;
type Attributes = Record<string, string | number | boolean | ((event: any) => unknown) | undefined>;

/** An element: `el("p.note", { title: "…", onclick: f }, "text", child)`. */
export function el(spec: string, attributes: Attributes = {}, ...children: Child[]): HTMLElement {
	const [tag, ...classes] = spec.split(".");
	const node = document.createElement(tag!);
	if (classes.length) node.className = classes.join(" ");
	for (const [name, value] of Object.entries(attributes)) {
		if (typeof value === "function") node.addEventListener(name.slice(2), value);
		else if (value !== false && value !== undefined) node.setAttribute(name, value === true ? "" : `${value}`);
	}
	node.append(...children);
	return node;
}

export const button = (spec: string, label: Child, onclick: (event: Event) => unknown, attributes: Attributes = {}) =>
	el(`button.${spec}`, { type: "button", onclick, ...attributes }, label) as HTMLButtonElement;

export const source = (text: Child, attributes: Attributes = {}) => el("pre", { tabindex: 0, ...attributes }, text);

export const alarm = (...children: Child[]) => el("p.bad", { role: "alert" }, ...children);

/** A place for content of the page that embeds the element; without it, these children. */
export const slot = (name: string, ...children: Child[]) => el("slot", { name }, ...children);

/** A button with a drawing (the path of a 24 × 24 SVG) and a name. */
export function icon(label: string, drawing: string, onclick: (event: Event) => unknown, attributes: Attributes = {}) {
	const node = button("icon", "", onclick, attributes);
	drawIcon(node, label, drawing);
	return node;
}

function drawIcon(node: HTMLElement, label: string, drawing: string): void {
	const image = svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" });
	image.append(svg("path", { d: drawing }));
	node.replaceChildren(image);
	node.ariaLabel = label;
	node.title ||= label;
}

function svg(tag: string, attributes: Record<string, string>) {
	const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
	for (const name in attributes) node.setAttribute(name, attributes[name]!);
	return node;
}

/** A link to another page; null if the address is not http, https or mailto. */
export function link(href: string, ...children: Child[]): HTMLElement | null {
	if (!/^(https?:\/\/|mailto:)/i.test(href)) return null;
	return el("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}

/** Replace the children that differ from these; text that only grows keeps its node, and a selection in it. */
export function keepEqual(parent: Element, children: Child[]): void {
	const nodes = children.filter((child) => child !== "").map((child) => (typeof child === "string" ? new Text(child) : child));
	let at = 0;
	while (at < nodes.length && parent.childNodes[at]?.isEqualNode(nodes[at]!)) at += 1;
	const [old, next] = [parent.childNodes[at], nodes[at]];
	if (old instanceof Text && next instanceof Text && next.data.startsWith(old.data)) {
		old.appendData(next.data.slice(old.data.length));
		at += 1;
	}
	while (parent.childNodes.length > at) parent.lastChild!.remove();
	parent.append(...nodes.slice(at));
}

/** Put nodes into this order, as the first children. The one with the focus keeps it, because it is not moved. */
export function arrange(parent: Element, nodes: Element[]): void {
	if (nodes.every((node, at) => parent.children[at] === node)) return;
	const at = nodes.findIndex((node) => node.matches(":focus-within"));
	if (at < 0) return parent.prepend(...nodes);
	nodes[at]!.before(...nodes.slice(0, at));
	nodes[at]!.after(...nodes.slice(at + 1));
}

export function copyButton(strings: Strings, text: () => string): HTMLButtonElement {
	const copy = async () => {
		const copied = await writeClipboard(text(), node);
		drawIcon(node, copied ? strings.copied : strings.notCopied, copied ? DONE : REFUSED);
		setTimeout(() => drawIcon(node, strings.copy, COPY), 1500);
	};
	const node = icon(strings.copy, COPY, copy);
	return node;
}

/** Copy a text, also on pages that have no `navigator.clipboard` (no secure context) or must not use it; false: refused. */
async function writeClipboard(text: string, beside: Element): Promise<boolean> {
	if (await navigator.clipboard?.writeText(text).then(() => true, () => false)) return true;
	const field = el("textarea", { class: "sr", readonly: true }) as HTMLTextAreaElement;
	field.value = text;
	beside.after(field);
	field.select();
	const copied = document.execCommand("copy");
	field.remove();
	return copied;
}

/** Make attributes of a custom element its properties, too. */
export function reflectAttributes(prototype: HTMLElement, names: readonly string[]): void {
	for (const name of names) {
		Object.defineProperty(prototype, name, {
			get(this: HTMLElement) {
				return this.getAttribute(name);
			},
			set(this: HTMLElement, value: string | null | undefined) {
				if (value === null || value === undefined) this.removeAttribute(name);
				else this.setAttribute(name, value);
			},
		});
	}
}
