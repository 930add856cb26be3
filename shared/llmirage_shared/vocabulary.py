"""The special tokens of the embedded tokenizer, and the byte alphabet of byte-level BPE."""

from __future__ import annotations

END_OF_TEXT = "<|end_of_text|>"
END_OF_TURN = "<|end_of_turn|>"
SYSTEM = "<|system|>"
DEVELOPER = "<|developer|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
TOOL = "<|tool|>"
TOOLS = "<|tools|>"
NAME = "<|name|>"
TOOL_CALL = "<|tool_call|>"
TOOL_ARGUMENTS = "<|tool_arguments|>"
END_OF_TOOL_CALL = "<|end_of_tool_call|>"
THINK = "<|think|>"
END_OF_THINK = "<|end_of_think|>"
IMAGE = "<|image|>"
AUDIO = "<|audio|>"
FILE = "<|file|>"
PAD = "<|pad|>"

SPECIAL_TOKENS = (
    END_OF_TEXT, END_OF_TURN, SYSTEM, DEVELOPER, USER, ASSISTANT, TOOL, TOOLS, NAME, TOOL_CALL, TOOL_ARGUMENTS,
    END_OF_TOOL_CALL, THINK, END_OF_THINK, IMAGE, AUDIO, FILE, PAD,
)  # fmt: skip


def byte_alphabet() -> list[str]:
    """Return the 256 characters that stand for bytes in byte-level BPE (GPT-2), in the order of their ids."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(b) for b in printable] + [chr(0x100 + i) for i in range(256 - len(printable))]
