// Read streams of background responses, one command a line: {url, input} begins a response, {url, id, after} resumes one.
// Print each event on a line, then {"over": …}. With `upto`, disconnect after that number of events.

import { createInterface } from 'node:readline';
import OpenAI from 'openai';

const print = (value) => process.stdout.write(JSON.stringify(value) + '\n');

for await (const line of createInterface({ input: process.stdin })) {
  const { url, input, id, after, upto } = JSON.parse(line);
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
  let count = 0;
  let status = null;
  try {
    const stream = id
      ? await client.responses.retrieve(id, { stream: true, starting_after: after ?? undefined })
      : await client.responses.create({ model: 'tailrace', input, background: true, stream: true });
    for await (const event of stream) {
      print(event);
      if (++count === upto) break;
    }
  } catch (error) {
    status = error.status ?? 0;
  }
  print({ over: true, status });
}
