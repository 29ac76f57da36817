"""What a run does not say of encoder and training is the method's own default; afterwards it is all said."""

from pathlib import Path
from typing import Any

import pytest

from ipal import ConfigError
from ipal.config import EncoderConfig, RunConfig, TrainConfig, run_config
from ipal.learners import EWC, IPAL, METHODS, load_learner
from ipal.learners.trained import TrainedLearner
from ipal.runs.config_files import read_preset
from ipal.runs.resolved import check_settings
from tests.learning import learn

TRAINED = [method for method in METHODS.values() if issubclass(method, TrainedLearner)]


def checked(**tree: Any) -> RunConfig:
    return check_settings(run_config({"dataset": "digits", **tree}))


@pytest.mark.parametrize("method", TRAINED)
def test_a_run_that_says_nothing_has_the_methods_defaults(method: type[TrainedLearner[Any]]) -> None:
    found, learner = checked(method=method.name), method(test_graph="isolated")
    assert (found.encoder, found.train) == (learner.settled, learner.train)


def test_ipal_has_defaults_of_its_own() -> None:
    learner, other = IPAL(), EWC()
    assert learner.encoder == EncoderConfig(kind="appnp", layers=1, hidden=2048, width=2048)
    assert learner.train == TrainConfig(epochs=5, lr_base=2e-3, lr_next=2e-3, relative=True)
    assert (other.encoder, other.train) == (EncoderConfig(), TrainConfig())
    assert checked(method="ipal").encoder != checked(method="ewc").encoder


def test_what_is_given_takes_the_place_of_a_default_and_the_rest_stays() -> None:
    found = checked(encoder={"width": 7}, train={"lr_next": 1e-4})
    assert found.encoder == IPAL(test_graph="isolated").settled.model_copy(update={"width": 7})
    assert found.train == IPAL().train.model_copy(update={"lr_next": 1e-4})
    assert checked(encoder={"kind": "appnp", "width": 7}).encoder == found.encoder
    assert checked(encoder={"kind": "sage", "width": 7}).encoder == EncoderConfig(kind="sage", width=7), "another kind"
    assert checked(method="ncm", encoder={"width": 7}).encoder == EncoderConfig(), "it has no encoder"


def test_a_checked_configuration_is_complete_and_stays_what_it_is() -> None:
    short, explicit = checked(), checked(encoder=dict(IPAL().encoder), train=dict(IPAL().train))
    assert (short.encoder.steps, short.encoder.restart) == (16, (0.02, 0.3))
    seen = checked(protocol={"test_graph": "seen"})
    assert (seen.encoder.steps, seen.encoder.restart) == (10, (0.2,))
    assert short.digest == explicit.digest
    for section in (short.encoder, short.train):
        assert section.model_fields_set == set(type(section).model_fields)
    again = run_config(short.to_tree())
    assert check_settings(again).digest == again.digest == short.digest
    of_other = check_settings(short.model_copy(update={"method": "ewc", "settings": {}}))
    assert of_other.encoder == short.encoder, "it was all said"


def test_in_python_a_section_is_as_it_is_and_names_are_over_the_defaults() -> None:
    assert IPAL(encoder=EncoderConfig(kind="gcn"), train=TrainConfig(epochs=2)).encoder == EncoderConfig()
    by_name = IPAL(encoder={"kind": "gcn"}, train={"epochs": 2})  # type: ignore[arg-type]
    assert by_name.encoder == EncoderConfig(), "nothing of the default is for another kind of network"
    assert IPAL(encoder={"width": 7}).encoder == IPAL().encoder.model_copy(update={"width": 7})  # type: ignore[arg-type]
    assert by_name.train == IPAL().train.model_copy(update={"epochs": 2})
    assert IPAL.from_settings(by_name.settings()).encoder == by_name.encoder
    with pytest.raises(ConfigError, match=r"encoder\.depth"):
        IPAL(encoder={"depth": 3})  # type: ignore[arg-type]


def test_a_method_of_ones_own_may_have_other_defaults() -> None:
    from pydantic.dataclasses import dataclass

    @dataclass(kw_only=True, eq=False)
    class Narrow(EWC):
        name = "narrow"
        title = "Narrow"
        encoder: EncoderConfig = EncoderConfig(width=3)

    assert Narrow.from_settings({"encoder": {"layers": 3}}).encoder == EncoderConfig(layers=3, width=3)
    assert Narrow(encoder=EncoderConfig(layers=3)).encoder.width == 128


def test_a_saved_model_is_of_its_own_encoder_and_not_of_the_default(tiny_stream: Any, tmp_path: Path) -> None:
    learner = IPAL(encoder=EncoderConfig(), train=TrainConfig(epochs=1), calibration=0.0)
    learn(learner, tiny_stream.task(0)).save(tmp_path / "model.safetensors")
    again: Any = load_learner(tmp_path / "model.safetensors")
    assert (again.encoder, again.train) == (learner.encoder, learner.train)


@pytest.mark.parametrize(("preset", "epochs", "gamma"), [("paper", 10, 0.4), ("printed", 200, 0.7)])
def test_presets_leave_nothing_to_defaults(preset: str, epochs: int, gamma: float) -> None:
    tree = read_preset(preset)
    found = checked(**tree)
    assert found.encoder == EncoderConfig(kind="gcn", layers=2, hidden=128, width=128)
    assert found.train == TrainConfig(epochs=epochs, lr_base=1e-3, lr_next=1e-4, relative=False)
    assert (found.settings["gamma"], found.settings["node_weights"]) == (gamma, "pagerank")
    assert set(tree["train"]) == set(TrainConfig.model_fields)
    assert set(tree["encoder"]) == set(EncoderConfig.model_fields) - {"heads", "steps", "restart"}, "a gcn has none"
    assert set(tree["ipal"]) == set(IPAL.own_settings()) - {"task_free", "momentum"}
