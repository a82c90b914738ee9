// The web component deep-chat as a client of A2A's HTTP+JSON binding: no server code, a few properties here.
//
//   TAILRACE_ALLOWED_ORIGINS=http://127.0.0.1:3000 tailrace serve --model …
//   npm ci && npm start, then open http://127.0.0.1:3000/deep_chat.html (…?agent=URL for another server)

import 'deep-chat';

const agent = new URLSearchParams(location.search).get('agent') ?? 'http://127.0.0.1:8000';
const EXTENSION = 'urn:tailrace:ext:stream:v1';

let contextId; // the conversation: the server names it in its first answer, and keeps what was said in it
let texts = new Map(); // the artifacts of the answer that hold its text; others hold reasoning and calls of tools

const chat = document.querySelector('deep-chat');

chat.connect = { url: `${agent}/message:stream`, stream: true };
chat.errorMessages = { displayServiceErrorMessages: true };

chat.requestInterceptor = ({ headers, body }) => {
  texts = new Map();
  const parts = [{ text: body.messages.at(-1).text }];
  const message = { messageId: crypto.randomUUID(), role: 'ROLE_USER', contextId, parts };
  return { headers: { ...headers, 'A2A-Version': '1.0' }, body: { message } };
};

chat.responseInterceptor = ({ task, artifactUpdate, statusUpdate }) => {
  if (task) contextId = task.contextId;
  const status = statusUpdate?.status;
  if (status?.state === 'TASK_STATE_FAILED') return { error: status.message?.parts[0].text ?? 'The agent failed.' };
  const { artifact, append } = artifactUpdate ?? {};
  const said = artifact?.parts.map((part) => part.text ?? '').join('') ?? '';
  if (artifact && !append && (artifact.metadata?.[EXTENSION]?.channel ?? 'text') === 'text') {
    texts.set(artifact.artifactId, ''); // begins here, or once more
  }
  if (!texts.has(artifact?.artifactId)) return { text: '' };
  texts.set(artifact.artifactId, texts.get(artifact.artifactId) + said);
  return { text: [...texts.values()].join('\n\n'), overwrite: true };
};
