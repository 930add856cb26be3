"""A GPU of the user's own, from a YAML file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmirage_server.perf.catalogue.gpus import LINK_KINDS, GpuSpec, gpu_from_entry, transferred
from llmirage_server.perf.catalogue.own_yaml import Key, one_of, positive, read_own, text, truth, whole
from llmirage_server.perf.errors import DeploymentError


def _price(value: Any) -> str:
    numbers = value if isinstance(value, list) else [value, value]
    good = len(numbers) == 2 and not any(map(positive, numbers)) and numbers[0] <= numbers[1]
    return "" if good else "must be a positive number, or a list of the lowest and the highest"


GPU_KEYS: dict[str, Key] = {
    "base": Key(text),  # a GPU of the catalogue: keys that the file has not are as there
    "name": Key(text),
    "memory_mib": Key(positive, required=True),  # as the driver reports it
    "bandwidth_tb_per_s": Key(positive, required=True),
    "tflops": Key(  # dense
        keys={"bf16": Key(positive, required=True), **{rate: Key(positive) for rate in ("fp8", "fp4", "int8")}},
        required=True,
    ),
    "sm": Key(whole, required=True),
    "link": Key(one_of(*LINK_KINDS), required=True),
    "link_gb_per_s": Key(positive, required=True),  # one direction, to the other GPUs of the node
    "link_gpus": Key(whole, required=True),  # GPUs that the link joins
    "peer_to_peer": Key(truth),  # false: copies between GPUs go through the host's memory
    "node_link_gb_per_s": Key(positive),  # one direction, to GPUs beyond them
    "node_link_latency_us": Key(positive),
    "host_gb_per_s": Key(positive),  # of copies from host memory
    "arch": Key(text),  # hopper, blackwell, ...: what engines treat it as
    "tdp_w": Key(positive),
    "price_usd_per_h": Key(_price),
    "constants_of": Key(text),  # a GPU of the catalogue whose measured kernels resemble this one's
    "source": Key(text),
}


_WITHIN_PERCENT = 30  # measured GPUs with another's kernels: latency off by 27 % in the 90th percentile (docs/accuracy.md)

# With a base nothing is required.
_CHANGED_KEYS = {name: replace(key, required=False) for name, key in GPU_KEYS.items()}
_CHANGED_KEYS["tflops"] = Key(keys={rate: Key(positive) for rate in GPU_KEYS["tflops"].keys or ()})


def gpu_from_file(path: str, find: Callable[[str], GpuSpec], entry_of: Callable[[str], Mapping[str, Any]]) -> GpuSpec:
    """Read a GPU file, whose keys are those of GPU_KEYS; `find` looks up GPUs that it names, `entry_of` a key's entry.

    Raises DeploymentError with every problem, each with file, line and key.
    """
    about = "a GPU file is a list of `key: value` lines, such as `memory_mib: 81559`"
    entry, lines = read_own(path, GPU_KEYS, about, ("base", _CHANGED_KEYS))
    named: dict[str, GpuSpec] = {}
    problems: list[str] = []
    for key in ("base", "constants_of"):
        if key in entry:
            try:
                named[key] = find(entry[key])
            except DeploymentError as error:
                problems += [f"{lines[(key,)]}: {key}: {problem}" for problem in error.problems]
    if problems:
        raise DeploymentError(problems)
    if (base := named.get("base")) is not None:
        whole = dict(entry_of(base.key))
        entry = whole | entry | {"tflops": whole["tflops"] | entry.get("tflops", {})}
        entry["name"] = entry["name"] if ("name",) in lines else f"{base.name} ({Path(path).stem})"
        entry["source"] = entry["source"] if ("source",) in lines else f"{path}, else {base.source}"
    twin = named.get("constants_of", base)
    measured = twin.constants_of if twin else None
    if twin and measured:
        whose = f"those measured on {find(measured).name}, as {Path(path).name} asks"
    else:
        whose = f"pooled fits of the measured {'PCIe cards' if entry['link'] == 'pcie' else 'NVLink GPUs'}"
    within = max(_WITHIN_PERCENT, round(100 * twin.within) if twin else 0)
    price = entry.get("price_usd_per_h")
    return gpu_from_entry(
        f"custom:{Path(path).stem}",
        {
            "name": Path(path).stem,
            "source": path,
            "arch": twin.arch if twin else "",
            **entry,
            "aliases": (),
            "price_usd_per_h": price if isinstance(price, list) or price is None else [price, price],
            "constants_of": measured,
            "within_percent": within,
        },
        transferred(whose, within),
    )
