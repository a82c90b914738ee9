// The official JavaScript client of A2A 1.0 as a program: node sdk_1_3.mjs URL BINDING CARD_PATH

import { randomUUID } from 'node:crypto';
import { AgentCard, ListTasksResponse, Message, StreamResponse, Task, TaskPushNotificationConfig } from '@a2a-js/sdk';
import { ClientFactory, JsonRpcTransportFactory, RestTransportFactory } from '@a2a-js/sdk/client';
import { GrpcTransportFactory } from '@a2a-js/sdk/client/grpc';
import { carryOutCommands } from './commands.mjs';

const [url, binding, cardPath] = process.argv.slice(2);
const client = await new ClientFactory({
  transports: [new JsonRpcTransportFactory(), new RestTransportFactory(), new GrpcTransportFactory()],
  preferredTransports: [binding],
}).createFromUrl(url, cardPath);
if (client.transport.protocolName !== binding) throw new Error(`speaks ${client.transport.protocolName}`);

const config = (taskId, id, hook, token) => TaskPushNotificationConfig.fromJSON({ taskId, id, url: hook, token });

function request({ text, data, task_id, context_id, webhook, at_once }) {
  const part = data === undefined ? { text } : { data };
  const message = { messageId: randomUUID(), role: 'ROLE_USER', parts: [part], taskId: task_id, contextId: context_id };
  return {
    tenant: '',
    message: Message.fromJSON(message),
    configuration: {
      acceptedOutputModes: [],
      returnImmediately: at_once ?? false,
      taskPushNotificationConfig: webhook && config('', 'inline', webhook),
    },
    metadata: undefined,
  };
}

async function* plain(events) {
  for await (const event of events) yield StreamResponse.toJSON(event);
}

const of = (taskId, id) => ({ tenant: '', taskId, id });

await carryOutCommands({
  card: async (_, options) => AgentCard.toJSON(await client.getAgentCard(options)),
  send: async (fields, options) => {
    const answer = await client.sendMessage(request(fields), options);
    return 'status' in answer ? { task: Task.toJSON(answer) } : { message: Message.toJSON(answer) };
  },
  stream: (fields, options) => plain(client.sendMessageStream(request(fields), options)),
  subscribe: ({ task_id }, options) => plain(client.resubscribeTask({ tenant: '', id: task_id }, options)),
  get: async ({ task_id, history_length }, options) =>
    Task.toJSON(await client.getTask({ tenant: '', id: task_id, historyLength: history_length }, options)),
  list: async ({ context_id, page_size, page_token }, options) => {
    const asked = { tenant: '', contextId: context_id, status: 0, pageSize: page_size, pageToken: page_token ?? '' };
    return ListTasksResponse.toJSON(await client.listTasks({ ...asked, includeArtifacts: true }, options));
  },
  cancel: async ({ task_id }, options) =>
    Task.toJSON(await client.cancelTask({ tenant: '', id: task_id, metadata: undefined }, options)),
  set_webhook: async ({ task_id, config_id, url: hook }, options) =>
    TaskPushNotificationConfig.toJSON(
      await client.createTaskPushNotificationConfig(config(task_id, config_id, hook, 't'), options),
    ),
  get_webhook: async ({ task_id, config_id }, options) =>
    TaskPushNotificationConfig.toJSON(await client.getTaskPushNotificationConfig(of(task_id, config_id), options)),
  list_webhooks: async ({ task_id }, options) => {
    const asked = { tenant: '', taskId: task_id, pageSize: 0, pageToken: '' };
    const { configs } = await client.listTaskPushNotificationConfig(asked, options);
    return configs.map(TaskPushNotificationConfig.toJSON);
  },
  delete_webhook: ({ task_id, config_id }, options) =>
    client.deleteTaskPushNotificationConfig(of(task_id, config_id), options),
  extended_card: async (_, options) =>
    AgentCard.toJSON(await client.transport.getExtendedAgentCard({ tenant: '' }, options)),
});
