// The official JavaScript SDK of A2A 1.0 as a program: its client. It stores nothing; its history is that of the server's tasks.

import { randomUUID } from 'node:crypto';
import { Message, Task, TaskState } from '@a2a-js/sdk';
import { ClientFactory } from '@a2a-js/sdk/client';
import { carryOutCommands } from '../../e2e/clients/javascript/commands.mjs';

const [url] = process.argv.slice(2);
const client = await new ClientFactory().createFromUrl(url);

const tasks = new Map();
const add = (conversation, id) => {
  const known = tasks.get(conversation) ?? [];
  if (!known.includes(id)) tasks.set(conversation, [...known, id]);
};

const request = (contextId, part, taskId = '') => ({
  tenant: '',
  message: Message.fromJSON({ messageId: randomUUID(), role: 'ROLE_USER', parts: [part], contextId, taskId }),
  configuration: undefined,
  metadata: undefined,
});

const text = (holder) =>
  (holder?.parts ?? []).map(({ content }) => (content?.$case === 'text' ? content.value : '')).join('');
const answer = (task) => task.artifacts.map(text).join('');

async function send(conversation, part, task) {
  const sent = await client.sendMessage(request(conversation, part, task));
  add(conversation, sent.id);
  return sent;
}

await carryOutCommands({
  // The text of the artifacts so far, as the specification adds up their chunks.
  stream: async function* ({ conversation, text: prompt }) {
    const artifacts = new Map();
    for await (const { payload } of client.sendMessageStream(request(conversation, { text: prompt }))) {
      const { $case: kind, value } = payload;
      if (kind === 'task') {
        add(conversation, value.id);
        for (const artifact of value.artifacts) artifacts.set(artifact.artifactId, text(artifact));
      } else if (kind === 'artifactUpdate') {
        const { artifactId } = value.artifact;
        const before = value.append ? (artifacts.get(artifactId) ?? '') : '';
        artifacts.set(artifactId, before + text(value.artifact));
      } else if (kind === 'statusUpdate' && value.status.state === TaskState.TASK_STATE_FAILED) {
        throw new Error(text(value.status.message));
      }
      yield { message: { text: [...artifacts.values()].join('') } };
    }
  },
  ask: async ({ conversation, text: prompt }) => answer(await send(conversation, { text: prompt })),
  // The client returns the tool's result to the task that requires it.
  call: async ({ conversation, text: prompt }) => {
    const task = await send(conversation, { text: prompt });
    const { parts } = Task.toJSON(task).status.message;
    const [{ call_id, name }] = parts.find((part) => part.data).data.tool_calls;
    const data = { tool_results: [{ call_id, name, output: 'sunny' }] };
    return answer(await send(conversation, { data }, task.id));
  },
  cancel: async ({ conversation }) =>
    void (await client.cancelTask({ tenant: '', id: tasks.get(conversation).at(-1), metadata: undefined })),
  history: async ({ conversation }) => {
    const messages = [];
    for (const id of tasks.get(conversation)) {
      const task = await client.getTask({ tenant: '', id, historyLength: undefined });
      messages.push({ role: 'user', text: text(task.history[0]) }, { role: 'agent', text: answer(task) });
    }
    return messages;
  },
});
