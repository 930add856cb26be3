"""Patches apply to the files that a conversation shows, whatever the files are and however they were shown."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from apply_patch_grammar import APPLY_PATCH

from llmirage_server.replies.compose import ComposedReplies
from llmirage_server.replies.reply import Grammar, Reply, ReplyRequest, Tool
from llmirage_shared.wire.chat import chat_history

TEXT: Any = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
CUSTOM = Tool(
    "custom", "apply_patch", "The `apply_patch` tool can be used to edit files.", None, Grammar("lark", APPLY_PATCH)
)
FUNCTION = Tool("function", "apply_patch", "Apply a patch.", TEXT)
HOSTED = Tool("client", "apply_patch", "Change a file.", None)
TOOLS = {"custom": CUSTOM, "without a grammar": Tool("custom", "apply_patch"), "function": FUNCTION, "hosted": HOSTED}

CODE = "def f():\n    return 1\n\n\ndef g():\n    return 2\n\n\ndef h():\n    return 1\n"
FILES = {
    "main.py": CODE,
    "tabs.go": "package main\n\nfunc main() {\n\tx := 1\n\tif x > 0 {\n\t\tprintln(x)\n\t}\n}\n",
    "crlf.txt": "one\r\ntwo\r\nthree\r\n",
    "no_end.txt": "alpha\nbeta",
    "grüße.md": "# Grüße — “Welt”\n\nпривет мир\n日本語\u2028x\n",
    "one.txt": "single\n",
    "my notes.txt": "buy milk\nbuy eggs\n",
    "Makefile": "all:\n\techo hi\n",
    "blank.txt": "\n\n\na\n\n\n",
    "deep/dir/x.json": '{\n  "a": 1,\n  "b": [1, 2]\n}\n',
    "ends.txt": "a  \nb\t\n   c\n",
    "marks.txt": "*** End Patch\n@@ x\n+plus\n-minus\n*** Begin Patch\n",
    "long.txt": "".join(f"line {number} is {number % 7}\n" for number in range(300)),
    "numbered.txt": "1: a\n2: b\n3: c\n",
}


# --- conversations ------------------------------------------------------------------------------------------------------


class Conversation:
    """Messages in chat's form, as an agent's turns make them, and the files that its patches change."""

    def __init__(self, source: ComposedReplies, files: Mapping[str, str], tool: Tool = CUSTOM) -> None:
        self.source, self.tool = source, tool
        self.files = dict(files)
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": "<environment_context>cwd</environment_context>"}]

    def called(self, call: dict[str, Any], result: str) -> None:
        call_id = f"call_{len(self.messages)}"
        self.messages += [
            {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, **call}]},
            {"role": "tool", "tool_call_id": call_id, "content": result},
        ]

    def function(self, name: str, arguments: Any, result: str) -> None:
        self.called({"type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}, result)

    def show(self, path: str, command: str = "cat {}", printed: Callable[[str], str] = str) -> None:
        quoted = f"'{path}'" if " " in path else path
        result = (
            f"Chunk ID: 58f5ca\nWall time: 0.0 seconds\nProcess exited with code 0\nOutput:\n{printed(self.files[path])}"
        )
        self.function("exec_command", {"cmd": command.format(quoted)}, result)

    def reply(self, said: str, *tools: Tool) -> Reply:
        self.messages.append({"role": "user", "content": said})
        history = chat_history(self.messages)
        return self.source.reply(
            ReplyRequest(
                prompt_ids=np.arange(20, dtype=np.int32),
                last_user_text=said,
                max_tokens=None,
                limit_tokens=20_000,
                tools=tools or (self.tool,),
                called=history.called,
                results=history.results,
                messages=history.messages,
            )
        )

    def ask(self, said: str) -> str:
        """What the tool is given; its patches are applied."""
        [part] = (reply := self.reply(said)).parts
        given = reply.said(part)
        if part.kind == "custom_call":
            self.called({"type": "custom", "custom": {"name": "apply_patch", "input": given}}, apply(given, self.files))
        else:
            arguments = json.loads(given)
            patch = arguments["input"] if "input" in arguments else envelope(arguments["operation"])
            self.function("apply_patch", arguments, apply(patch, self.files))
        return given


def envelope(operation: Mapping[str, str]) -> str:
    heads = {"create_file": "Add", "update_file": "Update", "delete_file": "Delete"}
    assert ("diff" in operation) == (operation["type"] != "delete_file")
    diff = operation.get("diff", "")
    return f"*** Begin Patch\n*** {heads[operation['type']]} File: {operation['path']}\n{diff}*** End Patch"


def apply(patch: str, files: dict[str, str]) -> str:
    """Apply a patch strictly: each hunk must be found, after the one before it, as it is written."""
    first, *lines, last = patch.split("\n")
    assert (first, last) == ("*** Begin Patch", "*** End Patch")
    while lines:
        kind, _, path = lines.pop(0).removeprefix("*** ").partition(" File: ")
        body = []
        while lines and not lines[0].startswith("*** "):
            body.append(lines.pop(0))
        if kind == "Add":
            assert body
            assert all(line.startswith("+") for line in body)
            files[path] = "".join(f"{line[1:]}\n" for line in body)
        elif kind == "Delete":
            assert not body
            del files[path]
        else:
            files[path] = updated(files[path], body)
    return "Exit code: 0\nWall time: 0 seconds\nOutput:\nSuccess. Updated the following files:\n"


def updated(text: str, body: list[str]) -> str:
    end = "\r\n" if "\r\n" in text else "\n"
    old = text.replace("\r\n", "\n").removesuffix("\n").split("\n") if text else []
    assert body[0] == "@@"
    at = 0
    for hunk in "\n".join(body).removeprefix("@@\n").split("\n@@\n"):
        lines = hunk.split("\n")
        assert all(line[:1] in (" ", "+", "-") for line in lines), lines
        expected = [line[1:] for line in lines if line[0] != "+"]
        found = next(place for place in range(at, len(old) + 1) if old[place : place + len(expected)] == expected)
        found = found if expected else len(old)
        left = [line[1:] for line in lines if line[0] != "-"]
        assert left != expected
        old[found : found + len(expected)] = left
        at = found + len(left)
    return "".join(f"{line}{end}" for line in old)


# --- how files are shown ------------------------------------------------------------------------------------------------


def lines_of(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def piece(start: int, end: int) -> Callable[[str], str]:
    return lambda text: "".join(f"{line}\n" for line in lines_of(text)[start - 1 : end])


def numbered(text: str, form: str = "{:6}\t{}\n") -> str:
    return "".join(form.format(number, line) for number, line in enumerate(lines_of(text), 1))


def left_out(text: str) -> str:
    return text if len(text) < 99 else f"{text[:50]}…99 tokens truncated…{text[-40:]}"


SHOWN: dict[str, tuple[str, Callable[[str], str]]] = {
    "cat": ("cat {}", str),
    "sed": ("sed -n 1,80p {}", piece(1, 80)),
    "a part": ("sed -n '2,4p' {}", piece(2, 4)),
    "nl": ("nl -ba {}", numbered),
    "a numbered part": ("nl -ba {} | sed -n '1,4p'", lambda text: piece(1, 4)(numbered(text))),
    "cat -n": ("cat -n {}", numbered),
    "head": ("head -n 3 {}", piece(1, 3)),
    "tail": ("tail -n 3 {}", lambda text: "".join(f"{line}\n" for line in lines_of(text)[-3:])),
    "lines that are left out": ("cat {}", left_out),
}  # fmt: skip


@pytest.mark.parametrize("way", SHOWN)
@pytest.mark.parametrize("path", FILES)
def test_a_shown_file_is_updated(source: ComposedReplies, path: str, way: str) -> None:
    talk = Conversation(source, FILES)
    talk.show(path, *SHOWN[way])
    for said in (
        f"Use apply_patch to mend {path}",
        "apply_patch: something else",
        f"Use apply_patch to append `end` to {path}",
    ):
        before = dict(talk.files)
        given = talk.ask(said)
        assert f"*** Update File: {path}\n" in given
        assert [name for name in FILES if talk.files[name] != before[name]] == [path]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    "said",
    [
        "Use apply_patch to replace 'return 1' by 'return 3' in main.py",
        "apply_patch main.py: change `return 1` to `return 3`",
        "In main.py, use apply_patch: `return 3` instead of `return 1`",
        "Use apply_patch to replace `return 1` in `main.py` with `return 3`",
        "Use apply_patch to change return 1 to return 3 in main.py",
        "Use apply_patch to rename return 1 to return 3.",
        "Use apply_patch to change the value from return 1 to return 3 in ./main.py please",
    ],
)
def test_a_replacement_is_obeyed_wherever_the_text_stands(source: ComposedReplies, said: str, tool: str) -> None:
    talk = Conversation(source, {"main.py": CODE}, TOOLS[tool])
    talk.show("main.py")
    talk.ask(said)
    assert talk.files == {"main.py": CODE.replace("return 1", "return 3")}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Use apply_patch to replace ```\nreturn 1\n\n\ndef g():\n``` by ```\nreturn 7\n\ndef g(x):\n``` in main.py",
         CODE.replace("return 1\n\n\ndef g():", "return 7\n\ndef g(x):")),
        ("Use apply_patch to insert `    x = 1` after `def g` in main.py",
         CODE.replace("def g():\n", "def g():\n    x = 1\n")),
        ("Use apply_patch to add \"import os\" at the top of main.py", f"import os\n{CODE}"),
        ("Use apply_patch to append `print(f())` to main.py", f"{CODE}print(f())\n"),
        ("Use apply_patch to remove `    return 2` from main.py", CODE.replace("    return 2\n", "")),
        ("Use apply_patch to add a line saying # the end to main.py", f"{CODE}# the end\n"),
        ("Use apply_patch so that main.py is\n```python\nprint(1)\nprint(2)\n```\n", "print(1)\nprint(2)\n"),
        ("Use apply_patch to replace `RETURN 2` by `return 4` in main.py", CODE.replace("return 2", "return 4")),
        (r"Use apply_patch to replace `return 2` by `'\1\n'` in main.py", CODE.replace("return 2", r"'\1\n'")),
    ],
)  # fmt: skip
def test_what_is_asked_for_is_done(source: ComposedReplies, said: str, expected: str) -> None:
    talk = Conversation(source, {"main.py": CODE})
    talk.show("main.py")
    talk.ask(said)
    assert talk.files == {"main.py": expected}


@pytest.mark.parametrize("tool", TOOLS)
def test_files_are_followed_from_patch_to_patch(source: ComposedReplies, tool: str) -> None:
    talk = Conversation(source, {}, TOOLS[tool])
    for said, expected in (
        ("Use apply_patch to create notes.txt saying hello world", "hello world\n"),
        ("Change hello to goodbye in notes.txt", "goodbye world\n"),
        ("Append `bye` to notes.txt with apply_patch", "goodbye world\nbye\n"),
        ("Use apply_patch: replace 'bye' by 'by'", "goodby world\nby\n"),
        ("Use apply_patch to remove 'by' from notes.txt", "goodby world\n"),
    ):
        talk.ask(said)
        assert talk.files == {"notes.txt": expected}
    assert "delete_file" in (given := talk.ask("Delete the file notes.txt")) or "*** Delete File: notes.txt" in given
    assert talk.files == {}
    talk.ask("Use apply_patch to add a file notes.txt with the text 'again'")
    assert talk.files == {"notes.txt": "again\n"}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Use apply_patch to add a file hello.txt containing hi", {"hello.txt": "hi\n"}),
        ("Use apply_patch to create `src/new file.py`", {"src/new file.py": "# create\n"}),
        ("Use apply_patch to write app.js:\n```js\nlet a = 1;\nlet b;\n```", {"app.js": "let a = 1;\nlet b;\n"}),
        ("apply_patch", {"notes.txt": "changed\n"}),
    ],
)
def test_an_unseen_file_is_added(source: ComposedReplies, said: str, expected: Mapping[str, str], tool: str) -> None:
    talk = Conversation(source, {}, TOOLS[tool])
    talk.ask(said)
    assert talk.files == expected


def test_what_the_request_quotes_of_a_file_is_there(source: ComposedReplies) -> None:
    talk = Conversation(source, {"main.py": CODE})
    talk.ask("Use apply_patch to replace '    return 2' by '    return 5' in main.py")
    assert talk.files == {"main.py": CODE.replace("return 2", "return 5")}


def test_of_several_files_the_named_one_is_changed_else_the_last_shown(source: ComposedReplies) -> None:
    talk = Conversation(source, FILES)
    for path in ("main.py", "src.txt", "one.txt"):
        if path in FILES:
            talk.show(path)
    assert "*** Update File: main.py" in talk.ask("Use apply_patch to mend main.py")
    talk.show("one.txt")
    assert "*** Update File: one.txt" in talk.ask("Use apply_patch to mend it")
    given = talk.ask("Use apply_patch to replace `single` by `double` in one.txt and `return 2` by `return 9` in main.py")
    assert (given.count("*** Update File: "), talk.files["one.txt"][:6]) == (2, "double")
    assert "return 9" in talk.files["main.py"]


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("read_file", {"path": "main.py"}, CODE),
        ("Read", {"file_path": "/home/me/main.py", "limit": 5},
         numbered(CODE, "{:6}→{}\n") + "\n<system-reminder>\nUse TodoWrite.\n</system-reminder>\n"),
        ("read", {"filePath": "main.py"},
         "<file>\n" + numbered(CODE, "{:05}| {}\n") + "\n(End of file - total 10 lines)\n</file>"),
        ("fs.view", {"path": "./main.py"}, json.dumps({"content": CODE, "lines": 10})),
        ("str_replace_editor", {"command": "view", "path": "main.py"}, numbered(CODE)),
        ("shell", {"command": ["bash", "-lc", "cat main.py"]}, json.dumps({"output": CODE, "metadata": {"exit_code": 0}})),
        ("shell", {"action": {"commands": ["cat main.py"]}}, json.dumps([{"stdout": CODE, "stderr": ""}])),
        ("bash", {"command": "cd src && sed -n '1,20p' main.py", "description": "Read"}, CODE),
        ("exec_command", {"cmd": "cat main.py", "workdir": "/home/me/src"}, CODE),
        ("exec_command", {"cmd": "cat main.py | head -50"}, CODE),
    ],
)  # fmt: skip
def test_other_tools_show_files_too(source: ComposedReplies, name: str, arguments: Any, result: str) -> None:
    talk = Conversation(source, {})
    talk.function(name, arguments, result)
    given = talk.reply("Use apply_patch to replace 'return 2' by 'return 3' in main.py").pieces
    path = "".join(given).partition("*** Update File: ")[2].partition("\n")[0]
    assert path.endswith("main.py")
    files = {path: CODE}
    apply("".join(given), files)
    assert files == {path: CODE.replace("return 2", "return 3")}


@pytest.mark.parametrize(
    "said",
    [
        f"Here is main.py:\n```python\n{CODE}```\nUse apply_patch to replace `return 2` by `return 3`.",
        f"<BEGIN_FILES>\n===== main.py\n{CODE}\n===== other.py\nprint(1)\n<END_FILES>\n"
        "Use apply_patch: replace `return 2` by `return 3`.",
        f'<file path="main.py">\n{CODE}</file>\nUse apply_patch to replace `return 2` by `return 3`.',
    ],
)
def test_a_file_in_a_message_is_shown(source: ComposedReplies, said: str) -> None:
    talk = Conversation(source, {"main.py": CODE})
    talk.ask(said)
    assert talk.files == {"main.py": CODE.replace("return 2", "return 3")}


def test_what_failed_or_was_written_otherwise_is_not_believed(source: ComposedReplies) -> None:
    talk = Conversation(source, {"main.py": CODE})
    talk.show("main.py")
    patch = "*** Begin Patch\n*** Update File: main.py\n@@\n-def g():\n+def k():\n*** End Patch"
    call = {"type": "custom", "custom": {"name": "apply_patch", "input": patch}}
    talk.called(call, "apply_patch verification failed: Failed to find expected lines")
    talk.ask("Use apply_patch to replace `def g` by `def gg` in main.py")
    assert "def gg" in talk.files["main.py"]
    talk.function("exec_command", {"cmd": "rm main.py"}, "Output:\n")
    assert "*** Add File: main.py" in "".join(talk.reply("Use apply_patch to mend main.py").pieces)


@pytest.mark.parametrize(
    "printed",
    [
        "0: a\n1: b\n",
        "0\tx",
        "\n" * 9000,
        "```\n" * 9000,
        "9999999999: a\n",
        "\r\n\r\n",
        "x" * 300_000,
        "{",
        "[{}]",
        "[...truncated]\n",
    ],
)
def test_whatever_a_tool_prints_a_patch_is_written(source: ComposedReplies, printed: str) -> None:
    for name, arguments in (("read_file", {"path": "main.py"}), ("exec_command", {"cmd": "cat main.py"})):
        talk = Conversation(source, {})
        talk.function(name, arguments, printed)
        for said in ("Use apply_patch to mend main.py", "Use apply_patch to replace 'x' by 'y' in main.py"):
            assert "*** Update File: main.py" in "".join(talk.reply(said).pieces)


def test_a_wish_to_change_a_file_names_the_tool(source: ComposedReplies) -> None:
    shell = Tool(
        "function", "exec_command", "Runs a command in a PTY.", {"type": "object", "properties": {"cmd": {"type": "string"}}}
    )
    talk = Conversation(source, {})
    for said, called in (("Fix the typo in README.md", True), ("What is README.md?", False), ("Change your mind", False)):
        parts = talk.reply(said, shell, CUSTOM).parts
        assert [part.name for part in parts] == ["apply_patch"] * called


def test_two_patches_of_one_reply_follow_each_other(source: ComposedReplies) -> None:
    talk = Conversation(source, {"main.py": CODE})
    talk.show("main.py")
    reply = talk.reply(
        "Use apply_patch to replace `def f` by `def a` and then use apply_patch to replace `    return 1` by `    return 8`"
    )
    assert len(reply.parts) == 2
    for part in reply.parts:
        apply(reply.said(part), talk.files)
    assert talk.files == {"main.py": CODE.replace("def f", "def a").replace("return 1", "return 8")}


# --- tools that replace a text ------------------------------------------------------------------------------------------


def of_strings(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


S: Any = {"type": "string"}
READ = Tool("function", "Read", "Reads a file.", of_strings(file_path=S))
EDITS = {
    "strings": Tool("function", "Edit", "Replaces text.", of_strings(file_path=S, old_string=S, new_string=S)),
    "a list": Tool(
        "function",
        "edit",
        "Edits a file.",
        of_strings(path=S, edits={"type": "array", "items": of_strings(oldText=S, newText=S)}),
    ),
}


@pytest.mark.parametrize("tool", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Replace `return 2` by `return 3` in main.py", CODE.replace("return 2", "return 3")),
        ("Change `return 1` to `return 5` in main.py", CODE.replace("return 1", "return 5", 1)),
        ("Add `# the end` at the end of main.py", f"{CODE}# the end\n"),
        ("Fix the function g in main.py", None),
    ],
)
def test_a_file_to_change_is_read_then_changed_by_a_text_that_it_has_once(
    source: ComposedReplies, tool: Tool, said: str, expected: str | None
) -> None:
    talk = Conversation(source, FILES)
    [part] = (reply := talk.reply(said, READ, tool)).parts
    assert (part.name, json.loads(reply.said(part))) == ("Read", {"file_path": "main.py"})
    talk.function("Read", {"file_path": "main.py"}, CODE)
    history = chat_history(talk.messages)
    request = ReplyRequest(
        prompt_ids=np.arange(20, dtype=np.int32),
        last_user_text=said,
        max_tokens=None,
        limit_tokens=20_000,
        tools=(READ, tool),
        called=history.called,
        results=history.results,
        messages=history.messages,
    )
    [part] = (reply := source.reply(request)).parts
    assert part.name == tool.name
    given = json.loads(reply.said(part))
    old, new = [*(given["edits"][0] if "edits" in given else given).values()][-2:]
    assert CODE.count(old) == 1
    changed = CODE.replace(old, new)
    assert changed == expected if expected is not None else changed != CODE
