// CopilotKit as a program: its runtime with the agent over AG-UI, and its React hooks in a page of jsdom.

import { createServer } from 'node:http';
import { registerHooks } from 'node:module';
import { JSDOM } from 'jsdom';
import { carryOutCommands } from '../../e2e/clients/javascript/commands.mjs';

process.env.COPILOTKIT_TELEMETRY_DISABLED = 'true';
console.log = console.info = console.warn = () => {}; // the commands use the standard output

// As a bundler does: the package imports its styles.
registerHooks({
  load: (path, context, load) =>
    path.endsWith('.css') ? { format: 'module', source: '', shortCircuit: true } : load(path, context),
});

const [url] = process.argv.slice(2);
const { HttpAgent } = await import('@ag-ui/client');
const { CopilotRuntime, InMemoryAgentRunner } = await import('@copilotkit/runtime/v2');
const { createCopilotNodeListener } = await import('@copilotkit/runtime/v2/node');

const runtime = new CopilotRuntime({
  agents: { default: new HttpAgent({ url: `${url}/ag-ui` }) },
  runner: new InMemoryAgentRunner(),
});
const server = createServer(createCopilotNodeListener({ runtime, basePath: '/api/copilotkit' }));
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
const runtimeUrl = `http://127.0.0.1:${server.address().port}/api/copilotkit`;

const { window } = new JSDOM('<body></body>', { url: runtimeUrl });
for (const name of Object.getOwnPropertyNames(window)) if (!(name in globalThis)) globalThis[name] = window[name];
Object.assign(globalThis, { window, document: window.document });
window.fetch = fetch;
const { createElement } = await import('react');
const { createRoot } = await import('react-dom/client');
const { CopilotKitProvider, useAgent, useCopilotKit, useFrontendTool } = await import('@copilotkit/react-core/v2');
const { z } = await import('zod');

const EXTENSION = 'urn:tailrace:ext:stream:v1';

const ROLES = { user: 'user', assistant: 'agent' };
const pages = new Map();

const pause = () => new Promise((resolve) => setTimeout(resolve, 5));

// A page with the hooks, connected to its thread.
async function open(threadId, hasTool) {
  const page = {};
  function Tool() {
    useFrontendTool({
      name: 'get_weather',
      description: 'The weather in a city.',
      parameters: z.object({ city: z.string() }),
      handler: async () => 'sunny',
    });
    return null;
  }
  function Page() {
    Object.assign(page, useAgent({ agentId: `page ${threadId}`, runtimeAgentId: 'default', threadId }), useCopilotKit());
    return hasTool ? createElement(Tool) : null;
  }
  const onError = ({ error }) => (page.error = error);
  page.root = createRoot(window.document.createElement('div'));
  page.root.render(createElement(CopilotKitProvider, { runtimeUrl, onError }, createElement(Page)));
  while (!page.isReady || page.agent.threadId !== threadId) await pause();
  page.agent.subscribe({ onRunStartedEvent: ({ event }) => void (page.task = event.metadata[EXTENSION].taskId) });
  await page.copilotkit.connectAgent({ agent: page.agent });
  pages.set(threadId, page);
  return page;
}

const text = (message) => message?.content ?? '';

async function* send(page, prompt) {
  const { agent, copilotkit } = page;
  agent.addMessage({ id: crypto.randomUUID(), role: 'user', content: prompt });
  const before = agent.messages.length;
  let shown, ended;
  copilotkit.runAgent({ agent }).then(() => (ended = true), (error) => (page.error = error));
  for (;;) {
    const answer = agent.messages.slice(before).filter((message) => message.role === 'assistant').at(-1);
    if (answer && text(answer) !== shown) yield { message: { text: (shown = text(answer)) } };
    if (page.error) throw page.error;
    if (ended) return;
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
  // As docs/ag-ui.md describes it: stopping disconnects only.
  cancel: async ({ conversation }) => {
    const { agent, copilotkit, task } = pages.get(conversation);
    copilotkit.stopAgent({ agent });
    await fetch(`${url}/tasks/${task}:cancel`, { method: 'POST', headers: { 'A2A-Version': '1.0' } });
  },
  history: async ({ conversation }) =>
    pages.get(conversation).agent.messages.map((message) => ({ role: ROLES[message.role], text: text(message) })),
  // The runtime has the messages.
  reload: async ({ conversation }) => {
    pages.get(conversation).root.unmount();
    await open(conversation);
  },
});
