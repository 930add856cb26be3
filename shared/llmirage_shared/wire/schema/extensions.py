"""Fields that OpenAI does not document, but serving engines and other providers do, so that clients send them.

They are accepted. Any other undeclared field is refused, as the OpenAI API refuses it.
"""

# vLLM, SGLang, TensorRT-LLM, llama.cpp and Dynamo: of every request that generates.
_SAMPLING = (
    "add_special_tokens", "allowed_token_ids", "bad_words", "bootstrap_host", "bootstrap_port", "bootstrap_room",
    "cache_prompt", "cache_salt", "custom_logit_processor", "custom_params", "data_parallel_rank", "detokenize",
    "disagg_prefill_dp_rank", "disaggregated_params", "dry_allowed_length", "dry_base", "dry_multiplier",
    "dry_penalty_last_n", "dynatemp_exponent", "dynatemp_range", "early_stopping", "ec_transfer_params", "extra_key",
    "guided_decoding_backend", "guided_whitespace_pattern", "id_slot",
    "kv_transfer_params", "length_penalty", "logits_processors", "lora_path", "lora_request", "mirostat", "mirostat_eta",
    "mirostat_tau", "n_keep", "n_predict", "n_probs", "no_stop_trim", "nvext", "repeat_last_n", "repeat_penalty",
    "repetition_detection", "request_id", "return_cached_tokens_details", "return_hidden_states", "return_meta_info",
    "return_progress", "return_prompt_text", "return_routed_experts", "return_token_offsets",
    "rid", "routed_dp_rank", "routing_key", "samplers", "session_id", "session_params", "spaces_between_special_tokens",
    "stop_regex", "timings_per_token", "top_a", "tfs", "tfs_z", "truncation_side", "typical_p",
    "use_beam_search", "vllm_xargs", "xtc_probability", "xtc_threshold",
)  # fmt: skip

CHAT_EXTENSIONS = frozenset((
    *_SAMPLING, "best_of", "chat_template", "conversation_params", "documents", "echo", "enable_thinking",
    "image_max_dynamic_patch", "input_ids", "max_dynamic_patch", "media_io_kwargs", "min_dynamic_patch",
    "mm_processor_kwargs", "reasoning_format", "return_assistant_tokens_mask", "return_prompt_token_ids",
    "separate_reasoning", "stream_reasoning", "thinking", "thinking_budget", "thinking_token_budget", "use_audio_in_video",
    # OpenAI's, without an effect here
    "moderation", "prompt_cache_options",
))  # fmt: skip

COMPLETIONS_EXTENSIONS = frozenset(
    (*_SAMPLING, "max_completion_tokens", "metadata", "prompt_embeds", "return_prompt_token_ids")
)

RESPONSES_EXTENSIONS = frozenset((
    "cache_salt", "chat_template_kwargs", "client_metadata", "context_management", "enable_response_messages",
    "extra_key", "include_stop_str_in_output", "kv_transfer_params", "logit_bias", "min_p", "mm_processor_kwargs",
    "moderation", "n", "personality", "previous_input_messages", "priority", "prompt_cache_options", "repetition_penalty",
    "request_id", "rid", "skip_special_tokens", "stop", "stop_token_ids", "top_k", "vllm_xargs",
))  # fmt: skip

EMBEDDINGS_EXTENSIONS = frozenset((
    "add_special_tokens", "bytes_only", "cache_salt", "chat_template", "chat_template_kwargs", "embed_dtype", "endianness",
    "input_type", "lora_path", "messages", "mm_processor_kwargs", "modality", "normalize", "nvext", "priority", "request_id",
    "rid", "truncate", "truncate_prompt_tokens", "truncation_side", "use_activation",
))  # fmt: skip

MESSAGES_EXTENSIONS = frozenset((
    "betas", "billing_policy", "cache_control", "chat_template_kwargs", "compaction", "diagnostics",
    "fallback_credit_token", "fallbacks", "inference_geo", "kv_transfer_params", "message", "prefill", "speed",
    "user_profile_id", "workspace_id",
))  # fmt: skip
