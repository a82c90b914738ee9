// deep-chat's element as a program: in a page of jsdom, connected to the Responses API, with its messages in the page's storage.

import { JSDOM } from 'jsdom';
import { carryOutCommands } from '../../e2e/clients/javascript/commands.mjs';

const [url] = process.argv.slice(2);
const { window } = new JSDOM('<body></body>', { url, pretendToBeVisual: true });
for (const name of Object.getOwnPropertyNames(window)) if (!(name in globalThis)) globalThis[name] = window[name];
const { Event, CustomEvent } = window;
Object.assign(globalThis, { Event, CustomEvent, window, document: window.document, localStorage: window.localStorage });
window.fetch = fetch;
class Observer {
  observe() {}
  unobserve() {}
  disconnect() {}
}
Object.assign(globalThis, { ResizeObserver: Observer, IntersectionObserver: Observer });
Object.assign(window, { ResizeObserver: Observer, IntersectionObserver: Observer });
window.HTMLElement.prototype.scrollTo = () => {};
Object.defineProperty(window.HTMLElement.prototype, 'innerText', {
  get() {
    return this.textContent;
  },
  set(text) {
    this.textContent = text;
  },
});
await import('deep-chat');

const TOOLS = [
  {
    type: 'function',
    name: 'get_weather',
    description: 'The weather in a city.',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
];

const ROLES = { user: 'user', ai: 'agent' };
const pages = new Map();

async function open(conversation, { stream = true, tools } = {}) {
  const chat = window.document.createElement('deep-chat');
  const function_handler = (calls) => calls.map(() => ({ response: 'sunny' }));
  const options = tools ? { tools: TOOLS, function_handler } : {};
  chat.directConnection = { openAI: { key: 'none', chat: { model: 'tailrace', ...options } } };
  chat.connect = { url: `${url}/v1/responses`, stream, headers: { 'X-Conversation-Id': conversation } };
  chat.errorMessages = { displayServiceErrorMessages: true };
  chat.browserStorage = { key: conversation };
  chat.requestBodyLimits = { maxMessages: -1 };
  const page = { chat, ended: 0, errors: [] };
  chat.onMessage = ({ message }) => (page.ended += message.role === 'ai' ? 1 : 0);
  chat.onError = (error) => page.errors.push(String(error));
  await new Promise((resolve) => {
    chat.onComponentRender = resolve;
    window.document.body.append(chat);
  });
  pages.set(conversation, page);
  return page;
}

const pause = () => new Promise((resolve) => setTimeout(resolve, 5));

const text = (message) => message?.text ?? '';

async function* send(page, prompt) {
  const { chat } = page;
  const before = chat.getMessages().length;
  const ended = page.ended;
  page.errors.length = 0;
  chat.submitUserMessage({ text: prompt });
  let shown;
  for (;;) {
    const latest = text(chat.getMessages()[before + 1]);
    if (latest !== shown) yield { message: { text: (shown = latest) } };
    if (page.errors.length) throw new Error(page.errors[0]);
    if (page.ended > ended) return;
    await pause();
  }
}

async function last(events) {
  let latest;
  for await (const event of events) latest = event.message.text;
  return latest;
}

await carryOutCommands({
  stream: async function* ({ conversation, text: prompt }) {
    yield* send(pages.get(conversation) ?? (await open(conversation)), prompt);
  },
  ask: async ({ conversation, text: prompt }) => last(send(await open(conversation, { stream: false }), prompt)),
  call: async ({ conversation, text: prompt }) => last(send(await open(conversation, { tools: true }), prompt)),
  history: async ({ conversation }) =>
    pages.get(conversation).chat.getMessages().map((message) => ({ role: ROLES[message.role], text: text(message) })),
  reload: async ({ conversation }) => {
    pages.get(conversation).chat.remove();
    await open(conversation);
  },
});
