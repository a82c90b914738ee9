/** Syntax highlighting: highlight.js, as a tree in place of HTML. Loaded with the first code block that names a language. */
import { common, createLowlight } from "lowlight";

export type Root = ReturnType<typeof lowlight.highlight>;

const lowlight = createLowlight(common);

/** The tokens of a code; undefined for an unknown language. */
export function tokens(text: string, language: string): Root | undefined {
	const name = language.toLowerCase();
	return lowlight.registered(name) ? lowlight.highlight(name, text) : undefined;
}
