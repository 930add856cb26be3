"""How far the step times of a model rest on measurements: which of its kernels, and of what shapes, were measured."""

from __future__ import annotations

from llmirage_server.perf.catalogue.layers import Gqa, LayerGroup, Mamba2, Mla, Moe

FITTED = "fitted: all of its kernels were measured, in these shapes or between them"

# Mixtures among the measured kernels: hidden size, width, experts per token, experts (aiconfigurator-core 0.12.0).
_MEASURED_MOE = frozenset({
    (2048, 512, 8, 256), (2048, 768, 8, 128), (2880, 2880, 4, 32), (2880, 2880, 4, 128), (3072, 1536, 8, 256),
    (4096, 1536, 8, 128), (4096, 14336, 2, 8), (5120, 8192, 1, 128), (6144, 2560, 8, 160), (7168, 2048, 8, 256),
    (7168, 2048, 8, 384),
})  # fmt: skip
_MEASURED_HEADS = (64, 128)
_MEASURED_WINDOWS = (0, 128)  # tokens


def model_confidence(groups: tuple[LayerGroup, ...], hidden: int) -> str:
    """Return FITTED, or "transferred: " and what was not measured."""
    reasons: dict[str, None] = {}
    for group in groups:
        attention, mlp = group.attention, group.mlp
        if isinstance(attention, Mamba2):
            reasons["no state space layer was measured"] = None
        if isinstance(attention, Gqa | Mla) and attention.index:
            reasons["no sparse attention was measured"] = None
        if isinstance(attention, Gqa) and attention.head_dim not in _MEASURED_HEADS:
            reasons[f"attention heads of {attention.head_dim} were not measured"] = None
        if isinstance(attention, Gqa) and attention.window not in _MEASURED_WINDOWS:
            reasons[f"windows of {attention.window:,} tokens were not measured"] = None
        if isinstance(mlp, Moe) and (mlp.latent or hidden, mlp.width, mlp.per_token, mlp.experts) not in _MEASURED_MOE:
            reasons["experts of this shape were not measured (20 to 40 % on held-out shapes)"] = None
    return f"transferred: {'; '.join(reasons)}" if reasons else FITTED
