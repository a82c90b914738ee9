/** Error cards: the reason of a failure, and advice. */
import type { Metadata } from "./client.ts";
import { button, el } from "./dom.ts";

function advice({ type, status, retryAfter }: Metadata, finishReason?: string): string {
	if (finishReason === "content_filter" || finishReason === "recitation") return "The provider's filter stopped the response. Change the question.";
	if (retryAfter || status === 429) return `The model has too many requests. Try again ${retryAfter ? `in ${Math.ceil(retryAfter)} seconds` : "in a minute"}.`;
	if (status === 401 || status === 403) return "The model's provider refused the key of the server. Check the key in the server's settings.";
	if (status === 404) return "The provider does not know the model. Check its name in the server's settings.";
	if (status === 400 || status === 413 || status === 422) return "The provider refused the request. Shorten it or remove attachments, or begin a new conversation.";
	if (type === "connection_failed") return "The server cannot reach the model. Check that it runs, and its address in the server's settings.";
	if (type === "timeout") return "The model did not respond in time. Try again, or ask for less.";
	if (type === "stream_truncated") return "The connection to the model broke off; the text so far is above. Try again.";
	return "Try again. If it fails again, the server's log has the details.";
}

/** The card of a failed task. */
export function failureCard(reason: string, facts: Metadata, retry: () => void): HTMLElement {
	const { error = {}, finishReason } = facts;
	return el(
		"div.problem",
		{ role: "alert", part: "error" },
		el("b", {}, "The response failed"),
		reason ? el("p", {}, reason) : "",
		el("p.dim", {}, advice(error, finishReason)),
		el("div", {}, button("small", "Try again", retry)),
	);
}
