/** The message box: its text, files, and buttons. */
import { textOf } from "./blocks.ts";
import type { Branch, Part } from "./client.ts";
import { alarm, el, icon, slot } from "./dom.ts";
import { draftOf, isEmpty, isEqual, joined, withoutTask } from "./drafts.ts";
import type { Draft } from "./outgoing.ts";
import { fill, type Strings } from "./strings.ts";
import { TaskView } from "./task-view.ts";

const ATTACH = "M20 11l-8.5 8.5a5 5 0 0 1-7-7l9-9a3.3 3.3 0 0 1 4.7 4.7l-9 9a1.6 1.6 0 0 1-2.3-2.3l8-8";
const CUT = "M4 4l16 16M9 5a13 13 0 0 1 12 4M3 9a13 13 0 0 1 3-2M7 13a8 8 0 0 1 4-2M12 19h.01";
const SEND = "M12 19V5M6 11l6-6 6 6";
const STOP = "M7 7h10v10H7z";
const REMOVE = "M6 6l12 12M18 6L6 18";

/** The functions of the element that the message box calls. */
interface Actions {
	/** Send what the box contains. */
	submit(): unknown;
	stop(): unknown;
	cut(): unknown;
	/** Whether there is a message to edit. */
	editLast(): boolean;
}

/** Resolved when a file is read: its part is on the page before that. */
const reads = new WeakMap<Part, Promise<unknown>>();

export class Composer {
	readonly node: HTMLElement;
	readonly input: HTMLTextAreaElement;
	/** The message that is edited, or the task that the message replies to. */
	target?: Branch | TaskView;
	#files: Part[] = [];
	#aside?: Draft;
	/** The last message that was put into the box to be edited. */
	#edited?: Draft;
	/** Messages that were not sent, by conversation. */
	readonly #drafts = new Map<string, Draft>();
	readonly #problem = el("div");
	readonly #chips = el("div.row");
	readonly #picker: HTMLInputElement;
	readonly #send: HTMLElement;
	readonly #stop: HTMLElement;
	readonly #cut: HTMLElement;

