// The AI SDK's provider for OpenAI as a program: over the Responses API, which is its default.

import { createOpenAI } from '@ai-sdk/openai';
import * as ai from 'ai';
import { runProvider } from '../ai_sdk_provider.mjs';

const baseURL = `${process.argv[2]}/v1`;
const headers = (conversation) => ({ 'X-Conversation-Id': conversation });

await runProvider(ai, (conversation) =>
  createOpenAI({ baseURL, apiKey: 'none', headers: headers(conversation) })('tailrace'),
);
