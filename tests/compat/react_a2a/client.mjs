// assistant-ui's runtime for A2A as a program: the hook in a page of jsdom, with its history in a Map that stands for a database.

import { JSDOM } from 'jsdom';
import { carryOutCommands } from '../../e2e/clients/javascript/commands.mjs';

const [url] = process.argv.slice(2);
const { window } = new JSDOM('<div></div>', { url });
Object.assign(globalThis, { window, document: window.document });
const { createElement } = await import('react');
const { createRoot } = await import('react-dom/client');
const { useA2ARuntime } = await import('@assistant-ui/react-a2a');
const { ArtifactClient } = await import('./artifact_client.mjs');

const ROLES = { user: 'user', assistant: 'agent' };
const stored = new Map();
const pages = new Map();

// A page with the hook: its root, and the newest runtime.
function open(conversation) {
  const items = stored.get(conversation) ?? [];
  stored.set(conversation, items);
  const page = { errors: [] };
  const client = new ArtifactClient({ baseUrl: url });
  const getAgentCard = client.getAgentCard.bind(client);
  client.getAgentCard = () => (page.card = getAgentCard());
  const history = {
    load: async () => ({ headId: items.at(-1)?.message.id ?? null, messages: [...items] }),
    append: async (item) => void items.push(structuredClone(item)),
  };
  const contextId = conversation;
  const onError = (error) => page.errors.push(error.message);
  function Page() {
    page.runtime = useA2ARuntime({ client, contextId, onError, adapters: { history } });
    return null;
  }
  page.root = createRoot(window.document.createElement('div'));
  page.root.render(createElement(Page));
  pages.set(conversation, page);
  return page;
}

const pause = () => new Promise((resolve) => setTimeout(resolve, 5));

// Until the page has the card and its history, which it loads together: they replace its messages.
async function ready(conversation) {
  const page = pages.get(conversation) ?? open(conversation);
  while (!page.card) await pause();
  await page.card;
  await pause(); // what waits for the card has run then
  return page;
}

const text = (message) => message.content.map((part) => part.text ?? '').join('');

await carryOutCommands({
  stream: async function* ({ conversation, text: prompt }) {
    const page = await ready(conversation);
    const { thread } = page.runtime;
    const before = thread.getState().messages.length;
    thread.append({ role: 'user', content: [{ type: 'text', text: prompt }] });
    let shown;
    for (;;) {
      const { messages, isRunning } = thread.getState();
      const answer = messages[before + 1];
      if (answer && text(answer) !== shown) yield { message: { text: (shown = text(answer)) } };
      if (answer && !isRunning) return;
      await pause();
    }
  },
  cancel: async ({ conversation }) => pages.get(conversation).runtime.thread.cancelRun(),
  history: async ({ conversation }) =>
    stored.get(conversation).map(({ message }) => ({ role: ROLES[message.role], text: text(message) })),
  reload: async ({ conversation }) => {
    pages.get(conversation).root.unmount();
    pages.delete(conversation);
  },
});
