// Chats of Vercel's AI SDK, as `useChat` runs them: its own class without React's state. `node ai_sdk.mjs URL VERSION`.

import { carryOutCommands } from '../../clients/javascript/commands.mjs';

const [url, version] = process.argv.slice(2);
const {
  AbstractChat,
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
  validateUIMessages,
} = await import(version === '6' ? 'ai-6' : 'ai');

// The state that React would hold.
class State {
  status = 'ready';
  error = undefined;

  constructor(messages) {
    this.messages = messages;
  }

  pushMessage = (message) => {
    this.messages = [...this.messages, message];
  };

  popMessage = () => {
    this.messages = this.messages.slice(0, -1);
  };

  replaceMessage = (index, message) => {
    this.messages = this.messages.with(index, structuredClone(message));
  };

  snapshot = (thing) => structuredClone(thing);
}

class Chat extends AbstractChat {
  constructor({ messages = [], ...options }) {
    super({ ...options, state: new State(messages) });
  }
}

const WEATHER = {
  get_weather: {
    description: 'The weather in a city.',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
};

const chats = new Map();

function open({ chat: id, messages, tools = true, broken = false }) {
  const heard = { data: [], errors: [], finished: 0, responses: [] };
  const transport = new DefaultChatTransport({
    api: `${url}/ai-sdk`,
    body: tools ? { tools: WEATHER, system: 'Be brief.' } : {},
    fetch: async (...request) => {
      const response = await fetch(...request);
      heard.responses.push([response.status, response.headers.get('x-vercel-ai-ui-message-stream')]);
      return response;
    },
  });
  const chat = new Chat({
    id,
    messages,
    transport,
    onData: (part) => heard.data.push(part),
    onError: (error) => heard.errors.push(error.message),
    onFinish: () => {
      heard.finished += 1;
    },
    onToolCall: ({ toolCall }) => {
      if (!(toolCall.toolName in WEATHER)) return; // a tool of the agent
      const output = `sunny in ${toolCall.input.city}`;
      const { toolCallId, toolName: tool } = toolCall;
      if (broken) chat.addToolOutput({ state: 'output-error', tool, toolCallId, errorText: 'no such city' });
      else chat.addToolOutput({ tool, toolCallId, output });
    },
    sendAutomaticallyWhen: (state) =>
      lastAssistantMessageIsCompleteWithToolCalls(state) || lastAssistantMessageIsCompleteWithApprovalResponses(state),
  });
  chats.set(id, { chat, heard });
  return chats.get(id);
}

function facts({ chat, heard }) {
  const { status, messages, error } = chat;
  return { status, messages, error: error?.message ?? null, ...heard };
}

const pause = () => new Promise((resolve) => setTimeout(resolve, 5));

// A request sent automatically follows the end of the previous one.
async function settled(open) {
  while (open.chat.status === 'submitted' || open.chat.status === 'streaming') await pause();
  return facts(open);
}

await carryOutCommands({
  send: async ({ chat: id, text, ...options }) => {
    const opened = chats.get(id) ?? open({ chat: id, ...options });
    await opened.chat.sendMessage({ text });
    return settled(opened);
  },
  regenerate: async ({ chat: id }) => {
    await chats.get(id).chat.regenerate();
    return settled(chats.get(id));
  },
  // The user decides about a call that waits for an approval.
  decide: async ({ chat: id, approval, approved, reason }) => {
    await chats.get(id).chat.addToolApprovalResponse({ id: approval, approved, reason });
    return settled(chats.get(id));
  },
  // Wait until the newest message contains a text.
  reach: async ({ chat: id, text }) => {
    for (;;) {
      const said = chats.get(id)?.chat.lastMessage?.parts.map((part) => part.text ?? '').join('');
      if (said?.includes(text)) return null;
      await pause();
    }
  },
  stop: async ({ chat: id }) => {
    await chats.get(id).chat.stop();
    return facts(chats.get(id));
  },
  // A reloaded page: it restores its stored messages, and requests the running stream.
  reload: async ({ chat: id, messages }) => {
    const opened = open({ chat: id, messages });
    await opened.chat.resumeStream();
    return settled(opened);
  },
  // Wait for the response of the server.
  connect: async ({ chat: id }) => {
    while (!chats.get(id)?.heard.responses.length) await pause();
    return null;
  },
  // What a page does that is loaded anew without messages of its own: the server has them.
  load: async ({ chat: id }) => {
    chats.delete(id);
    const response = await fetch(`${url}/ai-sdk/${encodeURIComponent(id)}/messages`);
    const messages = await response.json();
    if (messages.length) await validateUIMessages({ messages });
    const opened = open({ chat: id, messages });
    await opened.chat.resumeStream();
    return settled(opened);
  },
  see: async ({ chat: id }) => facts(chats.get(id)),
});
