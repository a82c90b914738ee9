// deep-chat's element as a program, connected to the Responses API.

import { JSDOM } from 'jsdom';
import { preparePage, runPages } from '../deep_chat_page.mjs';

const [url] = process.argv.slice(2);
const window = preparePage(JSDOM, url);
await import('deep-chat');

const TOOLS = [
  {
    type: 'function',
    name: 'get_weather',
    description: 'The weather in a city.',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
];

function configure(chat, conversation, { stream = true, tools }) {
  const function_handler = (calls) => calls.map(() => ({ response: 'sunny' }));
  const options = tools ? { tools: TOOLS, function_handler } : {};
  chat.directConnection = { openAI: { key: 'none', chat: { model: 'tailrace', ...options } } };
  chat.connect = { url: `${url}/v1/responses`, stream, headers: { 'X-Conversation-Id': conversation } };
  chat.requestBodyLimits = { maxMessages: -1 };
}

await runPages(window, configure, ({ ask }) => ({
  ask: ({ conversation, text }) => ask(conversation, { stream: false }, text),
  call: ({ conversation, text }) => ask(conversation, { tools: true }, text),
}));
