"""The bodies of endpoints that only engines or llmirage have: SGLang's, vLLM's and /llmirage."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from llmirage_shared.wire.schema.base import Integer, KeptName, Number, WireModel, either
from llmirage_shared.wire.schema.chat import PROMPT, TOKEN_IDS, ChatTool, Message, SamplingFields, StreamOptions


class SglangSampling(WireModel):
    """`sampling_params` of POST /generate."""

    max_new_tokens: Annotated[Integer, Field(ge=0)] | None = None
    min_new_tokens: Annotated[Integer, Field(ge=0)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Integer] | None = None
    no_stop_trim: bool | None = None
    ignore_eos: bool | None = None
    n: Annotated[Integer, Field(ge=1, le=128)] | None = None
    sampling_seed: Integer | None = None
    temperature: Annotated[Number, Field(ge=0)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Integer | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[Number, Field(ge=0, le=2)] | None = None
    skip_special_tokens: bool | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None


_TEXTS: dict[str, Any] = {"anyOf": [*PROMPT["anyOf"][:2], {"type": "null"}]}
_IDS: dict[str, Any] = {"anyOf": [*PROMPT["anyOf"][2:], {"type": "null"}]}


class GenerateRequest(WireModel):
    """POST /generate. `input_ids` is read by hand: there may be very many."""

    model_config = ConfigDict(json_schema_extra=either("text", "input_ids"))

    text: Annotated[str | list[str] | None, Field(json_schema_extra=_TEXTS)] = None
    input_ids: Annotated[Any, Field(json_schema_extra=_IDS)] = None
    sampling_params: SglangSampling | None = None
    rid: str | list[str] | None = None
    stream: bool | None = None
    return_logprob: bool | None = None
    logprob_start_len: Annotated[Integer, Field(ge=-1)] | None = None
    top_logprobs_num: Annotated[Integer, Field(ge=0, le=20)] | None = None
    return_text_in_logprobs: bool | None = None
    priority: Integer | None = None


class VllmSampling(SamplingFields):
    """`sampling_params` of POST /inference/v1/generate. What the request itself has replaces its fields here."""

    model: str = ""
    logprobs: Annotated[Integer, Field(ge=0, le=20)] | None = None
    detokenize: bool | None = None


class TokensRequest(WireModel):
    """POST /inference/v1/generate, as `.../render` answers. `token_ids` is read by hand: there may be very many."""

    token_ids: Annotated[Any, Field(json_schema_extra=TOKEN_IDS)]
    sampling_params: VllmSampling
    request_id: KeptName | None = None
    model: str | None = None
    features: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    output_mode: Literal["tokens", "text"] = "tokens"
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    priority: Integer | None = None
    kv_transfer_params: dict[str, Any] | None = None


class AbortRequest(WireModel):
    """POST /abort_request."""

    rid: str | None = None
    abort_all: bool | None = None


class LoadLoraAdapter(WireModel):
    """POST /v1/load_lora_adapter and /load_lora_adapter. The last three have no effect here."""

    lora_name: KeptName
    lora_path: Annotated[str, Field(max_length=4096)]
    load_inplace: bool | None = None
    is_3d_lora_weight: bool | None = None
    pinned: bool | None = None
    lora_id: str | None = None


class UnloadLoraAdapter(WireModel):
    """POST /v1/unload_lora_adapter and /unload_lora_adapter."""

    lora_name: str
    lora_int_id: Integer | None = None
    lora_id: str | None = None


class TokenizeRequest(WireModel):
    """POST /tokenize: a text, or a conversation as the chat template writes it."""

    model_config = ConfigDict(json_schema_extra=either("prompt", "messages"))

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    tools: list[ChatTool] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(WireModel):
    """POST /detokenize. `tokens` is read by hand: there may be very many."""

    model: str | None = None
    tokens: Annotated[Any, Field(json_schema_extra={**TOKEN_IDS, "minItems": 0})]


class InstanceAction(WireModel):
    """POST /llmirage/instances: what becomes of one instance. stop: it finishes the requests that it has."""

    instance: Annotated[int, Field(description="Its number, from 0.")]
    action: Literal["start", "stop", "crash"]
    restart_after_s: Annotated[float, Field(description="Cluster time after which one that crashes is back.")] | None = None


class FaultsBody(WireModel):
    """POST /llmirage/faults: one fault with its parameters and conditions, or a list under `faults`. See docs/faults.md."""

    kind: Annotated[str, Field(description="The fault: a name from `llmirage faults`.")] | None = None
    faults: list[dict[str, Any] | str] | None = None
