/** Error cards: the reason of a failure, and advice. */
import type { Metadata } from "./client.ts";
import { button, el } from "./dom.ts";
import { fill, type Strings } from "./strings.ts";

function advice(strings: Strings, { type, status, retryAfter }: Metadata, finishReason?: string): string {
	if (finishReason === "content_filter" || finishReason === "recitation") return strings.adviceFilter;
	if (retryAfter || status === 429) return retryAfter ? fill(strings.adviceBusySeconds, { seconds: Math.ceil(retryAfter) }) : strings.adviceBusy;
	if (status === 401 || status === 403) return strings.adviceKey;
	if (status === 404) return strings.adviceModel;
	if (status === 400 || status === 413 || status === 422) return strings.adviceRequest;
	if (type === "connection_failed") return strings.adviceConnection;
	if (type === "timeout") return strings.adviceTimeout;
	if (type === "stream_truncated") return strings.adviceTruncated;
	return strings.adviceOther;
}

/** The card of a failed task. */
export function failureCard(strings: Strings, reason: string, facts: Metadata, retry: () => void): HTMLElement {
	const { error = {}, finishReason } = facts;
	return el(
		"div.problem",
		{ role: "alert", part: "error" },
		el("b", {}, strings.failed),
		reason ? el("p", {}, reason) : "",
		el("p.dim", {}, advice(strings, error, finishReason)),
		el("div", {}, button("small", strings.tryAgain, retry)),
	);
}
