// The AI SDK's `useChat` as a program: the hook in a page of jsdom. The server stores its messages.

import { JSDOM } from 'jsdom';
import { carryOutCommands } from '../../e2e/clients/javascript/commands.mjs';

const [url] = process.argv.slice(2);
const { window } = new JSDOM('<body></body>', { url });
Object.assign(globalThis, { window, document: window.document });
const { createElement } = await import('react');
const { createRoot } = await import('react-dom/client');
const { useChat } = await import('@ai-sdk/react');
const { DefaultChatTransport, lastAssistantMessageIsCompleteWithToolCalls } = await import('ai');

const TOOLS = {
  get_weather: {
    description: 'The weather in a city.',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
};

const ROLES = { user: 'user', assistant: 'agent' };
const pages = new Map();

const pause = () => new Promise((resolve) => setTimeout(resolve, 5));

const text = (message) => message.parts.map((part) => (part.type === 'text' ? part.text : '')).join('');

// A page with the hook; its property `chat` is the result of the newest rendering.
async function open(id, tools) {
  const response = await fetch(`${url}/ai-sdk/${encodeURIComponent(id)}/messages`);
  const messages = await response.json();
  const transport = new DefaultChatTransport({ api: `${url}/ai-sdk`, body: tools ? { tools: TOOLS } : {} });
  const page = {};
  function Page() {
    page.chat = useChat({
      id,
      messages,
      transport,
      resume: true,
      onToolCall: ({ toolCall: { toolName: tool, toolCallId } }) => {
        page.chat.addToolOutput({ tool, toolCallId, output: 'sunny' });
      },
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls,
    });
    return null;
  }
  page.root = createRoot(window.document.createElement('div'));
  page.root.render(createElement(Page));
  while (page.chat === undefined) await pause();
  pages.set(id, page);
  return page;
}

// Until the response to a message has ended, with the requests that follow its tool calls.
async function* send(page, prompt) {
  const before = page.chat.messages.length;
  let sent = false;
  page.chat.sendMessage({ text: prompt }).then(() => (sent = true));
  let shown;
  for (;;) {
    const { messages, status, error } = page.chat;
    const latest = messages[before + 1];
    if (latest && text(latest) !== shown) yield { message: { text: (shown = text(latest)) } };
    if (error) throw error;
    if (sent && status === 'ready') return;
    await pause();
  }
}

await carryOutCommands({
  stream: async function* ({ conversation, text: prompt }) {
    yield* send(pages.get(conversation) ?? (await open(conversation)), prompt);
  },
  call: async ({ conversation, text: prompt }) => {
    let latest;
    for await (const event of send(await open(conversation, true), prompt)) latest = event.message.text;
    return latest;
  },
  // As docs/ai-sdk.md describes it: `stop` disconnects only.
  cancel: async ({ conversation }) => {
    await pages.get(conversation).chat.stop();
    await fetch(`${url}/ai-sdk/${encodeURIComponent(conversation)}/stream`, { method: 'DELETE' });
  },
  history: async ({ conversation }) =>
    pages.get(conversation).chat.messages.map((message) => ({ role: ROLES[message.role], text: text(message) })),
  reload: async ({ conversation }) => {
    pages.get(conversation).root.unmount();
    await open(conversation);
  },
});
