"""The shell command, the file or the query that a text asks for, in its own words where it has them."""

from __future__ import annotations

import re

FILE = re.compile(
    r"(?<![\w@:/.-])(?:~?/[\w./~-]*\w|\.{1,2}/[\w./-]+|(?:[\w-]+/)+[\w.-]*\w|[\w-]{2,}/(?=\s|$)|"
    r"[\w-]+(?:\.[\w-]+)*\.(?!com\b|org\b|net\b|io\b|ai\b)[A-Za-z]\w{0,5}\b|"
    r"Makefile|Dockerfile|README|LICENSE|\.env|\.gitignore)(?!@)"
)
_CODE = re.compile(r"```(?:\w+\n)?(.*?)```|`([^`\n]+)`", re.DOTALL)
_RUN = re.compile(
    r"\b(?:run|execute|exec|invoke|type|launch)\s+(?:the\s+)?(?:(?:shell |bash |terminal )?command:?\s+)?(.+)",
    re.IGNORECASE | re.DOTALL,
)
_RUN_ENDS = re.compile(
    r"(?:\s+(?:in|on|using|with|from|via)\s+(?:the\s+|a\s+|my\s+)?(?:terminal|shell|bash|console|command line|sandbox)|"
    r"\s+command|\s+for me|\s+please"
    r"|\s+and\s+(?:tell|show|give|report|let|explain|summari[sz]e)\b.*|[.?!])+\s*$",
    re.IGNORECASE | re.DOTALL,
)  # fmt: skip
_NOT_A_COMMAND = re.compile(
    r"(?:the|a|an|my|this|that|these|all|some|it|your|our|tests?|code|script|query|sql|python|analysis|report)\b",
    re.IGNORECASE,
)
_COMMAND = re.compile(r"[a-z./~][\w./~+-]*(?:\s|$)")
# What people say, and what they would type.
_TYPED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(said, re.IGNORECASE), typed)
    for said, typed in (
        (r"\b((?:git|npm|pip|docker|kubectl|make|cargo|go|yarn|pnpm|uv|brew|apt) [a-z][\w-]*(?: -{1,2}\w[\w-]*)*)", "{1}"),
        (r"\brun (?:all )?(?:the |my |our )?(?:unit )?tests?\b", "pytest"),
        (r"\b(?:current|working) (?:working )?directory\b", "pwd"),
        (r"\b(?:list|show|see|which|what)\b.{0,25}\b(?:files|folders|director(?:y|ies))\b", "ls {file}"),
        (r"\b(?:show|print|display|cat|read|view|contents? of|what(?:'s| is) in)\b.*", "cat {file}"),
        (r"\b(?:make|create|new) (?:a |an )?(?:new )?(?:directory|folder)(?: (?:called|named))? ([\w./-]+)", "mkdir {1}"),
        (r"\b(?:delete|remove)\b.*", "rm {file}"),
        (r"\bhow many lines\b.*|\bcount (?:the )?lines\b.*", "wc -l {file}"),
        (r"\bdisk (?:space|usage)\b|\bspace (?:is )?left\b", "df -h"),
        (r"\b(?:memory|ram)\b", "free -h"),
        (r"\bprocess(?:es)?\b", "ps aux"),
        (r"\bwho am i\b|\b(?:which|what) user\b|\busername\b", "whoami"),
        (r"\b(?:kernel|operating system|os) version\b|\bwhich (?:os|operating system)\b", "uname -a"),
        (r"\binstall (?:the )?(?:package )?([\w.-]+)", "pip install {1}"),
        (r"\b(?:grep|search) (?:for )?[\"'`]?([\w.-]+)[\"'`]? (?:in|through)\b.*", "grep -rn {1} {file}"),
        (r"\bfind\b.*\b(?:files? (?:called|named|matching)) [\"'`]?([\w.*-]+)", "find . -name {1}"),
        (r"\buptime\b", "uptime"),
    )
)  # fmt: skip
_SQL = re.compile(r"\b(?:SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE TABLE|WITH)\b.*", re.DOTALL)
_TABLE = re.compile(
    r"\b(?:how many|number of|count|list|show|get|find|fetch|select|display|all|average|"
    r"total)\s+(?:me\s+)?(?:of\s+)?(?:all\s+|the\s+|our\s+|every\s+|"
    r"(?:active|new|recent|last|top|first|open|different)\s+|\d+\s+)*([a-z]{3,}s)\b",
    re.IGNORECASE,
)  # fmt: skip


def code_of(said: str) -> str | None:
    """What stands in a code block or between backticks."""
    match = _CODE.search(said)
    return None if match is None else (match[1] or match[2] or "").strip() or None


def command_of(said: str) -> str | None:
    """The command for a shell that does what was said, None where nothing of the kind was said."""
    if (code := code_of(said)) is not None and not FILE.fullmatch(code):
        return code
    if (run := _RUN.search(said)) is not None:
        rest = _RUN_ENDS.sub("", run[1]).strip(" \"'“”")
        if _COMMAND.match(rest) and not _NOT_A_COMMAND.match(rest):
            return rest
    file = FILE.search(said)
    for pattern, typed in _TYPED:
        if (match := pattern.search(said)) is None:
            continue
        if "{file}" in typed and file is None and not typed.startswith(("ls", "grep")):
            continue
        filled = typed.replace("{file}", file[0] if file else "." if typed.startswith("grep") else "")
        return filled.replace("{1}", match[1] if match.groups() else "").strip()
    return None


def sql_of(said: str) -> str | None:
    """The statement in a text, or a simple one for what it asks to know of the rows of a table."""
    if (code := code_of(said)) is not None:
        return code
    if (match := _SQL.search(said)) is not None:
        return match[0].strip()
    if (table := _TABLE.search(said)) is None:
        return None
    counted = re.search(r"\b(?:how many|number of|count)\b", said, re.IGNORECASE)
    top = re.search(r"\b(?:top|first|last)\s+(\d+)", said, re.IGNORECASE)
    what = "COUNT(*)" if counted else "*"
    return f"SELECT {what} FROM {table[1].lower()}" + (f" LIMIT {top[1]}" if top else "")
