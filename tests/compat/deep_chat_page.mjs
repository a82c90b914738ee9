// What the programs with deep-chat's element have in common: a page of jsdom, with the messages in the page's storage.

import { carryOutCommands } from '../e2e/clients/javascript/commands.mjs';

// Makes the globals of a page, before deep-chat is imported.
export function preparePage(JSDOM, url) {
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
  return window;
}

const ROLES = { user: 'user', ai: 'agent' };

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
    const over = page.ended > ended; // the text below is the last one then
    const latest = text(chat.getMessages()[before + 1]);
    if (latest !== shown) yield { message: { text: (shown = latest) } };
    if (page.errors.length) throw new Error(page.errors[0]);
    if (over) return;
    await pause();
  }
}

async function last(events) {
  let latest;
  for await (const event of events) latest = event.message.text;
  return latest;
}

// `configure` connects an element to a conversation; `operations` are those of the program beside the common ones.
export function runPages(window, configure, operations = () => ({})) {
  const pages = new Map();
  async function open(conversation, options = {}) {
    const chat = window.document.createElement('deep-chat');
    configure(chat, conversation, options);
    chat.errorMessages = { displayServiceErrorMessages: true };
    chat.browserStorage = { key: conversation };
    const page = { chat, ended: 0, errors: [] };
    chat.onMessage = ({ message }) => (page.ended += message.role === 'ai' ? 1 : 0);
    chat.onError = (error) => page.errors.push(String(error));
    await new Promise((resolve) => {
      chat.onComponentRender = resolve;
      window.document.body.append(chat);
    });
    // On a busy machine, the element renders twice: after 20 ms, and in a timer that it starts again while its properties
    // change. The second render replaces the messages. Timers of the same duration are called in order.
    for (let turns = 0; turns < 5; turns += 1) await new Promise((resolve) => setTimeout(resolve));
    pages.set(conversation, page);
    return page;
  }
  const ask = async (conversation, options, prompt) => last(send(await open(conversation, options), prompt));
  return carryOutCommands({
    stream: async function* ({ conversation, text: prompt }) {
      yield* send(pages.get(conversation) ?? (await open(conversation)), prompt);
    },
    history: async ({ conversation }) =>
      pages.get(conversation).chat.getMessages().map((message) => ({ role: ROLES[message.role], text: text(message) })),
    reload: async ({ conversation }) => {
      pages.get(conversation).chat.remove();
      await open(conversation);
    },
    ...operations({ ask, pages }),
  });
}
