/** What to do with the contents of message boxes. */
import { isText, textOf } from "./blocks.ts";
import type { Part } from "./client.ts";
import type { Draft } from "./outgoing.ts";
import { TaskView } from "./task-view.ts";

export const draftOf = (parts: Part[]): Draft => ({ text: textOf(parts), files: parts.filter((part) => !isText(part)) });

/** A draft as it is kept: the tasks of a conversation that is opened again are others. */
export const withoutTask = ({ target, aside, ...draft }: Draft): Draft => ({
	...draft,
	target: target instanceof TaskView ? undefined : target,
	aside: aside && withoutTask(aside),
});

export const isEmpty = (draft?: Draft): boolean => !draft || !(draft.text || draft.files.length || draft.target instanceof TaskView);

/** Whether two drafts have the same text and files. */
export const isEqual = ({ text, files }: Draft, other?: Draft): boolean =>
	text === other?.text && files.length === other.files.length && files.every((file) => other.files.includes(file));

/** One draft of several, with what was put aside. */
export function joined(drafts: (Draft | undefined)[]): Draft {
	const all = drafts.flatMap(function each(draft?: Draft): Draft[] {
		return draft ? [draft, ...each(draft.aside)] : [];
	});
	return { text: all.map(({ text }) => text).filter(Boolean).join("\n\n"), files: all.flatMap(({ files }) => files) };
}
