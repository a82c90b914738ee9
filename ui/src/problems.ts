/** Error cards: the reason of a failure, and advice. */
import { AgentError, type Metadata } from "./client.ts";
import { alarm, button, el } from "./dom.ts";
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
	// The advice about a refused key is the reason, and nothing changes by trying again.
	const isRefused = error.status === 401 || error.status === 403;
	return el(
		"div.problem",
		{ role: "alert", part: "error" },
		el("b", {}, strings.failed),
		reason && !isRefused ? el("p", {}, reason) : "",
		el("p.dim", {}, advice(strings, error, finishReason)),
		isRefused ? "" : el("div", {}, button("small", strings.tryAgain, retry)),
	);
}

/** Whether the agent may respond to another attempt: it was not reached, or is busy. */
export const mayPass = (error: Error): boolean => !(error instanceof AgentError) || error.retryable || error.status === 429;

/** Why a request failed; with a button to try again, if that may help. */
export function requestProblem(strings: Strings, error: Error, again: () => unknown): HTMLElement {
	const status = error instanceof AgentError ? error.status : 0;
	if (status === 413) return alarm(strings.tooLarge);
	if (status === 401) return alarm(strings.tokenRequired);
	return alarm(error.message, " ", button("small", strings.tryAgain, again));
}
