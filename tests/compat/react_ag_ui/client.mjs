// assistant-ui on AG-UI as a program: the hook in a page of jsdom, with its history in a Map that stands for a database.

import { JSDOM } from 'jsdom';
import { carryOutCommands } from '../../e2e/clients/javascript/commands.mjs';

const [url] = process.argv.slice(2);
const { window } = new JSDOM('<body></body>', { url });
Object.assign(globalThis, { window, document: window.document });
const { createElement } = await import('react');
const { createRoot } = await import('react-dom/client');
const { HttpAgent } = await import('@ag-ui/client');
const { AssistantRuntimeProvider } = await import('@assistant-ui/react');
const { useAgUiRuntime } = await import('@assistant-ui/react-ag-ui');

const TOOLS = {
  get_weather: {
    description: 'The weather in a city.',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
    execute: async () => 'sunny',
  },
};

const EXTENSION = 'urn:tailrace:ext:stream:v1';

const ROLES = { user: 'user', assistant: 'agent' };
// The runtime reports an error of a run to the page and rejects as well, which a browser only logs.
process.on('unhandledRejection', () => {});

const stored = new Map();
const pages = new Map();

const pause = () => new Promise((resolve) => setTimeout(resolve, 5));

const text = (message) => message.content.map((part) => (part.type === 'text' ? part.text : '')).join('');

async function open(threadId) {
  const items = stored.get(threadId) ?? [];
  stored.set(threadId, items);
  const page = {};
  const agent = new HttpAgent({ url: `${url}/ag-ui`, threadId });
  agent.subscribe({ onRunStartedEvent: ({ event }) => void (page.task = event.metadata[EXTENSION].taskId) });
  const history = {
    load: async () => ({ headId: items.at(-1)?.message.id ?? null, messages: [...items] }),
    append: async (item) => void items.push(structuredClone(item)),
    update: async (item) => {
      items[items.findIndex(({ message }) => message.id === item.message.id)] = structuredClone(item);
    },
  };
  const onError = (error) => (page.error = error);
  function Page() {
    page.runtime = useAgUiRuntime({ agent, onError, adapters: { history } });
    return createElement(AssistantRuntimeProvider, { runtime: page.runtime });
  }
  page.root = createRoot(window.document.createElement('div'));
  page.root.render(createElement(Page));
  while (!page.runtime) await pause();
  while (page.runtime.thread.getState().messages.length < items.length) await pause();
  pages.set(threadId, page);
  return page;
}

// Until the response to a message has ended, with the runs that follow its tool calls.
async function* send(page, prompt) {
  const { runtime } = page;
  const before = runtime.thread.getState().messages.length;
  runtime.thread.append(prompt);
  let shown;
  for (;;) {
    const { messages, isRunning } = runtime.thread.getState();
    const answer = messages.slice(before + 1).at(-1);
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
  // As docs/ag-ui.md describes it: stopping disconnects only.
  cancel: async ({ conversation }) => {
    const { runtime, task } = pages.get(conversation);
    runtime.thread.cancelRun();
    await fetch(`${url}/tasks/${task}:cancel`, { method: 'POST', headers: { 'A2A-Version': '1.0' } });
  },
  history: async ({ conversation }) =>
    stored.get(conversation).map(({ message }) => ({ role: ROLES[message.role], text: text(message) })),
  reload: async ({ conversation }) => {
    pages.get(conversation).root.unmount();
    await open(conversation);
  },
});
