// deep-chat's element as a program, connected to A2A by a handler and the server's own client.

import { writeFileSync } from 'node:fs';
import { JSDOM } from 'jsdom';
import { preparePage, runPages } from '../deep_chat_page.mjs';
import { a2aHandler } from './handler.mjs';

const [url, , folder] = process.argv.slice(2);
const window = preparePage(JSDOM, url);
await import('deep-chat');

// Node imports no modules over HTTP.
const module = await fetch(`${url}/tailrace-client.js`);
writeFileSync(`${folder}/client.mjs`, await module.text());
const { AgentClient } = await import(`${folder}/client.mjs`);

function configure(chat, conversation) {
  chat.connect = { handler: a2aHandler(new AgentClient(url), conversation), stream: true };
}

await runPages(window, configure, ({ pages }) => ({
  cancel: async ({ conversation }) => {
    pages.get(conversation).chat.shadowRoot.querySelector('#submit-button, .input-button').click();
  },
}));
