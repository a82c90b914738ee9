// The handler of a deep-chat element that is connected to an A2A agent; the element's messages are one context.
export const a2aHandler = (client, contextId) => async (body, signals) => {
  const show = (text) => signals.onResponse({ text });
  let answer;
  signals.onOpen();
  try {
    for await (const event of client.send([{ text: body.messages.at(-1).text }], { contextId })) {
      if (event.type === 'task') signals.stopClicked.listener = () => client.cancel(event.task.id);
      const { artifact } = event.type === 'artifact' ? event.artifact : {};
      if (artifact?.name === 'Answer') answer = artifact.artifactId;
      if (artifact?.artifactId === answer && artifact) await show(artifact.parts.map((part) => part.text).join(''));
      const { state, message } = event.type === 'status' ? event.status.status : {};
      if (state === 'TASK_STATE_FAILED') await show(message.parts[0].text);
    }
  } catch (error) {
    await show(error.message);
  }
  signals.onClose();
};
