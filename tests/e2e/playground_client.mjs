/** Uses the chat's client in Node or Deno: `node playground_client.mjs MODULE URL`; prints a JSON object with what it received. */
import assert from "node:assert/strict";

const [module, url] = process.argv.slice(2);
const { AgentClient, AgentError } = await import(module);

const textOf = (parts = []) => parts.map((part) => part.text ?? "").join("");

async function read(stream) {
	const seen = { text: "", numbers: [], requests: [], states: [] };
	for await (const event of stream) {
		if (event.type === "artifact") seen.text = (event.artifact.append ? seen.text : "") + textOf(event.artifact.artifact.parts);
		if (event.type === "task") seen.text = textOf((event.task.artifacts ?? []).flatMap((artifact) => artifact.parts));
		if (event.type === "connection" && event.state === "request") seen.requests.push(event.method);
		else if (event.type !== "connection") seen.numbers.push(event.number);
		if (event.type === "status") seen.states.push(event.status.status.state);
	}
	return seen;
}

const client = new AgentClient(url);
const card = await client.readCard();
const sent = await read(client.send([{ text: "words" }]));
const task = await client.createTask([{ text: "words" }]);
const subscribed = await read(client.subscribe(task.id));
const again = await read(client.subscribe(task.id, { after: 3 }));

const slow = client.send([{ text: "endless" }]);
let canceled = false;
for await (const event of slow) {
	if (event.type !== "artifact" || canceled) continue;
	canceled = true;
	await client.cancel(slow.taskId);
}

const left = client.send([{ text: "endless" }]);
for await (const event of left) if (event.type === "artifact") break; // leaving does not cancel
const state = (await client.getTask(left.taskId)).status.state;
await client.cancel(left.taskId);

await assert.rejects(client.getTask("unknown"), AgentError);
const { tasks } = await client.listTasks({ contextId: task.contextId });
const conversation = await client.conversation(task.contextId);

const firstPage = await client.listConversations({ pageSize: 1 });
const nextPage = await client.listConversations({ pageSize: 1, pageToken: firstPage.nextPageToken });
assert(firstPage.conversations[0].updateTime > nextPage.conversations[0].updateTime);
const renamed = await client.renameConversation(task.contextId, "Renamed");
const { conversations } = await client.listConversations({ query: "RENAMED", relatedTo: task.contextId });
assert.deepEqual(conversations, [renamed]);
await client.deleteConversation(task.contextId);
assert.deepEqual(await client.listConversations({ relatedTo: task.contextId }), { conversations: [] });
await assert.rejects(client.renameConversation("unknown", ""), { code: -32001 });
await assert.rejects(client.call("ListNothing", {}), { code: -32601, retryable: false });
console.log(
	JSON.stringify({
		card: card.name,
		sent,
		subscribed,
		again,
		canceled: slow.state,
		left: state,
		tasks: tasks.length,
		titles: [...firstPage.conversations, ...nextPage.conversations, renamed].map(({ title }) => title),
		roles: conversation.map(({ role }) => role),
	}),
);
