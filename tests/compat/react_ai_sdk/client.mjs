// assistant-ui on the AI SDK as a program: its chat runtime in a page of jsdom. Its threads and messages are the server's.

import { JSDOM } from 'jsdom';
import { carryOutCommands } from '../../e2e/clients/javascript/commands.mjs';

const [url] = process.argv.slice(2);
const { window } = new JSDOM('<body></body>', { url });
Object.assign(globalThis, { window, document: window.document });
const { createElement } = await import('react');
const { createRoot } = await import('react-dom/client');
const { AssistantRuntimeProvider, useRemoteThreadListRuntime } = await import('@assistant-ui/react');
const { AssistantChatTransport, useChatRuntime } = await import('@assistant-ui/react-ai-sdk');
const { lastAssistantMessageIsCompleteWithToolCalls } = await import('ai');

const TOOLS = {
  get_weather: {
    description: 'The weather in a city.',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
    execute: async () => 'sunny',
  },
};

const ROLES = { user: 'user', assistant: 'agent' };
const pages = new Map();

const pause = () => new Promise((resolve) => setTimeout(resolve, 5));

const text = (message) => message.content.map((part) => (part.type === 'text' ? part.text : '')).join('');

// The history of a thread: the server has it, so nothing is written.
const history = (id) => ({
  withFormat: () => ({
    load: async () => {
      const response = await fetch(`${url}/ai-sdk/${encodeURIComponent(id)}/messages`);
      const messages = await response.json();
      return { messages: messages.map((message, index) => ({ parentId: messages[index - 1]?.id ?? null, message })) };
    },
    append: async () => {},
    update: async () => {},
  }),
});

// A list of one thread, named as the conversation.
const threads = (id) => ({
  list: async () => ({ threads: [{ status: 'regular', remoteId: id }] }),
  fetch: async () => ({ status: 'regular', remoteId: id }),
  initialize: async () => ({ remoteId: id }),
  generateTitle: async () => new ReadableStream({ start: (controller) => controller.close() }),
});

async function open(id) {
  const page = {};
  const adapter = threads(id);
  const adapters = { history: history(id) };
  const transport = new AssistantChatTransport({ api: `${url}/ai-sdk` });
  const onError = (error) => (page.error = error);
  const sendAutomaticallyWhen = lastAssistantMessageIsCompleteWithToolCalls;
  function Page() {
    page.runtime = useRemoteThreadListRuntime({
      adapter,
      threadId: id,
      runtimeHook: () => useChatRuntime({ transport, adapters, onError, sendAutomaticallyWhen }),
    });
    return createElement(AssistantRuntimeProvider, { runtime: page.runtime });
  }
  page.root = createRoot(window.document.createElement('div'));
  page.root.render(createElement(Page));
  while (!page.runtime || page.runtime.threads.mainItem.getState().status !== 'regular') await pause();
  while (page.runtime.thread.getState().isLoading) await pause();
  pages.set(id, page);
  return page;
}

// Until the response to a message has ended, with the requests that follow its tool calls.
async function* send(page, prompt) {
  const { runtime } = page;
  const before = runtime.thread.getState().messages.length;
  runtime.thread.append(prompt);
  let shown;
  for (;;) {
    const { messages, isRunning } = runtime.thread.getState();
    const answer = messages[before + 1];
    if (answer && text(answer) !== shown) yield { message: { text: (shown = text(answer)) } };
    if (page.error) throw page.error;
    if (!isRunning && answer?.content.length && answer.content.at(-1).type !== 'tool-call') return;
    await pause();
  }
}

await carryOutCommands({
  stream: async function* ({ conversation, text: prompt }) {
    yield* send(pages.get(conversation) ?? (await open(conversation)), prompt);
  },
  call: async ({ conversation, text: prompt }) => {
    const page = await open(conversation);
    page.runtime.registerModelContextProvider({ getModelContext: () => ({ tools: TOOLS }) });
    let latest;
    for await (const event of send(page, prompt)) latest = event.message.text;
    return latest;
  },
  // As docs/ai-sdk.md describes it: stopping disconnects only.
  cancel: async ({ conversation }) => {
    pages.get(conversation).runtime.thread.cancelRun();
    await fetch(`${url}/ai-sdk/${encodeURIComponent(conversation)}/stream`, { method: 'DELETE' });
  },
  history: async ({ conversation }) =>
    pages.get(conversation).runtime.thread
      .getState()
      .messages.map((message) => ({ role: ROLES[message.role], text: text(message) })),
  reload: async ({ conversation }) => {
    pages.get(conversation).root.unmount();
    await open(conversation);
  },
});
