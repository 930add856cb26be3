// The AI SDK against the server at BASE_URL, over chat completions and the Responses API: one JSON object of results on stdout.
import { createOpenAI } from "@ai-sdk/openai";
import { embedMany, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAI({ baseURL: process.env.BASE_URL, apiKey: "none" });
const name = "Qwen/Qwen3-30B-A3B-Instruct-2507";
const Person = z.object({
  name: z.string(),
  age: z.number().int(),
  tags: z.array(z.string()).min(1),
  home: z.object({ city: z.string() }).nullable(),
});
const weather = tool({
  description: "Get the weather in a location",
  inputSchema: z.object({ location: z.string() }),
  execute: async ({ location }) => ({ location, celsius: 21 }),
});
const question = "What's the weather in San Francisco?";

const checks = {
  async text(options) {
    const { text, usage, finishReason } = await generateText({ ...options, prompt: "Hello" });
    return [text.length > 0, usage.totalTokens === usage.inputTokens + usage.outputTokens, finishReason];
  },
  async tools(options) {
    const { steps, text } = await generateText({ ...options, prompt: question, tools: { weather }, stopWhen: stepCountIs(5) });
    return [steps.length, steps[0].toolCalls.map((call) => call.input.location), text.length > 0];
  },
  required: async (options) =>
    (await generateText({ ...options, prompt: "Hello", tools: { weather }, toolChoice: "required" })).toolCalls.length,
  async stream(options) {
    const result = streamText({ ...options, prompt: question, tools: { weather }, stopWhen: stepCountIs(5) });
    const kinds = {};
    for await (const { type } of result.fullStream) kinds[type] = (kinds[type] ?? 0) + 1;
    return [kinds["tool-input-delta"] >= 3, kinds["text-delta"] >= 3, kinds.error ?? 0, (await result.steps).length];
  },
  object: async (options) =>
    Person.safeParse((await generateText({ ...options, prompt: "A person", output: Output.object({ schema: Person }) })).output)
      .success,
  array: async (options) =>
    (await generateText({ ...options, prompt: "People", output: Output.array({ element: Person }) })).output.length > 0,
  choice: async (options) =>
    ["sunny", "rainy"].includes(
      (await generateText({ ...options, prompt: "Weather", output: Output.choice({ options: ["sunny", "rainy"] }) })).output),
  async streamedObject(options) {
    const result = streamText({ ...options, prompt: "A person", output: Output.object({ schema: Person }) });
    let partial = 0;
    let last;
    for await (last of result.partialOutputStream) partial++;
    return [partial >= 3, Person.safeParse(last).success];
  },
  async error(options) {
    try {
      await generateText({ ...options, model: options.nobody, prompt: "Hello" });
    } catch (error) {
      return [error.name, error.statusCode];
    }
  },
  async abort(options) {
    const controller = new AbortController();
    const result = streamText({ ...options, prompt: "Hello", abortSignal: controller.signal });
    let seen = 0;
    for await (const _ of result.textStream) if (++seen === 3) break;
    controller.abort();
    return seen;
  },
};

const found = {};
for (const api of ["chat", "responses"]) {
  const options = { model: provider[api](name), nobody: provider[api]("nobody"), maxRetries: 0 };
  for (const [check, run] of Object.entries(checks)) {
    try {
      found[`${api} ${check}`] = await run(options);
    } catch (error) {
      found[`${api} ${check}`] = `${error.name}: ${error.message}`;
    }
  }
}
found.embed = (await embedMany({ model: provider.embedding(name), values: ["a", "b"] })).embeddings.length;
console.log(JSON.stringify(found));
