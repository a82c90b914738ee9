/** Math: TeX as MathML, which browsers draw without fonts or styles of ours. Loaded with the first formula. */
import temml from "temml";

/** Replace the content of an element. A formula with an error stays as it is. */
export function render(node: HTMLElement, text: string, display: boolean): void {
	const shown = document.createElement("span");
	try {
		temml.render(text, shown, { displayMode: display, throwOnError: true, maxSize: [50, 100], maxExpand: 200 });
	} catch {
		return;
	}
	const formula = shown.querySelector("math");
	formula?.setAttribute("alttext", text);
	if (formula) node.replaceChildren(formula);
}
