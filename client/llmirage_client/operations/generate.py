"""Synthetic workloads, from a preset or a YAML file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmirage_client.operations.workload import readable
from llmirage_client.settings.workload import GenerateSettings
from llmirage_client.workload.convert import ConversionError, convert
from llmirage_client.workload.session import Problem, Workload, WorkloadError
from llmirage_client.workload.synthesis.conversations import Plan, draw_plan
from llmirage_client.workload.synthesis.generated import sessions_of
from llmirage_client.workload.synthesis.profile import Profile, read_profile
from llmirage_shared.synthetic_text import SyntheticText
from llmirage_shared.tokenizer_loader import load


@dataclass(frozen=True, slots=True)
class GeneratedWorkload:
    """A workload, the parameters and the drawn plan that it is from, and its file."""

    profile: Profile
    plan: Plan
    workload: Workload
    file: bytes


def generate(preset: str, settings: GenerateSettings) -> GeneratedWorkload:
    """Draw a workload and write its texts. preset: a name, or a YAML file. Raises ConfigError."""
    seed = settings.random_seed
    with readable():
        profile = read_profile(preset, changes_of(settings), settings.rate)
        text = SyntheticText(load(settings.tokenizer)[0], seed)
        plan = draw_plan(profile, seed)
        workload = sessions_of(profile, plan, text, settings.token_ids)
        try:
            converted = convert(workload, profile.format)
        except ConversionError as error:
            raise WorkloadError(preset, [Problem(str(error), field="format")]) from None
    return GeneratedWorkload(profile, plan, workload, converted.data)


def changes_of(settings: GenerateSettings) -> list[tuple[str, Any]]:
    """Return the parameters that the settings change."""
    short = {"conversations": settings.conversations, "format": settings.to}
    return [*settings.set, *((name, value) for name, value in short.items() if value is not None)]
