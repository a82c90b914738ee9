/** <tailrace-chat> as a React component, for React 18 and 19. */
import { createElement, type CSSProperties, forwardRef, type ReactNode, useImperativeHandle, useLayoutEffect, useRef } from "react";

import type { TailraceChat as Element } from "./chat.ts";
import type { Metadata, Token } from "./client.ts";
import type { ChatEvents } from "./events.ts";
import type { Strings } from "./strings.ts";

export interface TailraceChatProps {
	agent?: string;
	avatars?: string;
	context?: string;
	greeting?: string;
	heading?: string;
	hide?: string;
	placeholder?: string;
	suggestions?: string;
	theme?: "light" | "dark";
	token?: Token;
	headers?: Record<string, string>;
	request?: Metadata;
	/** Texts in place of the English ones; keep the object between renderings, because a new one draws the chat again. */
	strings?: Partial<Strings>;
	onConversationChange?: (detail: ChatEvents["conversationchange"]) => void;
	onMessageSend?: (detail: ChatEvents["messagesend"]) => void;
	onTextDelta?: (detail: ChatEvents["textdelta"]) => void;
	onTaskState?: (detail: ChatEvents["taskstate"]) => void;
	onChatError?: (detail: ChatEvents["chaterror"]) => void;
	className?: string;
	style?: CSSProperties;
	/** Content of slots: elements with a `slot` attribute. */
	children?: ReactNode;
}

/** Load the element in the browser: a server that renders the page has no elements. */
const defined = () => import("./chat.ts");

/** The chat. The ref is the element, with its methods. */
export const TailraceChat = forwardRef<Element, TailraceChatProps>(function TailraceChat(props, ref) {
	const { token, headers, request, strings, children, className, style, ...rest } = props;
	const node = useRef<Element>(null);
	const latest = useRef(props);
	latest.current = props;
	useImperativeHandle(ref, () => node.current!, []);
	useLayoutEffect(() => {
		const chat = node.current!;
		defined().then(() => {
			if (token !== undefined) chat.token = token;
			if (headers) chat.headers = headers;
			if (request) chat.request = request;
		});
	}, [token, headers, request]);
	useLayoutEffect(() => {
		const chat = node.current!;
		if (strings) defined().then(() => (chat.strings = strings));
	}, [strings]);
	useLayoutEffect(() => {
		const chat = node.current!;
		const listeners = Object.entries(rest)
			.filter(([name]) => name.startsWith("on"))
			.map(([name]) => [name.slice(2).toLowerCase(), (event: Event) => (latest.current as any)[name]?.((event as CustomEvent).detail)] as const);
		for (const [name, listener] of listeners) chat.addEventListener(name, listener);
		return () => {
			for (const [name, listener] of listeners) chat.removeEventListener(name, listener);
		};
	}, [Object.keys(rest).join()]);
	const attributes = Object.fromEntries(Object.entries(rest).filter(([name]) => !name.startsWith("on")));
	return createElement("tailrace-chat", { ...attributes, class: className, style, ref: node }, children);
});
