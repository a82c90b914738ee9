/** Modules that the page loads when a response needs them, from beside this one. */
import { keepEqual } from "./dom.ts";
import type { Root } from "./highlight.ts";

type Highlighter = typeof import("./highlight.ts");
type MathRenderer = typeof import("./math.ts");

/** Characters of a code block that is highlighted. */
const MAX_HIGHLIGHTED = 20_000;

class LazyModule<Module> {
	#module?: Module;
	#loading?: Promise<Module | undefined>;

	constructor(private readonly load: () => Promise<Module>) {}

	/** Call a function with the module, now if it is loaded. It is never called if the module cannot be loaded. */
	use(apply: (module: Module) => void): void {
		if (this.#module) return apply(this.#module);
		this.#loading ??= this.load().then(
			(module) => (this.#module = module),
			() => undefined, // a page with its own copy of the component may lack it
		);
		this.#loading.then((module) => module && apply(module));
	}
}

const highlighter = new LazyModule<Highlighter>(() => import("./highlight.ts"));
const mathRenderer = new LazyModule<MathRenderer>(() => import("./math.ts"));

const latest = new WeakMap<Element, string>();

/** Show code in an element, in colors as soon as that is possible. */
export function highlight(node: Element, text: string, language: string): void {
	latest.set(node, text);
	let colored = false;
	if (language && text.length <= MAX_HIGHLIGHTED)
		highlighter.use(({ tokens }) => {
			const root = latest.get(node) === text && tokens(text, language);
			if (root) keepEqual(node, nodesOf(root));
			colored = Boolean(root);
		});
	if (!colored) keepEqual(node, [text]);
}

function nodesOf(parent: Pick<Root, "children">): Node[] {
	return parent.children.flatMap((child): Node[] => {
		if (child.type === "text") return [new Text(child.value)];
		if (child.type !== "element") return [];
		const node = document.createElement("span");
		node.className = ((child.properties.className ?? []) as string[]).join(" ");
		node.append(...nodesOf(child));
		return [node];
	});
}

/** Show math in an element, which shows its source until then, and if it is wrong. */
export function renderMath(node: HTMLElement, text: string, display: boolean): void {
	mathRenderer.use(({ render }) => render(node, text, display));
}
