// The AI SDK against the scripted server at BASE_URL: which steps it took and what it heard, over both APIs.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, tool } from "ai";
import { z } from "zod";

const provider = createOpenAI({ baseURL: process.env.BASE_URL, apiKey: "none" });
const name = "Qwen/Qwen3-30B-A3B-Instruct-2507";
const found = {};
for (const api of ["chat", "responses"]) {
  const numbers = [];
  const step = tool({
    description: "Take one step",
    inputSchema: z.object({ number: z.number().int() }),
    execute: async ({ number }) => {
      numbers.push(number);
      return `step ${number} taken`;
    },
  });
  const { text } = await generateText({
    model: provider[api](name),
    prompt: "Walk.",
    tools: { step },
    stopWhen: stepCountIs(20),
  });
  found[api] = [numbers, text];
}
console.log(JSON.stringify(found));
