// A chat by `useChat` of Vercel's AI SDK. All that it knows of the agent is the URL of the server.
//
//   TAILRACE_ALLOWED_ORIGINS=http://127.0.0.1:3000 tailrace serve --model …
//   npm ci && npm start, then open http://127.0.0.1:3000/ai_sdk.html (…?agent=URL for a server elsewhere)
//
// Load the page anew in the middle of an answer: it goes on.

import { useChat } from '@ai-sdk/react';
import { DefaultChatTransport } from 'ai';
import { useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';

const agent = new URLSearchParams(location.search).get('agent') ?? 'http://127.0.0.1:8000';

// The chat's id is the id of the conversation at the server; the messages are what this tab has seen of it.
const id = (sessionStorage.chat ??= crypto.randomUUID());
const seen = JSON.parse(sessionStorage.messages ?? '[]');
const transport = new DefaultChatTransport({ api: `${agent}/ai-sdk` });

function Chat() {
  const { messages, sendMessage, status, error } = useChat({ id, messages: seen, transport, resume: true });
  const [text, setText] = useState('');
  useEffect(() => {
    sessionStorage.messages = JSON.stringify(messages);
  }, [messages]);

  const submit = (event) => {
    event.preventDefault();
    sendMessage({ text });
    setText('');
  };

  return (
    <>
      {messages.map((message) => (
        <article key={message.id} data-role={message.role}>
          {message.parts.map((part, index) => {
            if (part.type === 'reasoning') return <details key={index}><summary>Reasoning</summary>{part.text}</details>;
            return part.type === 'text' && <span key={index}>{part.text}</span>;
          })}
        </article>
      ))}
      {error && <p role="alert">{error.message}</p>}
      <form onSubmit={submit} data-status={status}>
        <input
          aria-label="Message"
          value={text}
          onChange={(event) => setText(event.target.value)}
          disabled={status !== 'ready' && status !== 'error'}
        />
      </form>
    </>
  );
}

createRoot(document.querySelector('main')).render(<Chat />);
