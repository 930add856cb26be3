"""Tools as agents declare them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator

from llmirage_server.replies.compose import ComposedReplies
from llmirage_server.replies.reply import ReplyRequest, Tool

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


# The same again for tools of other trades, and in other languages.
DISTANCE = tool("get_distance", "Compute the distance between two cities.", {"origin": TEXT, "destination": TEXT})
SLACK = tool("slack_post_message", "Post a message to a Slack channel.", {"channel": TEXT, "text": TEXT})
FIBONACCI = tool("fibonacci", "Compute the nth Fibonacci number.", {"n": WHOLE})
TIP = tool("calculate_tip", "Calculate a tip.", {"bill": NUMBER, "percentage": NUMBER})
WHERE = tool("get_weather", "Get the temperature for coordinates.", {"latitude": NUMBER, "longitude": NUMBER})
PLAY = tool("play_music", "Play a song.", {"song": TEXT})
TODOS = tool("todo_write", "Write the todo list.", {"todos": {"type": "array", "items": TEXT}})
PRODUCT = tool("get_product_info", "Get a product by its id.", {"product_id": TEXT})


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
