// The official JavaScript client of A2A 0.3 as a program: node sdk_0_3.mjs URL BINDING CARD_PATH

import { randomUUID } from 'node:crypto';
import { ClientFactory, DefaultAgentCardResolver, JsonRpcTransportFactory, RestTransportFactory } from 'a2a-js-sdk-0.3/client';
import { GrpcTransportFactory } from 'a2a-js-sdk-0.3/client/grpc';
import { carryOutCommands } from './commands.mjs';

const [url, binding, cardPath] = process.argv.slice(2);
const factories = [JsonRpcTransportFactory, RestTransportFactory, GrpcTransportFactory];
const card = await new DefaultAgentCardResolver().resolve(url, cardPath);
const client = await new ClientFactory({
  transports: factories.map((Factory) => new Factory()).filter((factory) => factory.protocolName === binding),
}).createFromAgentCard(card);

function request({ text, data, task_id, context_id, webhook, at_once }) {
  const part = data === undefined ? { kind: 'text', text } : { kind: 'data', data };
  return {
    message: {
      kind: 'message',
      messageId: randomUUID(),
      role: 'user',
      parts: [part],
      taskId: task_id,
      contextId: context_id,
    },
    configuration: {
      blocking: !at_once,
      ...(webhook && { pushNotificationConfig: { id: 'inline', url: webhook } }),
    },
  };
}

// Over HTTP+JSON and gRPC this client drops `append`, so its users must treat an artifact's first chunk as the artifact,
// and append the others.
async function* events(stream) {
  const known = new Set();
  for await (const event of stream) {
    if (event.kind === 'task') event.artifacts?.forEach((artifact) => known.add(artifact.artifactId));
    if (event.kind === 'artifact-update' && binding !== 'JSONRPC') {
      event.append = known.has(event.artifact.artifactId);
      known.add(event.artifact.artifactId);
    }
    yield event;
  }
}

await carryOutCommands({
  card: (_, options) => client.getAgentCard(options),
  send: (fields, options) => client.sendMessage(request(fields), options),
  stream: (fields, options) => events(client.sendMessageStream(request(fields), options)),
  subscribe: ({ task_id }, options) => events(client.resubscribeTask({ id: task_id }, options)),
  get: ({ task_id, history_length }, options) =>
    client.getTask({ id: task_id, historyLength: history_length }, options),
  cancel: ({ task_id }, options) => client.cancelTask({ id: task_id }, options),
  set_webhook: ({ task_id, config_id, url: hook }, options) => {
    const pushNotificationConfig = { id: config_id, url: hook, token: 't' };
    return client.setTaskPushNotificationConfig({ taskId: task_id, pushNotificationConfig }, options);
  },
  get_webhook: ({ task_id, config_id }, options) =>
    client.getTaskPushNotificationConfig({ id: task_id, pushNotificationConfigId: config_id }, options),
  list_webhooks: ({ task_id }, options) => client.listTaskPushNotificationConfig({ id: task_id }, options),
  delete_webhook: ({ task_id, config_id }, options) =>
    client.deleteTaskPushNotificationConfig({ id: task_id, pushNotificationConfigId: config_id }, options),
  extended_card: (_, options) => client.transport.getExtendedAgentCard(options),
});
