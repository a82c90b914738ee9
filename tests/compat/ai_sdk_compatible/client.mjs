// The AI SDK's provider for OpenAI-compatible APIs as a program: over Chat Completions, with the reasoning.

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import * as ai from 'ai';
import { runProvider } from '../ai_sdk_provider.mjs';

const baseURL = `${process.argv[2]}/v1`;
const headers = (conversation) => ({ 'X-Conversation-Id': conversation });

await runProvider(ai, (conversation) =>
  createOpenAICompatible({ name: 'tailrace', baseURL, headers: headers(conversation) })('tailrace'),
);
