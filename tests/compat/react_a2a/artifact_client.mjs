import { A2AClient } from '@assistant-ui/react-a2a';

export class ArtifactClient extends A2AClient {
  async *streamMessage(...request) {
    let answer, text;
    for await (const event of super.streamMessage(...request)) {
      yield event;
      if (event.type !== 'artifactUpdate') continue;
      const { taskId, artifact, append } = event.event;
      if (artifact.name === 'Answer') [answer, text] = [artifact.artifactId, ''];
      if (artifact.artifactId !== answer) continue;
      text = (append ? text : '') + artifact.parts.map((part) => part.text ?? '').join('');
      yield { type: 'message', message: { messageId: taskId, role: 'agent', parts: [{ text }] } };
    }
  }
}
