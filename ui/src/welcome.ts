/** The empty state: the agent, and examples of its skills. */
import type { AgentClient } from "./client.ts";
import { button, el, slot } from "./dom.ts";
import type { Strings } from "./strings.ts";

/** The element, as its empty state sees it. */
interface Owner {
	readonly client: AgentClient;
	readonly strings: Strings;
	readonly greeting: string | null;
	readonly suggestions: string | null;
}

/** `send` is called with the chosen suggestion. */
export function welcome(owner: Owner, title: string, send: (text: string) => unknown): HTMLElement {
	const { description, skills = [] } = owner.client.card;
	const given = owner.suggestions?.split("\n").map((each) => each.trim());
	const examples = (given ?? skills.flatMap((skill) => skill.examples ?? [])).filter(Boolean).slice(0, 4);
	const choices = examples.map((example) => button("suggestion", example, () => send(example)));
	const greeting = owner.greeting ?? (description || owner.strings.greeting);
	const usual = [el("h3", {}, title), el("p", {}, greeting)];
	return el("div.welcome", { part: "welcome" }, slot("welcome", ...usual), el("div.suggestions", {}, ...choices));
}

/** In place of a conversation that the agent does not have. */
export const unknownConversation = (strings: Strings, begin: () => unknown) =>
	el("div.welcome", {}, el("p", {}, strings.unknownConversation), button("small", strings.newConversation, begin));
