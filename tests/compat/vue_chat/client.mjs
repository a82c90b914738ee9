// The AI SDK's `Chat` for Vue as a program. The server stores its messages.

import { Chat } from '@ai-sdk/vue';
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithToolCalls } from 'ai';
import { carryOutCommands } from '../../e2e/clients/javascript/commands.mjs';

const [url] = process.argv.slice(2);

const TOOLS = {
  get_weather: {
    description: 'The weather in a city.',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
};

const ROLES = { user: 'user', assistant: 'agent' };
const chats = new Map();

const pause = () => new Promise((resolve) => setTimeout(resolve, 5));

const text = (message) => message.parts.map((part) => (part.type === 'text' ? part.text : '')).join('');

async function open(id, tools) {
  const response = await fetch(`${url}/ai-sdk/${encodeURIComponent(id)}/messages`);
  const chat = new Chat({
    id,
    messages: await response.json(),
    transport: new DefaultChatTransport({ api: `${url}/ai-sdk`, body: tools ? { tools: TOOLS } : {} }),
    onToolCall: ({ toolCall: { toolName: tool, toolCallId } }) => {
      chat.addToolOutput({ tool, toolCallId, output: 'sunny' });
    },
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls,
  });
  chats.set(id, chat);
  return chat;
}

// Until the response to a message has ended, with the requests that follow its tool calls.
async function* send(chat, prompt) {
  const before = chat.messages.length;
  let sent = false;
  chat.sendMessage({ text: prompt }).then(() => (sent = true));
  let shown;
  for (;;) {
    const over = sent && chat.status === 'ready'; // the text below is the last one then
    const latest = chat.messages[before + 1];
    if (latest && text(latest) !== shown) yield { message: { text: (shown = text(latest)) } };
    if (chat.error) throw chat.error;
    if (over) return;
    await pause();
  }
}

await carryOutCommands({
  stream: async function* ({ conversation, text: prompt }) {
    yield* send(chats.get(conversation) ?? (await open(conversation)), prompt);
  },
  call: async ({ conversation, text: prompt }) => {
    let latest;
    for await (const event of send(await open(conversation, true), prompt)) latest = event.message.text;
    return latest;
  },
  // As docs/ai-sdk.md describes it: `stop` disconnects only.
  cancel: async ({ conversation }) => {
    await chats.get(conversation).stop();
    await fetch(`${url}/ai-sdk/${encodeURIComponent(conversation)}/stream`, { method: 'DELETE' });
  },
  history: async ({ conversation }) =>
    chats.get(conversation).messages.map((message) => ({ role: ROLES[message.role], text: text(message) })),
  reload: async ({ conversation }) => void (await open(conversation)),
});
