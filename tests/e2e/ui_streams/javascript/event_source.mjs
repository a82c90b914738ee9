// A plain EventSource, like a browser's, at the stream of a task. `node event_source.mjs URL`.

import { EventSource } from 'eventsource';

import { carryOutCommands } from '../../clients/javascript/commands.mjs';

const [url] = process.argv.slice(2);

function follow({ task, after, until }) {
  return new Promise((resolve, reject) => {
    const heard = [];
    const source = new EventSource(`${url}/tasks/${task}:subscribe?A2A-Version=1.0&after=${after}`);
    source.onmessage = ({ data, lastEventId }) => {
      const event = JSON.parse(data);
      heard.push([Number(lastEventId), event]);
      const state = event.statusUpdate?.status.state;
      if (until ? heard.length >= until : /COMPLETED|FAILED|CANCELED/.test(state)) {
        source.close();
        resolve(heard);
      }
    };
    source.onerror = (error) => {
      source.close();
      reject(new Error(error.message ?? 'the connection failed'));
    };
  });
}

await carryOutCommands({ follow });
