"""Every model of the catalogue under every engine: it fits somewhere, and its steps make sense."""

import pytest

from llmirage_server.perf import DeploymentError
from llmirage_server.perf.catalogue.constants import ENGINES
from llmirage_server.perf.catalogue.dtypes import WEIGHT_DTYPES
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.catalogue.lookup import list_models
from llmirage_server.perf.catalogue.models import ModelSpec
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.memory import weights_bytes_per_rank
from llmirage_server.perf.parallelism import ONE_GPU
from llmirage_server.perf.steps.step_model import StepBatch


def smallest(model: ModelSpec, engine: str) -> Deployment:
    """The instance with the fewest B300 that works."""
    for gpus in (1, 2, 4, 8):
        try:
            return Deployment.create(model.name, "b300", engine=engine, tp=gpus, ep=gpus if model.moe else 1)
        except DeploymentError as error:
            refused = error
    raise refused


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", list_models(), ids=lambda m: m.name)
def test_a_step_is_slower_than_light_and_not_absurdly_so(model: ModelSpec, engine: str) -> None:
    deployment = smallest(model, engine)
    step, gpu = deployment.roofline, deployment.gpu
    for prefill, decode in (([], [3000] * 16), ([(4096, 0)], [])):
        operations = step.explain([StepBatch(prefill, decode)])
        seconds = step.step_s(prefill, decode)
        assert seconds == pytest.approx(sum(o.seconds for o in operations), rel=1e-12)
        assert sum(o.ideal_s for o in operations) <= seconds < 2.0
        assert all(o.ideal_s <= o.seconds for o in operations)
        assert seconds >= _lower_bound_s(model, gpu, deployment.parallel.tp, prefill or [(len(decode), 0)])


def _lower_bound_s(model: ModelSpec, gpu: GpuSpec, tp: int, prefill: list[tuple[int, int]]) -> float:
    """FLOPs of the weights that tokens meet, tables aside, at the fastest rate of the GPU."""
    tables = model.embedding_weights * (1 if model.tied_embeddings else 2)
    tokens = sum(new for new, _ in prefill)
    return 2.0 * tokens * (model.active_parameters - tables) / (tp * max(gpu.flops.values()))


@pytest.mark.parametrize("model", list_models(), ids=lambda m: m.name)
def test_bf16_weights_of_one_gpu_are_two_bytes_each(model: ModelSpec) -> None:
    assert weights_bytes_per_rank(model, WEIGHT_DTYPES["bf16"], ONE_GPU) == 2 * model.parameters
