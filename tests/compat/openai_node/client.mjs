// The openai package for Node as a program: the Responses API, in the background. It stores the id of the newest response; the
// conversation is read from the server.

import { readFileSync, writeFileSync } from 'node:fs';
import OpenAI from 'openai';
import { carryOutCommands } from '../../e2e/clients/javascript/commands.mjs';

const [url, , folder] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });

const TOOL = {
  type: 'function',
  name: 'get_weather',
  description: 'The weather in a city.',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
};

const ids = new Map();
const file = (conversation) => `${folder}/${conversation}.json`;

const keep = (conversation, id) => {
  ids.set(conversation, [...(ids.get(conversation) ?? []), id]);
  writeFileSync(file(conversation), JSON.stringify(ids.get(conversation)));
};

const request = (conversation, input) => ({
  model: 'tailrace',
  input,
  previous_response_id: ids.get(conversation)?.at(-1),
});

const text = (item) => item.content.map((part) => part.text).join('');

await carryOutCommands({
  stream: async function* ({ conversation, text: prompt }) {
    const stream = await client.responses.create({ ...request(conversation, prompt), background: true, stream: true });
    let latest = '';
    for await (const event of stream) {
      if (event.type === 'response.created') keep(conversation, event.response.id);
      if (event.type === 'response.failed' && event.response.error) throw new Error(event.response.error.message);
      if (event.type === 'response.output_text.delta') yield { message: { text: (latest += event.delta) } };
    }
  },
  ask: async ({ conversation, text: prompt }) => {
    const response = await client.responses.create(request(conversation, prompt));
    keep(conversation, response.id);
    return response.output_text;
  },
  call: async ({ conversation, text: prompt }) => {
    const first = await client.responses.create({ ...request(conversation, prompt), tools: [TOOL] });
    keep(conversation, first.id);
    const results = first.output
      .filter((item) => item.type === 'function_call')
      .map(({ call_id }) => ({ type: 'function_call_output', call_id, output: 'sunny' }));
    const second = await client.responses.create({ ...request(conversation, results), tools: [TOOL] });
    return second.output_text;
  },
  cancel: async ({ conversation }) => void (await client.responses.cancel(ids.get(conversation).at(-1))),
  history: async ({ conversation }) => {
    const messages = [];
    for (const id of ids.get(conversation)) {
      const [asked] = (await client.responses.inputItems.list(id)).data;
      const response = await client.responses.retrieve(id);
      messages.push({ role: 'user', text: text(asked) }, { role: 'agent', text: response.output_text });
    }
    return messages;
  },
  reload: async ({ conversation }) => {
    ids.clear();
    ids.set(conversation, JSON.parse(readFileSync(file(conversation))));
  },
});
