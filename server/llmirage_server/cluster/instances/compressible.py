"""Which instances may run through steady decoding in one go."""

from __future__ import annotations

from llmirage_server.cluster.instances.base import Role
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.schedulers import scheduler_class


def can_compress(step_model: object, limits: EngineLimits, role: Role, tiers: int) -> bool:
    """Whether `CompressedInstance` can stand for an instance: its step times come from sums, its scheduler works with it."""
    return (
        getattr(step_model, "steady", None) is not None
        and scheduler_class(limits).can_form_beside(limits)
        and role == "both"
        and not tiers
    )
