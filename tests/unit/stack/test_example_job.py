"""The example job can be loaded, and says of its model what the model says of itself."""

from pathlib import Path

from evenkeel.trainer_sdk.elastic.config import config_from_json
from evenkeel.trainer_sdk.elastic.model.model import model_spec
from evenkeel.trainer_sdk.launcher.description.job_file import load_job

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "hybrid" / "job.json"


def test_the_example_loads_and_its_model_costs_are_those_of_its_configuration() -> None:
    spec, model = load_job(EXAMPLE, {})
    assert spec.world_size == 8
    assert model == model_spec(config_from_json(spec.config))
    assert spec.layout.num_blocks == len(model.blocks)
