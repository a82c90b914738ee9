// opencode as a program: its server, which its terminal uses. It stores the sessions in its home.

import { spawn } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { carryOutCommands } from '../../e2e/clients/javascript/commands.mjs';

const [url, , folder] = process.argv.slice(2);
const program = fileURLToPath(new URL('node_modules/opencode-linux-x64-baseline/bin/opencode', import.meta.url));
const work = `${folder}/work`;
mkdirSync(work);

// The base URL of a server for one conversation, once it listens.
async function start(conversation) {
  const options = { baseURL: `${url}/v1`, apiKey: 'none', headers: { 'X-Conversation-Id': conversation } };
  const tailrace = { npm: '@ai-sdk/openai-compatible', options, models: { tailrace: {} } };
  const config = { provider: { tailrace }, permission: { bash: 'allow' }, autoupdate: false, share: 'disabled' };
  writeFileSync(`${folder}/opencode.json`, JSON.stringify(config));
  const env = { ...process.env, HOME: folder, OPENCODE_CONFIG: `${folder}/opencode.json` };
  const running = spawn(program, ['serve', '--port', '0'], { cwd: work, env, stdio: ['ignore', 'pipe', 'ignore'] });
  process.on('exit', () => running.kill());
  for await (const line of createInterface({ input: running.stdout })) {
    const [base] = line.match(/http:\/\/\S+/) ?? [];
    if (base) return { running, base };
  }
  throw new Error('opencode did not start');
}

const servers = new Map();

async function request(server, method, path, body) {
  const headers = { 'content-type': 'application/json' };
  const response = await fetch(`${server.base}${path}`, { method, headers, body: body && JSON.stringify(body) });
  if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
  return response.json();
}

async function serverOf(conversation) {
  if (!servers.has(conversation)) {
    const server = await start(conversation);
    // With a title of its own, it requests none of the model.
    server.session = (await request(server, 'POST', '/session', { title: conversation })).id;
    servers.set(conversation, server);
  }
  return servers.get(conversation);
}

async function* events(server) {
  const response = await fetch(`${server.base}/event`);
  let rest = '';
  for await (const data of response.body.pipeThrough(new TextDecoderStream())) {
    const frames = (rest + data).split('\n\n');
    rest = frames.pop();
    for (const frame of frames) if (frame.startsWith('data: ')) yield JSON.parse(frame.slice(6));
  }
}

// The text of the newest part of the model's response, whenever it changes.
async function* send(server, prompt) {
  const parts = [{ type: 'text', text: prompt }];
  const model = { providerID: 'tailrace', modelID: 'tailrace' };
  const answers = new Set();
  const texts = new Map();
  for await (const { type, properties } of events(server)) {
    // Its response is the end of the turn; an error is an event, too.
    if (type === 'server.connected')
      request(server, 'POST', `/session/${server.session}/message`, { model, parts }).catch(() => {});
    if (type === 'message.updated' && properties.info.role === 'assistant') answers.add(properties.info.id);
    const { part, partID, messageID, field, delta } = properties;
    if (type === 'message.part.updated' && part.type === 'text' && answers.has(part.messageID)) {
      texts.set(part.id, part.text);
      yield { message: { text: part.text } };
    }
    if (type === 'message.part.delta' && field === 'text' && answers.has(messageID) && texts.has(partID)) {
      texts.set(partID, texts.get(partID) + delta);
      yield { message: { text: texts.get(partID) } };
    }
    if (type === 'session.error') throw new Error(JSON.stringify(properties.error));
    if (type === 'session.idle') return;
  }
}

const ROLES = { user: 'user', assistant: 'agent' };

await carryOutCommands({
  stream: async function* ({ conversation, text }) {
    yield* send(await serverOf(conversation), text);
  },
  call: async ({ conversation, text }) => {
    let latest;
    for await (const event of send(await serverOf(conversation), text)) latest = event.message.text;
    return latest;
  },
  history: async ({ conversation }) => {
    const server = servers.get(conversation);
    const messages = await request(server, 'GET', `/session/${server.session}/message`);
    return messages.map(({ info, parts }) => ({
      role: ROLES[info.role],
      text: parts.map((part) => (part.type === 'text' ? part.text : '')).join(''),
    }));
  },
  reload: async ({ conversation }) => {
    const { running, session } = servers.get(conversation);
    running.kill();
    await new Promise((resolve) => running.once('exit', resolve));
    servers.set(conversation, { ...(await start(conversation)), session });
  },
});
