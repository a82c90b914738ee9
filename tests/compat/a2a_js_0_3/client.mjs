// The official JavaScript SDK of A2A 0.3 as a program: its client. It stores nothing; its history is that of the server's tasks.

import { randomUUID } from 'node:crypto';
import { ClientFactory } from '@a2a-js/sdk/client';
import { carryOutCommands } from '../../e2e/clients/javascript/commands.mjs';

const [url] = process.argv.slice(2);
const client = await new ClientFactory().createFromUrl(url);

const tasks = new Map();
const add = (conversation, id) => {
  const known = tasks.get(conversation) ?? [];
  if (!known.includes(id)) tasks.set(conversation, [...known, id]);
};

const request = (contextId, part, taskId) => ({
  message: { kind: 'message', messageId: randomUUID(), role: 'user', parts: [part], contextId, taskId },
});

const text = (holder) => holder.parts.map((part) => part.text ?? '').join('');
const answer = (task) => (task.artifacts ?? []).map(text).join('');

async function send(conversation, part, task) {
  const sent = await client.sendMessage(request(conversation, part, task));
  add(conversation, sent.id);
  return sent;
}

await carryOutCommands({
  // The text of the artifacts so far, as the specification adds up their chunks.
  stream: async function* ({ conversation, text: prompt }) {
    const artifacts = new Map();
    for await (const event of client.sendMessageStream(request(conversation, { kind: 'text', text: prompt }))) {
      if (event.kind === 'task') {
        add(conversation, event.id);
        for (const artifact of event.artifacts ?? []) artifacts.set(artifact.artifactId, text(artifact));
      } else if (event.kind === 'artifact-update') {
        const { artifactId } = event.artifact;
        const before = event.append ? (artifacts.get(artifactId) ?? '') : '';
        artifacts.set(artifactId, before + text(event.artifact));
      } else if (event.status.state === 'failed') {
        throw new Error(text(event.status.message));
      }
      yield { message: { text: [...artifacts.values()].join('') } };
    }
  },
  ask: async ({ conversation, text: prompt }) => answer(await send(conversation, { kind: 'text', text: prompt })),
  // The client returns the tool's result to the task that requires it.
  call: async ({ conversation, text: prompt }) => {
    const task = await send(conversation, { kind: 'text', text: prompt });
    const [{ call_id, name }] = task.status.message.parts.find((part) => part.kind === 'data').data.tool_calls;
    const data = { tool_results: [{ call_id, name, output: 'sunny' }] };
    return answer(await send(conversation, { kind: 'data', data }, task.id));
  },
  cancel: async ({ conversation }) => void (await client.cancelTask({ id: tasks.get(conversation).at(-1) })),
  history: async ({ conversation }) => {
    const messages = [];
    for (const id of tasks.get(conversation)) {
      const task = await client.getTask({ id });
      messages.push({ role: 'user', text: text(task.history[0]) }, { role: 'agent', text: answer(task) });
    }
    return messages;
  },
});
