// openai-node against the server at BASE_URL: one JSON object of results on stdout.
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const model = "Qwen/Qwen3-30B-A3B-Instruct-2507";
const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "none", maxRetries: 0 });
const { completions } = client.chat;
const hello = [{ role: "user", content: "Hello" }];
const question = [{ role: "user", content: "What's the weather in Paris?" }];
const Person = z.object({
  name: z.string(),
  age: z.number().int().min(0).max(120),
  email: z.string().email(),
  role: z.enum(["admin", "guest"]),
  tags: z.array(z.string()).min(1).max(3),
  nick: z.string().nullable(),
  home: z.object({ city: z.string(), zip: z.string().regex(/^\d{5}$/) }),
});
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };

async function runTools(stream) {
  const asked = [];
  const runner = completions.runTools({
    model,
    stream,
    messages: question,
    tools: [{ type: "function", function: {
      name: "get_weather", description: "Get the weather", parse: JSON.parse, parameters,
      function: async ({ city }) => { asked.push(city); return "sunny"; },
    } }],
  });
  await runner.finalContent();
  return { asked, roles: runner.messages.map((message) => message.role) };
}

const results = {
  async create() {
    const { choices, usage } = await completions.create({ model, messages: hello });
    return [choices[0].finish_reason, usage.total_tokens === usage.prompt_tokens + usage.completion_tokens];
  },
  async stream() {
    const whole = (await completions.create({ model, messages: hello })).choices[0].message.content;
    const runner = completions.stream({ model, messages: hello });
    let deltas = 0;
    runner.on("content", () => deltas++);
    return [(await runner.finalContent()) === whole, deltas >= 3];
  },
  parse: async () =>
    Person.safeParse((await completions.parse({ model, messages: hello, response_format: zodResponseFormat(Person, "person") }))
      .choices[0].message.parsed).success,
  runTools: () => runTools(false),
  runToolsStreamed: () => runTools(true),
  response: async () => (await client.responses.create({ model, input: "Hello" })).output_text.length > 0,
  responseParse: async () =>
    Person.safeParse((await client.responses.parse({ model, input: "Hello", text: { format: zodTextFormat(Person, "person") } }))
      .output_parsed).success,
  async responseStream() {
    const tools = [{ type: "function", name: "get_weather", description: "Get the weather", parameters, strict: true }];
    const stream = client.responses.stream({ model, input: "What's the weather in Oslo?", tools });
    let deltas = 0;
    for await (const event of stream) deltas += event.type === "response.function_call_arguments.delta";
    return [deltas >= 3, (await stream.finalResponse()).output.map((item) => item.arguments)];
  },
  async background() {
    let response = await client.responses.create({ model, input: "Hello", background: true });
    while (["queued", "in_progress"].includes(response.status)) {
      await new Promise((resolve) => setTimeout(resolve, 20));
      response = await client.responses.retrieve(response.id);
    }
    return response.status;
  },
  async conversation() {
    const { id } = await client.conversations.create({ items: [{ type: "message", role: "user", content: "Hello" }] });
    await client.responses.create({ model, conversation: id, input: "More" });
    const roles = [];
    for await (const item of client.conversations.items.list(id, { order: "asc" })) roles.push(item.role);
    return roles;
  },
  async embeddings() {
    const { data } = await client.embeddings.create({ model, input: "Hello" });
    return Math.abs(data[0].embedding.reduce((sum, x) => sum + x * x, 0) - 1) < 1e-3;
  },
  async models() {
    const ids = [];
    for await (const { id } of client.models.list()) ids.push(id);
    return ids;
  },
  completions: async () => (await client.completions.create({ model, prompt: ["a", "b"], n: 2, max_tokens: 3 })).choices.length,
  async error() {
    try {
      await completions.create({ model: "nobody", messages: hello });
    } catch (error) {
      return [error.constructor.name, error.status, error.code, error.requestID.startsWith("req_")];
    }
  },
  async abort() {
    const stream = await completions.create({ model, messages: hello, stream: true });
    let seen = 0;
    for await (const _ of stream) if (++seen === 3) break; // the SDK aborts the request
    return seen;
  },
};

const found = {};
for (const [name, check] of Object.entries(results)) {
  try {
    found[name] = await check();
  } catch (error) {
    found[name] = `${error.constructor.name}: ${error.message}`;
  }
}
console.log(JSON.stringify(found));
