// Threads of AG-UI: its official HttpAgent. `node ag_ui.mjs URL`.

import { buildResumeArray, HttpAgent } from '@ag-ui/client';

import { carryOutCommands } from '../../clients/javascript/commands.mjs';

const [url] = process.argv.slice(2);

const WEATHER = {
  name: 'get_weather',
  description: 'The weather in a city.',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
};

const threads = new Map();

function open(threadId) {
  const events = [];
  const agent = new HttpAgent({ url: `${url}/ag-ui`, threadId });
  agent.subscribe({ onEvent: ({ event }) => void events.push(event) });
  threads.set(threadId, { agent, events });
  return threads.get(threadId);
}

async function run({ agent, events }, tools, parameters = {}) {
  events.length = 0;
  const { result, newMessages } = await agent.runAgent({ tools: tools ? [WEATHER] : [], ...parameters });
  return { result: result ?? null, newMessages, messages: agent.messages, interrupts: agent.pendingInterrupts, events };
}

await carryOutCommands({
  send: async ({ thread, text, tools = true, fresh = false }) => {
    const opened = (fresh ? undefined : threads.get(thread)) ?? open(thread);
    opened.agent.addMessage({ id: crypto.randomUUID(), role: 'user', content: text });
    return run(opened, tools);
  },
  // The client's own tool has run.
  answer: async ({ thread, call, content }) => {
    const opened = threads.get(thread);
    opened.agent.addMessage({ id: crypto.randomUUID(), role: 'tool', toolCallId: call, content });
    return run(opened, true);
  },
  // The user responds to the interrupts of the last run.
  resume: async ({ thread, responses }) => {
    const opened = threads.get(thread);
    return run(opened, true, { resume: buildResumeArray(opened.agent.pendingInterrupts, responses) });
  },
  // A new client requests the history.
  join: async ({ thread }) => run(open(thread), false),
  leave_run: async ({ thread }) => {
    threads.get(thread).agent.abortRun();
    return null;
  },
  reach: async ({ thread, text }) => {
    for (;;) {
      const events = threads.get(thread)?.events ?? [];
      const said = events.map((event) => event.delta ?? '').join('');
      if (said.includes(text)) return null;
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  },
});
