"""What a reader would call sensible: which tools are called for a prompt, turn after turn, and with which arguments."""

from __future__ import annotations

import pytest
from tools_to_use import (
    BASH,
    BILLING,
    CALCULATOR,
    CANCEL,
    CLOCK,
    CODING,
    CURRENCY,
    DISTANCE,
    EMAIL,
    ENGLISH,
    EVENT,
    FETCH,
    FIBONACCI,
    FILES,
    FLIGHTS,
    FORECAST,
    HISTORY,
    ISSUE,
    ISSUES,
    LIGHT,
    MANY,
    MATHS,
    OFFICE,
    OPERATE,
    ORDER,
    PLAY,
    PRODUCT,
    REFUND,
    RETRIEVE,
    SEARCH,
    SLACK,
    SPANISH,
    SQL,
    STOCK,
    SUMS,
    SUPPORT,
    TEXT,
    TIP,
    TODO,
    TODOS,
    TRANSLATE,
    WEATHER,
    WHERE,
    Calls,
    tool,
    turn,
)

from llmirage_server.replies.compose import ComposedReplies
from llmirage_server.replies.reply import Tool

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
