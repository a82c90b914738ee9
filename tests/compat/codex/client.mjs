// Codex as a program: its app server, which its terminal and editors use. It stores the threads in its home.

import { spawn } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { carryOutCommands } from '../../e2e/clients/javascript/commands.mjs';

const [url, , folder] = process.argv.slice(2);
const home = `${folder}/home`;
const program = fileURLToPath(import.meta.resolve('@openai/codex/bin/codex.js'));
mkdirSync(home);

// One process with one thread; `reload` ends it.
class Server {
  constructor(conversation) {
    const headers = `{"X-Conversation-Id"="${conversation}"}`;
    const provider = `{name="tailrace",base_url="${url}/v1",wire_api="responses",http_headers=${headers},request_max_retries=0,stream_max_retries=0}`;
    const options = ['-c', 'model_provider=tailrace', '-c', `model_providers.tailrace=${provider}`];
    const env = { ...process.env, CODEX_HOME: home, HOME: folder };
    this.process = spawn(process.execPath, [program, 'app-server', ...options], {
      cwd: folder,
      env,
      stdio: ['pipe', 'pipe', 'ignore'],
    });
    this.waiting = new Map();
    this.listener = undefined;
    this.count = 0;
    let rest = '';
    this.process.stdout.setEncoding('utf8').on('data', (data) => {
      const lines = (rest + data).split('\n'); // readline would split at U+2028, too
      rest = lines.pop();
      lines.forEach((line) => this.#receive(JSON.parse(line)));
    });
  }

  #receive({ id, result, error, ...notification }) {
    const waiting = this.waiting.get(id);
    if (waiting && error) waiting.reject(new Error(error.message));
    else if (waiting) waiting.resolve(result);
    else this.listener?.(notification);
  }

  #write(message) {
    this.process.stdin.write(`${JSON.stringify(message)}\n`);
  }

  request(method, params) {
    const id = (this.count += 1);
    this.#write({ id, method, params });
    return new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
  }

  async open(threadId) {
    await this.request('initialize', { clientInfo: { name: 'tailrace-compat', version: '1' } });
    this.#write({ method: 'initialized' });
    const options = { model: 'tailrace', cwd: folder, approvalPolicy: 'never', sandbox: 'danger-full-access' };
    const method = threadId ? 'thread/resume' : 'thread/start';
    const { thread } = await this.request(method, { ...options, ...(threadId && { threadId }) });
    this.threadId = thread.id;
    return this;
  }

  async *send(prompt) {
    const events = [];
    let wake;
    this.listener = (event) => {
      events.push(event);
      wake?.();
    };
    await this.request('turn/start', { threadId: this.threadId, input: [{ type: 'text', text: prompt }] });
    let text = '';
    for (;;) {
      while (!events.length) await new Promise((resolve) => (wake = resolve));
      const { method, params } = events.shift();
      if (method === 'item/started' && params.item.type === 'agentMessage') text = '';
      if (method === 'item/agentMessage/delta') yield { message: { text: (text += params.delta) } };
      if (method !== 'turn/completed') continue;
      if (params.turn.error) throw new Error(params.turn.error.message);
      return;
    }
  }
}

const servers = new Map();

async function serverOf(conversation) {
  if (!servers.has(conversation)) servers.set(conversation, await new Server(conversation).open());
  return servers.get(conversation);
}

const TEXTS = {
  userMessage: (item) => ({ role: 'user', text: item.content.map((part) => part.text).join('') }),
  agentMessage: (item) => ({ role: 'agent', text: item.text }),
};

await carryOutCommands({
  stream: async function* ({ conversation, text }) {
    yield* (await serverOf(conversation)).send(text);
  },
  call: async ({ conversation, text }) => {
    let latest;
    for await (const event of (await serverOf(conversation)).send(text)) latest = event.message.text;
    return latest;
  },
  history: async ({ conversation }) => {
    const server = servers.get(conversation);
    const { thread } = await server.request('thread/read', { threadId: server.threadId, includeTurns: true });
    return thread.turns.flatMap((turn) => turn.items.flatMap((item) => TEXTS[item.type]?.(item) ?? []));
  },
  reload: async ({ conversation }) => {
    const { process: running, threadId } = servers.get(conversation);
    running.stdin.end();
    await new Promise((resolve) => running.once('exit', resolve));
    servers.set(conversation, await new Server(conversation).open(threadId));
  },
});
