"""Parts of the OpenAI and the Anthropic API that are not simulated: their paths get a 404 that says so."""

from __future__ import annotations

# Each path with all below it, and what is there. docs/api.md lists them.
ABSENT: dict[str, str] = {
    "/v1/images": "Image generation",
    "/v1/videos": "Video generation",
    "/v1/audio": "Speech, transcription and translation",
    "/v1/realtime": "The Realtime API",
    "/v1/vector_stores": "Vector stores",
    "/v1/uploads": "Uploads in parts",
    "/v1/fine_tuning": "Fine-tuning",
    "/v1/assistants": "The Assistants API",
    "/v1/threads": "The Assistants API",
    "/v1/evals": "Evals",
    "/v1/containers": "Containers",
    "/v1/skills": "Skills",
    "/v1/chatkit": "ChatKit",
    "/v1/content_provenance_checks": "Content provenance checks",
    "/v1/organization": "Administration of organizations",
    "/v1/projects": "Administration of projects",
    "/v1/messages/batches": "Message Batches (Anthropic)",
}


def absent_part(path: str) -> str | None:
    """What a path belongs to, if that is not simulated."""
    return next((what for prefix, what in ABSENT.items() if path == prefix or path.startswith(f"{prefix}/")), None)