	constructor(
		private readonly strings: Strings,
		private readonly actions: Actions,
		latest: HTMLElement,
	) {
		this.input = el("textarea", {
			rows: 1,
			"aria-label": strings.message,
			part: "input",
			onkeydown: (event: KeyboardEvent) => this.#key(event),
			oninput: () => this.#problem.replaceChildren(),
			onpaste: (event: ClipboardEvent) => this.#pasted(event),
		}) as HTMLTextAreaElement;
		this.#picker = el("input", { type: "file", multiple: true, hidden: true, onchange: () => this.#attach(this.#picker.files ?? []) }) as HTMLInputElement;
		this.#send = icon(strings.send, SEND, () => {}, { class: "icon main", type: "submit" });
		this.#stop = icon(strings.stop, STOP, () => actions.stop(), { class: "icon main stop", hidden: true });
		this.#cut = icon(strings.cut, CUT, () => actions.cut(), { class: "icon cut", hidden: true });
		const attach = icon(strings.attach, ATTACH, () => this.#picker.click());
		const tools = el("div.row", {}, attach, this.#picker, this.input, this.#cut, this.#stop, this.#send);
		const onsubmit = (event: Event) => (event.preventDefault(), actions.submit());
		const box = el("div.box", {}, this.#chips, tools);
		this.node = el("form.composer", { part: "composer", onsubmit }, latest, slot("composer-start"), this.#problem, box, slot("composer-end"));
	}

	/** Accept files that are dropped on an element. */
	acceptDrops(area: HTMLElement): void {
		const isFiles = ({ dataTransfer }: DragEvent) => Boolean(dataTransfer?.types.includes("Files"));
		const isText = (event: DragEvent) => event.target === this.input && !isFiles(event); // the browser inserts it
		area.ondragover = (event) => isText(event) || (event.preventDefault(), area.classList.toggle("over", isFiles(event)));
		area.ondragleave = () => area.classList.remove("over");
		area.ondrop = (event) => {
			if (isText(event)) return;
			event.preventDefault();
			area.classList.remove("over");
			this.#attach(event.dataTransfer?.files ?? []);
		};
	}

	/** Keep the message of a conversation that is left, and show that of the other one. */
	switchDraft(left: string, entered: string): void {
		this.#drafts.set(left, withoutTask(this.#draft));
		const draft = this.#drafts.get(entered);
		this.#drafts.delete(entered);
		this.#show(draft);
	}

	get #draft(): Draft {
		return { text: this.input.value, files: this.#files, target: this.target, aside: this.#aside };
	}

	#show({ text, files, target, aside }: Draft = { text: "", files: [] }): void {
		this.input.value = text;
		this.#files = files;
		this.target = target;
		this.#aside = aside;
		this.#drawFiles();
	}

	/** Empty the box, and return what it contained. */
	take(): Draft {
		const draft = this.#draft;
		this.discard();
		return draft;
	}

	/** Put a message that is not sent before what its conversation has in the box, or before its draft if another one is open. */
	putBack(draft: Draft, contextId: string, isOpen: boolean): void {
		const later = isOpen ? this.#draft : this.#drafts.get(contextId);
		// What was aside before an edit is no part of it.
		const whole = draft.aside || later?.target ? { ...draft, aside: isEmpty(later) ? undefined : later } : { ...joined([draft, later]), target: draft.target };
		if (isOpen) this.#show(whole);
		else this.#drafts.set(contextId, withoutTask(whole));
	}

	/** Wait until the files of a message are read. Rejects with words for the user, without the file that the browser cannot read. */
	async read({ files }: Draft): Promise<void> {
		for (const file of [...files]) {
			await reads.get(file)?.catch(() => {
				files.splice(files.indexOf(file), 1);
				throw this.#unreadable(file);
			});
		}
	}

	/** Show the message also in another conversation, when it is entered. */
	carry(contextId: string): void {
		this.#drafts.set(contextId, withoutTask({ ...this.#draft, target: undefined }));
	}

	/** Move the message to another conversation, above the one that is not sent there: this one is deleted. */
	move(contextId: string): void {
		this.#drafts.set(contextId, joined([this.#draft, this.#drafts.get(contextId)]));
		this.#show();
	}

	/** Move the focus to the message box, unless that would open the keyboard of a phone. */
	focus(): void {
		if (!matchMedia("(pointer: coarse)").matches) this.input.focus();
	}

	/** What the box contains. */
	get parts(): Part[] {
		return [...(this.input.value ? [{ text: this.input.value }] : []), ...this.#files];
	}

	/** Forget the messages that were not sent, except for these parts, which the box then contains. */
	forget(kept: Part[] = []): void {
		this.#drafts.clear();
		this.#show(draftOf(kept));
	}

	/** Show why the message is not sent. */
	refuse(reason: string): void {
		this.#problem.replaceChildren(alarm(reason));
	}

	/** Continue with the message of another message box. */
	takeOver(other: Composer): void {
		for (const [contextId, draft] of other.#drafts) this.#drafts.set(contextId, draft);
		this.#show(other.#draft);
	}

	/** Put a message into the box, to be changed and sent: before the branch, if there is one. A draft is put aside. */
	edit(parts: Part[], branch?: Branch): void {
		const draft = this.#draft;
		const aside = isEmpty(draft) || isEqual(draft, this.#edited) ? this.#aside : draft;
		this.#show({ ...draftOf(parts), target: branch, aside });
		this.#edited = { ...this.#draft, files: [...this.#files] };
		this.input.focus();
	}

	/** Address the message to a task that waits. An edited message is put aside. */
	reply(view: TaskView): void {
		const edits = this.target && !(this.target instanceof TaskView);
		this.#show(edits ? { text: "", files: [], target: view, aside: this.#draft } : { ...this.#draft, target: view });
		this.input.focus();
	}

	/** Empty the box, or show the draft that was put aside. */
	discard(): void {
		this.#show(this.#aside);
		this.input.focus();
	}

	/** Show the buttons for a response that is running, or the one to send. */
	set busy(busy: boolean) {
		if (!busy && this.node.querySelector(".stop:focus, .cut:focus")) this.focus(); // the button disappears
		this.#stop.hidden = this.#cut.hidden = !busy;
		this.#send.hidden = busy;
	}

	#key(event: KeyboardEvent): void {
		if (event.key === "Enter" && !event.shiftKey && !event.isComposing) event.preventDefault(), this.actions.submit();
		else if (event.key === "ArrowUp" && !this.parts.length && this.actions.editLast()) event.preventDefault();
	}

	#pasted(event: ClipboardEvent): void {
		const { clipboardData } = event;
		const files = clipboardData?.files ?? [];
		if (!clipboardData || !files.length || isPicturedText(clipboardData)) return;
		event.preventDefault();
		this.#attach(files);
	}

	#attach(files: Iterable<File>): void {
		for (const file of files) {
			const part: Part = { raw: "", filename: file.name, mediaType: file.type || "application/octet-stream" };
			const read = readBase64(file).then((raw) => (part.raw = raw));
			reads.set(part, read);
			read.catch(() => this.#refuseFile(part));
			this.#files.push(part);
		}
		this.#drawFiles();
		this.#picker.value = "";
	}

	/** Remove a file that cannot be read. */
	#refuseFile(file: Part): void {
		if (!this.#files.includes(file)) return; // of a message that waits for it, or of a draft
		this.#remove(file);
		this.refuse(this.#unreadable(file).message);
	}

	#unreadable(file: Part): Error {
		return new Error(fill(this.strings.unreadableFile, { name: file.filename }));
	}

	#remove(file: Part): void {
		this.#files = this.#files.filter((each) => each !== file);
		this.#drawFiles();
	}

	#drawFiles(): void {
		const { strings } = this;
		const remove = (file: Part) => {
			this.#remove(file);
			this.input.focus();
		};
		this.#problem.replaceChildren();
		const chips = this.#files.map((file) => el("span.badge", {}, file.filename ?? strings.file, icon(fill(strings.removeFile, { name: file.filename }), REMOVE, () => remove(file))));
		const { target } = this;
		if (target) {
			const replies = target instanceof TaskView;
			const label = replies ? fill(strings.repliedTask, { text: textOf(target.lastParts).slice(0, 60) }) : strings.editedMessage;
			chips.unshift(el("span.badge", {}, label, icon(replies ? strings.discardReply : strings.discardEdit, REMOVE, () => this.discard())));
		}
		this.#chips.replaceChildren(...chips);
	}
}

/**
 * Whether the clipboard has a text, and pictures of it, as from tables and documents. Pictures of web pages have a link or HTML without
 * text beside them, and files of a folder have their names.
 */
function isPicturedText(data: DataTransfer): boolean {
	const files = [...data.files];
	const text = data.getData("text/plain").trim();
	const html = data.getData("text/html");
	const words = html ? html.replace(/<!--[^]*?-->|<(style|title)[^]*?<\/\1>|<[^>]*>/gi, "").trim() : text.replace(/^\w+:\S+$/, "");
	return Boolean(text && words) && files.every(({ name, type }) => type.startsWith("image/") && !text.includes(name));
}

/** Read a file; rejects if the browser cannot. */
function readBase64(file: File): Promise<string> {
	return new Promise((resolve, reject) => {
		const reader = new FileReader();
		reader.onload = () => resolve(`${reader.result}`.split(",")[1] ?? "");
		reader.onerror = () => reject(reader.error);
		reader.readAsDataURL(file);
	});
}
