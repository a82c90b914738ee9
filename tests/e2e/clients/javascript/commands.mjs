// The command loop of a JavaScript client program: reads commands, executes them, prints their results. The format is
// that of ../commands.py.

import { createInterface } from 'node:readline';

function say(id, what) {
  process.stdout.write(`${JSON.stringify({ id, ...what })}\n`);
}

// The error of a client, with the code of a wrapped JSON-RPC error.
function facts(error) {
  const code = error.errorResponse?.error?.code ?? error.code ?? null;
  return { type: error.constructor.name, message: error.message, code };
}

async function carryOut(id, operation, fields, signal) {
  try {
    const answer = operation(fields, { signal });
    if (answer[Symbol.asyncIterator]) {
      for await (const event of answer) say(id, { event });
      say(id, { result: null });
    } else {
      say(id, { result: (await answer) ?? null });
    }
  } catch (error) {
    say(id, signal.aborted ? { result: 'left' } : { error: facts(error) });
  }
}

// Executes commands until the input ends. Each operation receives a command's fields and the options of its request.
export async function carryOutCommands(operations) {
  const running = new Map();
  for await (const line of createInterface({ input: process.stdin })) {
    const { id, do: name, ...fields } = JSON.parse(line);
    if (name === 'leave') {
      running.get(fields.of)?.abort();
    } else {
      const controller = new AbortController();
      running.set(id, controller);
      carryOut(id, operations[name], fields, controller.signal).then(() => running.delete(id));
    }
  }
  process.exit(0); // streams that are open and channels that are kept would hold it
}
