"""What a reader would call sensible: which tools are called for a prompt, turn after turn, and with which arguments."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from llmirage_server.replies.choose import make_reply_source
from llmirage_server.replies.compose import ComposedReplies
from llmirage_server.replies.reply import ReplyRequest, Tool, ToolChoice
from llmirage_shared.tokenizer_loader import embedded

Calls = list[tuple[str, dict[str, Any]]]
TEXT, WHOLE, NUMBER, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}


def tool(name: str, about: str, needed: dict[str, Any] | None = None, **optional: Any) -> Tool:
    needed = needed or {}
    schema = {"type": "object", "properties": {**needed, **optional}, "required": list(needed)}
    return Tool("function", name, about, schema)


UNIT = {"type": "string", "enum": ["celsius", "fahrenheit"]}
WEATHER = tool("get_weather", "Get the current weather in a given location.", {"location": TEXT}, unit=UNIT)
FORECAST = tool("get_forecast", "Get the weather forecast for some days.", {"city": TEXT, "days": WHOLE})
SEARCH = tool("web_search", "Search the web for up-to-date information.", {"query": TEXT}, max_results=WHOLE)
CALCULATOR = tool("calculator", "Evaluate a mathematical expression.", {"expression": TEXT})
ADD = tool("add", "Adds a and b.", {"a": WHOLE, "b": WHOLE})
MULTIPLY = tool("multiply", "Multiply a and b.", {"a": WHOLE, "b": WHOLE})
DIVIDE = tool("divide", "Divide a and b.", {"a": WHOLE, "b": WHOLE})
OPERATE = tool(
    "calculate",
    "Do arithmetic.",
    {"operation": {"enum": ["add", "subtract", "multiply", "divide"]}, "x": NUMBER, "y": NUMBER},
)
BASH = tool("bash", "Run a shell command and return its output.", {"command": TEXT}, timeout=WHOLE)
READ = tool("read_file", "Read the contents of a file.", {"path": TEXT})
WRITE = tool("write_file", "Write content to a file.", {"path": TEXT, "content": TEXT})
EDIT = tool("edit_file", "Replace text in a file.", {"path": TEXT, "old_string": TEXT, "new_string": TEXT})
LS = tool("list_directory", "List the files in a directory.", {"path": TEXT})
SQL = tool("run_sql_query", "Run a SQL query against the database.", {"query": TEXT})
EVENT = tool(
    "create_calendar_event",
    "Create an event.",
    {"title": TEXT, "date": TEXT, "time": TEXT},
    attendees={"type": "array", "items": TEXT},
)
EVENTS = tool("list_calendar_events", "List the events of a day.", {"date": TEXT})
EMAIL = tool("send_email", "Send an email.", {"to": TEXT, "subject": TEXT, "body": TEXT})
RETRIEVE = tool("search_knowledge_base", "Search the company's knowledge base.", {"query": TEXT})
FETCH = tool("fetch_webpage", "Fetch a web page and return it as text.", {"url": TEXT})
STOCK = tool("get_stock_price", "Get the current stock price for a ticker symbol.", {"symbol": TEXT})
CURRENCY = tool("convert_currency", "Convert an amount.", {"amount": NUMBER, "from_currency": TEXT, "to_currency": TEXT})
TRANSLATE = tool("translate_text", "Translate text.", {"text": TEXT, "target_language": TEXT})
FLIGHTS = tool("search_flights", "Search for flights.", {"origin": TEXT, "destination": TEXT, "date": TEXT})
ORDER = tool("get_order_status", "Look up the status of an order.", {"order_id": TEXT})
CANCEL = tool("cancel_order", "Cancel an order.", {"order_id": TEXT})
REMIND = tool("set_reminder", "Set a reminder.", {"text": TEXT, "time": TEXT})
ISSUE = tool("mcp__github__create_issue", "Create a new issue in a GitHub repository.", {"repo": TEXT, "title": TEXT})
ISSUES = tool(
    "mcp__github__list_issues", "List issues in a GitHub repository.", {"repo": TEXT}, state={"enum": ["open", "closed"]}
)
CLOCK = tool("get_current_time", "Get the current time in a timezone.", {"timezone": TEXT})
LIGHT = tool("set_light", "Turn the lights of a room on or off.", {"room": {"enum": ["kitchen", "bedroom"]}, "on": FLAG})
TODO = tool("add_todo", "Add an item to the todo list.", {"item": TEXT})
DELETE = tool("delete_file", "Delete a file.", {"path": TEXT})
BILLING = tool("transfer_to_billing_agent", "Handoff to the Billing agent. Handles invoices and payments.")
REFUND = tool("transfer_to_refund_agent", "Handoff to the Refund agent to handle the request.")
SUPPORT = tool("transfer_to_technical_support", "Handoff to the Technical Support agent.")
SPANISH = tool("transfer_to_spanish_agent", "Handoff to the Spanish agent to handle the request. Speaks only Spanish.")
ENGLISH = tool("transfer_to_english_agent", "Handoff to the English agent to handle the request.")
MATHS = tool("transfer_to_math_tutor", "Handoff to the Math Tutor. Specialist agent for math questions.")
HISTORY = tool("transfer_to_history_tutor", "Handoff to the History Tutor. Specialist agent for historical questions.")
FINAL = tool("final_result", "The final response which ends this conversation", {"city": TEXT, "temperature": NUMBER})
REPORT = tool("WeatherReport", "", {"city": TEXT, "summary": TEXT})
CC_BASH = tool("Bash", "Executes a given bash command in a persistent shell session.", {"command": TEXT}, description=TEXT)
CC_READ = tool("Read", "Reads a file from the local filesystem.", {"file_path": TEXT}, limit=WHOLE, offset=WHOLE)
CC_WRITE = tool("Write", "Writes a file to the local filesystem.", {"file_path": TEXT, "content": TEXT})
CC_EDIT = tool(
    "Edit", "Performs exact string replacements in files.", {"file_path": TEXT, "old_string": TEXT, "new_string": TEXT}
)
CC_GREP = tool("Grep", "A powerful search tool built on ripgrep.", {"pattern": TEXT}, path=TEXT)
CC_SEARCH = tool("WebSearch", "Search the web.", {"query": TEXT})
CODING = (CC_BASH, CC_READ, CC_WRITE, CC_EDIT, CC_GREP, CC_SEARCH)
FILES = (READ, WRITE, EDIT, LS, DELETE)
SUMS = (ADD, MULTIPLY, DIVIDE)
OFFICE = (EVENT, EVENTS, EMAIL, REMIND)
MANY = (WEATHER, SEARCH, CALCULATOR, EMAIL, STOCK, CLOCK)

TABLE: list[tuple[tuple[Tool, ...], str, Calls]] = [
    # weather
    ((WEATHER,), "What's the weather in Paris?", [("get_weather", {"location": "Paris"})]),
    ((WEATHER,), "weather tokyo", [("get_weather", {"location": "tokyo"})]),
    ((WEATHER,), "Weather in Tokyo in celsius please", [("get_weather", {"location": "Tokyo", "unit": "celsius"})]),
    ((WEATHER,), "Is it going to rain in San Francisco, CA?", [("get_weather", {"location": "San Francisco, CA"})]),
    (
        (WEATHER, SEARCH),
        "What is the weather like in Paris and in London?",
        [("get_weather", {"location": "Paris"}), ("get_weather", {"location": "London"})],
    ),
    ((FORECAST,), "Give me a forecast of 3 days for Rome", [("get_forecast", {"city": "Rome", "days": 3})]),
    (
        (WEATHER,),
        "what is the weather in toronto and dallas?",
        [("get_weather", {"location": "toronto"}), ("get_weather", {"location": "dallas"})],
    ),
    (MANY, "How hot is it in Cairo right now?", [("get_weather", {"location": "Cairo"})]),
    # search
    ((SEARCH,), "Who won the world cup?", [("web_search", {"query": "Who won the world cup?"})]),
    ((SEARCH, WEATHER), "Search the web for the latest AI news", [("web_search", {"query": "the latest AI news"})]),
    (MANY, "Can you look up who directed Inception?", [("web_search", {"query": "who directed Inception"})]),
    ((SEARCH,), "What is the population of Brazil?", [("web_search", {})]),
    ((SEARCH,), "Find the top 5 hiking trails near Denver", [("web_search", {"max_results": 5})]),
    ((RETRIEVE,), "How do I reset my password?", [("search_knowledge_base", {"query": "How do I reset my password?"})]),
    ((RETRIEVE, SEARCH), "What is our vacation policy?", [("search_knowledge_base", {})]),
    (
        (tool("GoogleSearch", "", {"query": TEXT}), tool("Weather", "", {"location": TEXT})),
        "What is the weather in toronto and dallas and who won the super bowl?",
        [
            ("Weather", {"location": "toronto"}),
            ("Weather", {"location": "dallas"}),
            ("GoogleSearch", {"query": "who won the super bowl?"}),
        ],
    ),
    ((FETCH, SEARCH), "Summarize https://example.com/post.", [("fetch_webpage", {"url": "https://example.com/post"})]),
    ((FETCH,), "What does the page example.com say?", [("fetch_webpage", {"url": "https://example.com"})]),
    # arithmetic
    ((CALCULATOR,), "What is 17 * 23?", [("calculator", {"expression": "17 * 23"})]),
    ((CALCULATOR, SEARCH), "Compute 15% of 80", [("calculator", {"expression": "(15 / 100) * 80"})]),
    ((CALCULATOR,), "add 3 and 4, then multiply the result by 5", [("calculator", {"expression": "(3 + 4) * 5"})]),
    ((OPERATE,), "What is 12 divided by 4?", [("calculate", {"operation": "divide", "x": 12, "y": 4})]),
    (SUMS, "What is 3 + 4?", [("add", {"a": 3, "b": 4})]),
    (SUMS, "Add 2 and 3, and multiply 7 by 8", [("add", {"a": 2, "b": 3}), ("multiply", {"a": 7, "b": 8})]),
    ((WEATHER,), "What is 2+2?", []),
    # shell
    ((BASH,), "Run ls", [("bash", {"command": "ls"})]),
    ((BASH,), "Run `git status` please", [("bash", {"command": "git status"})]),
    ((BASH,), "run ls -la in the terminal", [("bash", {"command": "ls -la"})]),
    ((BASH,), "List the files in /tmp", [("bash", {"command": "ls /tmp"})]),
    ((BASH,), "Execute the command echo hello", [("bash", {"command": "echo hello"})]),
    ((BASH, SEARCH), "What is the current working directory?", [("bash", {"command": "pwd"})]),
    ((BASH,), "Install numpy", [("bash", {"command": "pip install numpy"})]),
    ((BASH,), "How do I list files in bash?", []),
    (CODING, "Run the tests", [("Bash", {"command": "pytest"})]),
    (CODING, "Read src/app.py", [("Read", {"file_path": "src/app.py"})]),
    (CODING, "Create a file hello.py with the content print('hi')", [("Write", {"file_path": "hello.py"})]),
    (CODING, "Find all usages of parse_config in the codebase", [("Grep", {"pattern": "parse_config in the codebase"})]),
    # files
    (FILES, "Read config.yaml", [("read_file", {"path": "config.yaml"})]),
    (FILES, "What is in README.md?", [("read_file", {"path": "README.md"})]),
    (FILES, "Write 'hello world' to notes/a.txt", [("write_file", {"path": "notes/a.txt", "content": "hello world"})]),
    (
        FILES,
        "In main.py, replace foo with bar",
        [("edit_file", {"path": "main.py", "old_string": "foo", "new_string": "bar"})],
    ),
    (FILES, "List the files in src/", [("list_directory", {"path": "src/"})]),
    (FILES, "Delete old.log", [("delete_file", {"path": "old.log"})]),
    (FILES, "Read a.txt and delete b.txt", [("read_file", {"path": "a.txt"}), ("delete_file", {"path": "b.txt"})]),
    # databases
    ((SQL,), "How many customers do we have?", [("run_sql_query", {"query": "SELECT COUNT(*) FROM customers"})]),
    (
        (SQL,),
        "Run SELECT name FROM users WHERE id = 3",
        [("run_sql_query", {"query": "SELECT name FROM users WHERE id = 3"})],
    ),
    ((SQL, WEATHER), "Show me the top 5 products", [("run_sql_query", {"query": "SELECT * FROM products LIMIT 5"})]),
    # calendar, mail, reminders
    (
        OFFICE,
        "Schedule a meeting with Bob on 2026-03-05 at 3pm",
        [("create_calendar_event", {"title": "meeting with Bob", "date": "2026-03-05", "time": "15:00"})],
    ),
    (OFFICE, "What meetings do I have tomorrow?", [("list_calendar_events", {"date": "tomorrow"})]),
    (
        OFFICE,
        "Send an email to ann@example.com with the subject Lunch saying See you at noon",
        [("send_email", {"to": "ann@example.com", "subject": "Lunch", "body": "See you at noon"})],
    ),
    (
        OFFICE,
        "Email bob@example.com about the weather",
        [("send_email", {"to": "bob@example.com", "subject": "the weather"})],
    ),
    (OFFICE, "Remind me to call mom at 18:30", [("set_reminder", {"text": "call mom", "time": "18:30"})]),
    ((WEATHER, EMAIL), "Email bob@example.com about the weather", [("send_email", {"to": "bob@example.com"})]),
    # other desks
    ((STOCK, SEARCH), "What's the price of AAPL stock?", [("get_stock_price", {"symbol": "AAPL"})]),
    (
        (CURRENCY,),
        "Convert 100 dollars to euros",
        [("convert_currency", {"amount": 100, "from_currency": "USD", "to_currency": "EUR"})],
    ),
    (
        (TRANSLATE,),
        "Translate 'good morning' into French",
        [("translate_text", {"text": "good morning", "target_language": "French"})],
    ),
    (
        (FLIGHTS,),
        "Find flights from Berlin to Madrid on March 5, 2027",
        [("search_flights", {"origin": "Berlin", "destination": "Madrid", "date": "2027-03-05"})],
    ),
    ((ORDER, CANCEL), "Where is my order 12345?", [("get_order_status", {"order_id": "12345"})]),
    ((ORDER, CANCEL), "Please cancel order 12345", [("cancel_order", {"order_id": "12345"})]),
    (
        (ISSUE, ISSUES),
        "List the open issues in octo/hello",
        [("mcp__github__list_issues", {"repo": "octo/hello", "state": "open"})],
    ),
    (
        (ISSUE, ISSUES),
        "Create an issue in octo/hello titled Broken link",
        [("mcp__github__create_issue", {"repo": "octo/hello", "title": "Broken link"})],
    ),
    ((LIGHT,), "Turn on the lights in the kitchen", [("set_light", {"room": "kitchen", "on": True})]),
    ((TODO,), "Add buy milk to my todo list", [("add_todo", {"item": "buy milk"})]),
    ((CLOCK, WEATHER), "What time is it?", [("get_current_time", {})]),
    # handing over
    ((BILLING, REFUND, SUPPORT), "I want a refund for my last order", [("transfer_to_refund_agent", {})]),
    ((BILLING, REFUND, SUPPORT), "There is a wrong charge on my invoice", [("transfer_to_billing_agent", {})]),
    ((BILLING, REFUND, SUPPORT), "The app crashes with an error when I log in", [("transfer_to_technical_support", {})]),
    ((SPANISH, ENGLISH), "Hola, ¿cómo estás?", [("transfer_to_spanish_agent", {})]),
    ((MATHS, HISTORY), "Who was the first president of the United States?", [("transfer_to_history_tutor", {})]),
    ((MATHS, HISTORY), "What is 12 times 12?", [("transfer_to_math_tutor", {})]),
    ((BILLING, REFUND, SUPPORT), "Hello there", []),
    # no tool is wanted
    (MANY, "Hello!", []),
    (MANY, "Hi, how are you today?", []),
    (MANY, "Tell me a joke", []),
    (MANY, "Write a haiku about the rain", []),
    (MANY, "Thanks, that was great!", []),
    (MANY, "I love sunny weather.", []),
    (MANY, "Who are you?", []),
    (MANY, "What can you do?", []),
    (FILES, "Tell me a story about a file cabinet", []),
    (SUMS, "What's the difference between TCP and UDP?", []),
    ((EMAIL, EVENT), "What's the capital of France?", []),
    ((WEATHER,), "What is the capital of France?", []),
    ((WEATHER, SEARCH), "Answer without using any tools: what's the weather in Paris?", []),
    (CODING, "Hello", []),
    (OFFICE, "Good morning", []),
]


# The same again for tools of other trades, and in other languages.
DISTANCE = tool("get_distance", "Compute the distance between two cities.", {"origin": TEXT, "destination": TEXT})
SLACK = tool("slack_post_message", "Post a message to a Slack channel.", {"channel": TEXT, "text": TEXT})
FIBONACCI = tool("fibonacci", "Compute the nth Fibonacci number.", {"n": WHOLE})
TIP = tool("calculate_tip", "Calculate a tip.", {"bill": NUMBER, "percentage": NUMBER})
WHERE = tool("get_weather", "Get the temperature for coordinates.", {"latitude": NUMBER, "longitude": NUMBER})
PLAY = tool("play_music", "Play a song.", {"song": TEXT})
TODOS = tool("todo_write", "Write the todo list.", {"todos": {"type": "array", "items": TEXT}})
PRODUCT = tool("get_product_info", "Get a product by its id.", {"product_id": TEXT})
TABLE += [
    ((DISTANCE,), "How far is Berlin from Munich?", [("get_distance", {"origin": "Munich", "destination": "Berlin"})]),
    (
        (SLACK, EMAIL),
        "Post 'deploy done' to the #general channel on slack",
        [("slack_post_message", {"channel": "#general", "text": "deploy done"})],
    ),
    ((FIBONACCI,), "Give me the 10th fibonacci number", [("fibonacci", {"n": 10})]),
    ((TIP, CALCULATOR), "What's a 20% tip on a $50 bill?", [("calculate_tip", {"bill": 50, "percentage": 20})]),
    ((WHERE,), "What's the weather like in Paris today?", [("get_weather", {"latitude": 48.86, "longitude": 2.35})]),
    ((PLAY,), "Play Bohemian Rhapsody by Queen", [("play_music", {"song": "Bohemian Rhapsody"})]),
    ((TODOS, *CODING), "Add a dark mode toggle to the settings page", []),
    ((PRODUCT, SEARCH), "Tell me about product ABC-123", [("get_product_info", {"product_id": "ABC-123"})]),
    (
        (STOCK,),
        "Get stock prices for AAPL and Microsoft",
        [("get_stock_price", {"symbol": "AAPL"}), ("get_stock_price", {"symbol": "MSFT"})],
    ),
    (
        (EMAIL,),
        "Can you write an email to john@doe.com telling him the meeting moved to 3pm",
        [("send_email", {"to": "john@doe.com", "body": "the meeting moved to 3pm"})],
    ),
    (
        (TRANSLATE,),
        "How do you say hello in Spanish?",
        [("translate_text", {"text": "hello", "target_language": "Spanish"})],
    ),
    ((CALCULATOR,), "(12+8)/4", [("calculator", {"expression": "(12 + 8) / 4"})]),
    ((WEATHER,), "¿Qué tiempo hace en Madrid?", [("get_weather", {"location": "Madrid"})]),
    ((WEATHER,), "Quel temps fait-il à Paris ?", [("get_weather", {"location": "Paris"})]),
    ((WEATHER,), "Wie ist das Wetter in Berlin?", [("get_weather", {"location": "Berlin"})]),
]


@pytest.fixture(scope="module")
def source() -> ComposedReplies:
    return ComposedReplies(embedded(), make_reply_source("prose", embedded()))


def turn(source: ComposedReplies, tools: tuple[Tool, ...], said: str, **more: Any) -> Calls:
    """The calls of one reply; their arguments fit the schema."""
    ids = np.arange(20, dtype=np.int32)
    request = {"prompt_ids": ids, "max_tokens": None, "limit_tokens": 4000, "tools": tools, "last_user_text": said, **more}
    reply = source.reply(ReplyRequest(**request))
    schemas = {tool.name: tool.parameters for tool in tools}
    calls = [(part.name, json.loads(reply.said(part))) for part in reply.parts if part.kind == "function_call"]
    for name, arguments in calls:
        Draft202012Validator(schemas[name]).validate(arguments)
    assert (reply.finish_reason == "tool_calls") == bool(calls)
    return calls


@pytest.mark.parametrize(("tools", "said", "expected"), TABLE, ids=[f"{row[1][:50]}" for row in TABLE])
def test_what_is_called(source: ComposedReplies, tools: tuple[Tool, ...], said: str, expected: Calls) -> None:
    calls = turn(source, tools, said)
    assert [name for name, _ in calls] == [name for name, _ in expected]
    for (_, arguments), (_, wanted) in zip(calls, expected, strict=True):
        assert {name: arguments.get(name) for name in wanted} == wanted


@pytest.mark.parametrize(("tools", "said", "expected"), TABLE, ids=[f"{row[1][:50]}" for row in TABLE])
def test_with_the_results_there_the_loop_ends(
    source: ComposedReplies, tools: tuple[Tool, ...], said: str, expected: Calls
) -> None:
    called = tuple(name for name, _ in expected)
    assert turn(source, tools, said, called=called, results=tuple("ok" for _ in called)) == []


# (tools, what is said, what each turn calls, what its tools give)
STEPS: list[tuple[tuple[Tool, ...], str, list[Calls], list[str]]] = [
    (
        SUMS,
        "add 3 and 4, then multiply the result by 5",
        [[("add", {"a": 3, "b": 4})], [("multiply", {"a": 7, "b": 5})]],
        ["7", "35"],
    ),
    (
        SUMS,
        "Add 3 and 4. Multiply the output by 2. Divide the output by 7.",
        [[("add", {"a": 3, "b": 4})], [("multiply", {"a": 7, "b": 2})], [("divide", {"a": 14, "b": 7})]],
        ["7", "14", "2"],
    ),
    (SUMS, "What is (3 + 4) * 5?", [[("add", {"a": 3, "b": 4})], [("multiply", {"a": 7, "b": 5})]], ['{"result": 7}', "35"]),
    (SUMS, "What is 3 + 4 * 5?", [[("multiply", {"a": 4, "b": 5})], [("add", {"a": 3, "b": 20})]], ["20", "23"]),
    (
        (OPERATE,),
        "Add 3 and 4, then multiply it by 5",
        [[("calculate", {"operation": "add", "x": 3, "y": 4})], [("calculate", {"operation": "multiply", "x": 7, "y": 5})]],
        ["7", "35"],
    ),
    (
        (SEARCH, EMAIL),
        "Search for the latest AI news and email it to bob@example.com",
        [
            [("web_search", {"query": "the latest AI news"})],
            [("send_email", {"to": "bob@example.com", "body": "Robots sing."})],
        ],
        ["Robots sing.", "sent"],
    ),
    (
        (READ, WRITE),
        "Read a.txt, then write a summary to b.txt",
        [[("read_file", {"path": "a.txt"})], [("write_file", {"path": "b.txt"})]],
        ["some words", "ok"],
    ),
    (
        (WEATHER, EMAIL),
        "Check the weather in Paris and then, if it is sunny, send an email to bob@example.com",
        [[("get_weather", {"location": "Paris"})], [("send_email", {"to": "bob@example.com"})]],
        ["sunny", "sent"],
    ),
    (
        (WEATHER, FINAL),
        "What's the weather in Paris?",
        [[("get_weather", {"location": "Paris"})], [("final_result", {"city": "Paris"})]],
        ["20 degrees", "ok"],
    ),
    (
        (WEATHER, REPORT),
        "What's the weather in Paris?",
        [[("get_weather", {"location": "Paris"})], [("WeatherReport", {"city": "Paris"})]],
        ["20 degrees", "ok"],
    ),
]


@pytest.mark.parametrize(("tools", "said", "expected", "results"), STEPS, ids=[row[1][:50] for row in STEPS])
def test_what_depends_on_a_result_waits_for_it(
    source: ComposedReplies, tools: tuple[Tool, ...], said: str, expected: list[Calls], results: list[str]
) -> None:
    called: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    for step, result in zip(expected, results, strict=True):
        calls = turn(source, tools, said, called=called, results=given)
        assert [name for name, _ in calls] == [name for name, _ in step]
        for (_, arguments), (_, wanted) in zip(calls, step, strict=True):
            assert {name: arguments.get(name) for name in wanted} == wanted
        called += tuple(name for name, _ in calls)
        given += (result,) * len(calls)
    assert turn(source, tools, said, called=called, results=given) == []


def test_one_at_a_time_where_calls_must_not_be_parallel(source: ComposedReplies) -> None:
    said = "What's the weather in Paris and in London?"
    first = turn(source, (WEATHER,), said, parallel_tool_calls=False)
    second = turn(source, (WEATHER,), said, parallel_tool_calls=False, called=("get_weather",), results=("sunny",))
    third = turn(source, (WEATHER,), said, parallel_tool_calls=False, called=("get_weather",) * 2, results=("sunny",) * 2)
    assert [arguments["location"] for _, arguments in first + second] == ["Paris", "London"]
    assert third == []


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("And in London?", [("get_weather", {"location": "London"})]),
        ("What about Rome and Oslo?", [("get_weather", {"location": "Rome"}), ("get_weather", {"location": "Oslo"})]),
        ("weather tokyo", [("get_weather", {"location": "tokyo"})]),
        ("Tokyo?", [("get_weather", {"location": "Tokyo"})]),
        ("And in Fahrenheit?", [("get_weather", {"location": "Paris", "unit": "fahrenheit"})]),
        ("Thanks!", []),
        ("ok, great", []),
    ],
)
def test_a_second_question(source: ComposedReplies, said: str, expected: Calls) -> None:
    before = {"called_before": ("get_weather",), "text_before": "What's the weather in Paris?"}
    calls = turn(source, (WEATHER, SEARCH), said, **before)
    assert [name for name, _ in calls] == [name for name, _ in expected]
    for (_, arguments), (_, wanted) in zip(calls, expected, strict=True):
        assert {name: arguments.get(name) for name in wanted} == wanted


def test_what_nobody_spoke_of_is_left_out(source: ComposedReplies) -> None:
    [(_, arguments)] = turn(source, (WEATHER,), "What's the weather in Paris?")
    assert arguments == {"location": "Paris"}
    nullable = {"anyOf": [{"enum": ["celsius", "fahrenheit"]}, {"type": "null"}]}
    strict = tool("get_weather", "Get the weather.", {"location": TEXT, "unit": nullable})
    [(_, arguments)] = turn(source, (strict,), "What's the weather in Paris?")
    assert arguments == {"location": "Paris", "unit": None}


def test_required_hands_in_the_answer_when_all_else_is_done(source: ComposedReplies) -> None:
    required = ToolChoice("required")
    said = "What's the weather in Paris?"
    assert [name for name, _ in turn(source, (WEATHER, FINAL), said, tool_choice=required)] == ["get_weather"]
    done = {"called": ("get_weather",), "results": ("20 degrees",)}
    assert [name for name, _ in turn(source, (WEATHER, FINAL), said, tool_choice=required, **done)] == ["final_result"]
    assert [name for name, _ in turn(source, (WEATHER, FINAL), "Hello", tool_choice=required)] == ["final_result"]


def test_a_long_document_between_question_and_answer_costs_little(source: ComposedReplies) -> None:
    document = "The ship left the harbor and nobody knew where it would go. " * 5000
    calls = turn(source, MANY, f"What's the weather in Paris?\n{document}")
    assert ("get_weather", {"location": "Paris"}) in calls


@pytest.mark.parametrize(
    "said", ["1+" * 1500 + "1", "(" * 2000, "add 1 and " * 300, "a" * 100_000, "remind me to " * 300, "\x00`" * 900]
)
def test_no_text_is_too_odd(source: ComposedReplies, said: str) -> None:
    turn(source, (*MANY, *SUMS, *OFFICE), said)
    turn(source, (*MANY, *SUMS, *OFFICE), said, tool_choice=ToolChoice("required"))
