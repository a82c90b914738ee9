// gemini-cli's A2A server as an agent, as its command starts it.

import { fileURLToPath } from 'node:url';

const [port, , model] = process.argv.slice(2);
Object.assign(process.env, {
  CODER_AGENT_PORT: port,
  GEMINI_API_KEY: 'none',
  // It commits before it writes a file.
  GIT_AUTHOR_NAME: 'compat',
  GIT_AUTHOR_EMAIL: 'compat@example.com',
  GIT_COMMITTER_NAME: 'compat',
  GIT_COMMITTER_EMAIL: 'compat@example.com',
  GOOGLE_GEMINI_BASE_URL: model.replace(/\/v1$/, ''),
});
const command = fileURLToPath(import.meta.resolve('@google/gemini-cli-a2a-server/dist/a2a-server.mjs'));
process.argv.splice(1, Infinity, command); // it starts where it is the main module
await import(command);
