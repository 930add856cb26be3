"""openai-python beside chat: embeddings, moderations, models."""

import numpy as np
import pytest
from openai import BadRequestError, NotFoundError, OpenAI


@pytest.fixture(scope="module")
def client(base_url: str) -> OpenAI:
    return OpenAI(base_url=base_url, api_key="none", max_retries=0)


def test_embeddings_which_the_sdk_asks_for_as_base64(client: OpenAI) -> None:
    told = client.embeddings.create(model="text-embedding-3-small", input=["Paris is in France", "France has Paris"])
    first, second = (np.array(entry.embedding) for entry in told.data)
    assert first.shape == (1536,)
    assert np.linalg.norm(first) == pytest.approx(1, abs=1e-6)
    assert first @ second > 0.5
    floats = client.embeddings.create(model="text-embedding-3-small", input="Paris is in France", encoding_format="float")
    assert floats.data[0].embedding == pytest.approx(first, abs=1e-7)
    assert told.usage.prompt_tokens == told.usage.total_tokens > 4


def test_fewer_dimensions_and_token_ids(client: OpenAI) -> None:
    assert (
        len(client.embeddings.create(model="text-embedding-3-large", input=[1, 2, 3], dimensions=64).data[0].embedding) == 64
    )
    assert len(client.embeddings.create(model="text-embedding-ada-002", input=[[1], [2, 3]]).data) == 2


def test_refusals_are_the_sdks_own_errors(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="empty") as refused:
        client.embeddings.create(model="text-embedding-3-small", input="")
    assert refused.value.param == "input"
    with pytest.raises(NotFoundError, match="does not exist"):
        client.embeddings.create(model="no-such-model", input="x")


def test_moderations_of_texts_and_of_parts(client: OpenAI) -> None:
    good, bad = client.moderations.create(input=["Good morning", "I will kill you"]).results
    assert (good.flagged, bad.flagged, bad.categories.violence, bad.categories.harassment_threatening) == (
        False,
        True,
        True,
        True,
    )
    assert bad.category_scores.violence > 0.5 > good.category_scores.self_harm_intent
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    [both] = client.moderations.create(model="omni-moderation-latest", input=[{"type": "text", "text": "Hi"}, image]).results  # type: ignore[list-item]
    assert both.category_applied_input_types.violence == ["text", "image"]
