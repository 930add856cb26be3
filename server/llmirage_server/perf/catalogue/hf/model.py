"""A model from a Hugging Face config.json on disk, for the architectures that the blocks of perf/layers.py describe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llmirage_server.perf.catalogue.hf.blocks import groups_of
from llmirage_server.perf.catalogue.hf.families import DEFAULTS, FAMILIES, REFUSED
from llmirage_server.perf.catalogue.hf.fields import Fields
from llmirage_server.perf.catalogue.hf.quantization import native_weights
from llmirage_server.perf.catalogue.models import ModelSpec
from llmirage_server.perf.confidence import model_confidence
from llmirage_server.perf.errors import DeploymentError


def model_from_config(path: str) -> ModelSpec:
    """Read config.json, or the one in the folder `path`. Raises DeploymentError with everything that is wrong with it."""
    file = Path(path).expanduser()
    if file.is_dir():
        file /= "config.json"
    config = _read(file)
    text = config.get("text_config")
    # what concerns the whole checkpoint may stand beside the text model of a multimodal one
    values = {**config, **text} if isinstance(text, dict) else config
    family = _family(file, config, text)
    f = Fields({**DEFAULTS.get(family, {}), **{key: value for key, value in values.items() if value is not None}})
    hidden, vocab = f.hidden, f.positive("vocab_size")
    max_model_len = f.positive("max_position_embeddings", "max_seq_len")
    groups = groups_of(FAMILIES[family](f))
    beside = file.with_name("hf_quant_config.json")
    model = ModelSpec(
        name=_name(file, config),
        hidden=hidden,
        vocab=vocab,
        max_model_len=max_model_len,
        groups=groups,
        source=str(file),
        tied_embeddings=f.flag("tie_word_embeddings"),
        native_weights=native_weights(f, _read(beside) if beside.is_file() else None),
        mtp_layers=f.count("num_nextn_predict_layers", "mtp_num_hidden_layers"),
        hears=any(config.get(key) for key in ("audio_config", "audio_processor")),  # Qwen2-Audio, Voxtral; Phi-4-multimodal
        confidence=model_confidence(groups, hidden),
    )
    if f.problems:
        raise DeploymentError([f"{file}: {problem}" for problem in f.problems])
    return model


def _read(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeploymentError([f"{file}: cannot be read: {error.strerror}"]) from None
    except ValueError as error:
        raise DeploymentError([f"{file}: not valid JSON: {error}"]) from None
    if not isinstance(config, dict):
        raise DeploymentError([f"{file}: must hold a JSON object"])
    return config


def _family(file: Path, config: dict[str, Any], text: Any) -> str:
    """The key of FAMILIES for a config: the type of its text model, or its own."""
    types = [text.get("model_type") if isinstance(text, dict) else None, config.get("model_type")]
    names = [name.removesuffix("_text") for name in types if isinstance(name, str)]
    for name in reversed(names):
        if name in REFUSED:
            raise DeploymentError([f"{file}: model_type {name!r} is known but not supported: {REFUSED[name]}"])
    for name in names:
        if name in FAMILIES:
            return name
    found = names[0] if names else None
    raise DeploymentError([f"{file}: model_type {found!r} is not supported; choices: {', '.join(FAMILIES)}"])


def _name(file: Path, config: dict[str, Any]) -> str:
    """The hub's name if the config kept it, else the folder, or the file where it is not called config.json."""
    name = config.get("_name_or_path")
    if isinstance(name, str) and name.count("/") == 1 and not name.startswith("/"):
        return name
    return file.resolve().parent.name if file.name == "config.json" else file.stem
