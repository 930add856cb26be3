"""The types that items of the Responses API may have."""

ITEMS = (
    "message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning",
    "item_reference",
)  # fmt: skip
# Of hosted tools, and others that are stored as they are.
OTHER_ITEMS = (
    "web_search_call", "file_search_call", "computer_call", "computer_call_output", "code_interpreter_call",
    "image_generation_call", "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output",
    "apply_patch_call", "apply_patch_call_output", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response",
    "mcp_call", "compaction", "compaction_trigger", "tool_search_call", "tool_search_output", "additional_tools", "program",
    "program_output",
)  # fmt: skip
