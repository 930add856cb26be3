"""How people say what a property holds: the shapes of addresses and identifiers, and turns of phrase."""

from __future__ import annotations

import re

from llmirage_server.replies.lexicon import word_set

SHAPES: dict[str, re.Pattern[str]] = {
    "email": re.compile(r"[\w.+-]+@[\w-]+\.[\w.]*\w"),
    "url": re.compile(r"https?://[^\s\"'<>)]*[^\s\"'<>).,?!]"),
    "uri": re.compile(r"https?://[^\s\"'<>)]*[^\s\"'<>).,?!]"),
    "link": re.compile(r"https?://[^\s\"'<>)]*[^\s\"'<>).,?!]"),
    "uuid": re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE),
}
DOMAIN = re.compile(r"\b(?:[\w-]+\.)+(?:com|org|net|io|dev|ai|edu|gov)\b(?:/[\w./-]*)?")
FORMULA = re.compile(r"[-(]*\d[\d\s.,()+*/^x×÷%-]*\d\)*")
IDENTIFIER = re.compile(r"#?\b([A-Z]+-?\d[\w-]*|[A-Za-z]+_\w*\d\w*|\d{3,}|[a-z]+-\d+)\b")
CHANNEL = re.compile(r"#[\w-]+")
OBJECT = re.compile(
    r"(?:\w+)\s+(?:(?:me|us|on|up)\s+)?(?:(?:some|the|an?|my|all)\s+)?(.+?)(?=\s+(?:by|from|in|on|to|with|for|at|of|"
    r"as)\b|[.?!,]|$)"
)
LANGUAGES = re.compile(
    r"\b(English|French|German|Spanish|Italian|Portuguese|Dutch|Japanese|Chinese|Mandarin|Korean|Russian|Arabic|Hindi|"
    r"Polish|Swedish|Turkish|Greek)\b",
    re.IGNORECASE,
)  # fmt: skip
CURRENCIES = {"dollar": "USD", "euro": "EUR", "yen": "JPY", "pound": "GBP", "franc": "CHF", "rupee": "INR", "yuan": "CNY"}
CURRENCY = re.compile(r"\b(?:[A-Z]{3}\b|(?:dollar|euro|yen|pound|franc|rupee|yuan)s?\b)|[$€£¥]")
SIGN_CURRENCIES = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY"}
REPOSITORY = re.compile(r"\b[\w.-]+/[\w.-]+\b")
SEARCHED = re.compile(
    r"^(?:.*?\b)?(?:search|google|look up|look for|look into|find out|find|research|browse|retrieve|query|looking for|"
    r"grep)\b"
    r"(?:\s+(?:on|through|in)?\s*(?:the |our |my )?(?:web|internet|online|google|wikipedia|knowledge base|docs|"
    r"documentation|documents|database|codebase))*"
    r"(?:\s+(?:for|about|on))?\s+(?:information (?:about|on)\s+|all (?:the )?(?:usages|occurrences|references|uses) "
    r"of\s+)?(.+)",
    re.IGNORECASE | re.DOTALL,
)  # fmt: skip
TRANSLATED = re.compile(
    r"\b(?:translate|say|convert)\s+(?:the (?:word|phrase|sentence|text):?\s+)?(.+?)\s+(?:in)?to\s+[A-Z]?[a-z]+|"
    r"\bsay\s+(.+?)\s+in\s+\w+",
    re.IGNORECASE,
)
REPLACED = re.compile(
    r"\b(?:replace|change|rename|swap|substitute)\s+(?:the (?:word|text|string)\s+)?(.+?)\s+(?:with|to|by|for|"
    r"into)\s+(.+?)(?:\s+(?:in|inside|within|of|on|at)\s+\S+.*|[.?!]?$)",
    re.IGNORECASE,
)
BODY = re.compile(
    r"(?:\b(?:saying|that says|telling \w+(?: that)?|which says|with (?:the )?(?:body|message|text|content|contents|"
    r"note)|body|content|to tell \w+(?: that)?|that reads)\b:?\s+|:\s+)(.+)",
    re.IGNORECASE | re.DOTALL,
)
TITLE = re.compile(
    r"\b(?:with (?:the )?(?:subject|title)|titled|subject|entitled|called|named|about|regarding|"
    r"re)\b:?\s+(.+?)(?=\s+(?:saying|with (?:the )?(?:body|content|message)|and (?:say|tell|body)|that says|on \w+day|"
    r"tomorrow|today|at \d|to \S+@)\b|[.?!]?$)",
    re.IGNORECASE | re.DOTALL,
)
REMINDED = re.compile(
    r"\bremind (?:me|us|him|her|them)?\s*(?:(?:tomorrow|today|tonight|at \S+|on \w+)\s+)*(?:to|about|of|"
    r"that)\s+(.+?)(?:\s+(?:tomorrow|today|tonight|at \d\S*|on \w+day|next \w+|in \d+ \w+).*)?[.?!]?$",
    re.IGNORECASE,
)
TASK = re.compile(
    r"\b(?:add|create|make|put|new)\s+(?:a |an |the )?(?:(?:new )?(?:task|todo|to-do|item|note|reminder|event|issue|"
    r"ticket)\b(?: (?:to|for|about|called|titled|named|that|saying))?:?\s+)?(.+?)(?:\s+(?:to|on|in|into) (?:my|the|our) "
    r".*)?[.?!]?$",
    re.IGNORECASE,
)
MEETING = re.compile(
    r"\b((?:[a-z-]+ )?(?:meeting|call|lunch|dinner|appointment|interview|standup|review|sync|party|coffee)(?: (?:with|"
    r"about) [A-Z][\w]*(?: and [A-Z]\w*)*)?)",
    re.IGNORECASE,
)
DROPPED = word_set("weather forecast please in for at near of on the is what whats how celsius fahrenheit today "
                    "tomorrow now "
                    "tonight price stock temperature time population currently like")  # fmt: skip
CITY = re.compile(r"(?<=[a-z] )[A-Z][\w-]+(?: [A-Z][\w-]+)*")
DATED = re.compile(r"\b\d{4}-\d\d-\d\d\b|\b\d{1,2}(?::\d\d)?\s*(?:am|pm)\b|\b\d{1,2}:\d\d\b", re.IGNORECASE)
