// The commands of the AI SDK's providers: `streamText` and `generateText` with one, and the messages stored as its users do.

import { readFileSync, writeFileSync, existsSync } from 'node:fs';
import { carryOutCommands } from '../e2e/clients/javascript/commands.mjs';

const ROLES = { user: 'user', assistant: 'agent' };
const PARAMETERS = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };

const plain = (content) => (typeof content === 'string' ? content : content.map((part) => part.text ?? '').join(''));

// `ai` is the package; `model` returns the provider's model for a conversation.
export function runProvider(ai, model) {
  const folder = process.argv[4];
  const file = (conversation) => `${folder}/${conversation}.json`;
  const conversations = new Map();
  const messages = (conversation) => {
    if (!conversations.has(conversation)) {
      const saved = existsSync(file(conversation)) ? JSON.parse(readFileSync(file(conversation))) : [];
      conversations.set(conversation, saved);
    }
    return conversations.get(conversation);
  };
  const options = (conversation) => ({
    model: model(conversation),
    messages: messages(conversation),
    maxRetries: 0,
  });
  const keep = (conversation, response) => {
    messages(conversation).push(...response.messages);
    writeFileSync(file(conversation), JSON.stringify(messages(conversation)));
  };
  return carryOutCommands({
    stream: async function* ({ conversation, text }) {
      messages(conversation).push({ role: 'user', content: text });
      const result = ai.streamText({ ...options(conversation), onError: () => {} });
      let latest = '';
      for await (const part of result.fullStream ?? result.stream) {
        if (part.type === 'error') throw part.error;
        if (part.type === 'text-delta') yield { message: { text: (latest += part.text) } };
      }
      keep(conversation, await result.response);
    },
    ask: async ({ conversation, text }) => {
      messages(conversation).push({ role: 'user', content: text });
      const result = await ai.generateText(options(conversation));
      keep(conversation, result.response);
      return result.text;
    },
    call: async ({ conversation, text }) => {
      messages(conversation).push({ role: 'user', content: text });
      const get_weather = ai.tool({
        description: 'The weather in a city.',
        inputSchema: ai.jsonSchema(PARAMETERS),
        execute: async () => 'sunny',
      });
      const result = await ai.generateText({
        ...options(conversation),
        tools: { get_weather },
        stopWhen: ai.stepCountIs?.(2) ?? ai.isStepCount(2),
      });
      return result.text;
    },
    history: async ({ conversation }) =>
      messages(conversation).map(({ role, content }) => ({ role: ROLES[role], text: plain(content) })),
    reload: async () => conversations.clear(),
    // Not part of the list: the reasoning of a response.
    reasoning: async ({ conversation, text }) => {
      const { reasoningText } = await ai.generateText({ model: model(conversation), prompt: text });
      return reasoningText;
    },
  });
}
