"""What a run does not say of encoder and training is the method's own default; afterwards it is all said."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ipal import ConfigError
from ipal.bench.experiment_file import as_tree, read_experiment, read_preset
from ipal.config import EncoderConfig, RunConfig, TrainConfig, run_config
from ipal.estimator import files
from ipal.estimator.registry import METHODS
from ipal.estimator.settings import LearnerConfig, learner_config, own_settings
from ipal.methods.base import Method, Trained
from ipal.methods.ewc import EWC
from ipal.methods.ipal import IPAL
from ipal.runs.config_files import presets
from ipal.runs.resolved import check_settings
from tests.learning import config, learn

TRAINED = [method for method in METHODS.values() if issubclass(method, Trained)]


def checked(**tree: Any) -> RunConfig:
    return check_settings(run_config({"dataset": "digits", **tree}))


def made(method: type[Method], **settings: Any) -> LearnerConfig:
    return learner_config(method, settings)


@pytest.mark.parametrize("method", TRAINED)
def test_a_run_that_says_nothing_has_the_methods_defaults(method: type[Trained]) -> None:
    found, learner = checked(method=method.name), made(method, test_graph="isolated")
    assert (found.encoder, found.train) == (learner.encoder, learner.train)


def test_ipal_has_defaults_of_its_own() -> None:
    assert IPAL.default_encoder == EncoderConfig(kind="appnp", layers=1, hidden=2048, width=2048)
    assert made(IPAL).train == TrainConfig(epochs=5, lr_base=2e-3, lr_next=2e-3, relative=True)
    assert (made(EWC).encoder, made(EWC).train) == (EncoderConfig(), TrainConfig(epochs=200))
    assert checked(method="ipal").encoder != checked(method="ewc").encoder


def test_settings_of_table_1_are_the_defaults() -> None:
    for entry in read_experiment(presets()["table1-cs"]).entries:
        if entry.label == entry.method:
            said = as_tree(entry.given)
            assert check_settings(run_config({**said, "method": entry.method})) == checked(
                dataset="cs", method=entry.method, protocol={"calibration": 0}
            )


def test_what_is_given_takes_the_place_of_a_default_and_the_rest_stays() -> None:
    found = checked(encoder={"width": 7}, train={"lr_next": 1e-4})
    assert found.encoder == made(IPAL, test_graph="isolated").encoder.model_copy(update={"width": 7})
    assert found.train == IPAL.default_train.model_copy(update={"lr_next": 1e-4})
    assert checked(encoder={"kind": "appnp", "width": 7}).encoder == found.encoder
    assert checked(encoder={"kind": "sage", "width": 7}).encoder == EncoderConfig(kind="sage", width=7), "another kind"
    assert checked(method="ncm", encoder={"width": 7}).encoder == EncoderConfig(), "it has no encoder"


def test_a_checked_configuration_is_complete_and_stays_what_it_is() -> None:
    short, explicit = checked(), checked(encoder=dict(IPAL.default_encoder), train=dict(IPAL.default_train))
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
    whole = made(IPAL, encoder=EncoderConfig(kind="gcn"), train=TrainConfig(epochs=2))
    assert (whole.encoder, whole.train) == (EncoderConfig(), TrainConfig(epochs=2))
    by_name = made(IPAL, encoder={"kind": "gcn"}, train={"epochs": 2})
    assert by_name.encoder == EncoderConfig(), "nothing of the default is for another kind of network"
    assert made(IPAL, encoder={"width": 7}).encoder == made(IPAL).encoder.model_copy(update={"width": 7})
    assert by_name.train == IPAL.default_train.model_copy(update={"epochs": 2})
    assert made(IPAL, **by_name.plain()).encoder == by_name.encoder
    with pytest.raises(ConfigError, match=r"encoder\.depth"):
        made(IPAL, encoder={"depth": 3})


def test_a_method_of_ones_own_may_have_other_defaults() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Narrow(EWC):
        name = "narrow"
        title = "Narrow"
        default_encoder = EncoderConfig(width=3)

    assert made(Narrow, encoder={"layers": 3}).encoder == EncoderConfig(layers=3, width=3)
    assert made(Narrow, encoder=EncoderConfig(layers=3)).encoder.width == 128


def test_a_saved_model_is_of_its_own_encoder_and_not_of_the_default(tiny_stream: Any, tmp_path: Path) -> None:
    model = learn(config(IPAL, encoder=EncoderConfig(), train=TrainConfig(epochs=1)), tiny_stream.task(0))
    files.save(model, tmp_path / "model.safetensors")
    again = files.load(tmp_path / "model.safetensors").config
    assert (again.encoder, again.train) == (model.config.encoder, model.config.train)


@pytest.mark.parametrize(
    ("preset", "epochs", "gamma"), [("paper", 200, 0.7), ("printed", 200, 0.7), ("drift-cs", 10, 0.4)]
)
def test_presets_leave_nothing_to_defaults(preset: str, epochs: int, gamma: float) -> None:
    tree = as_tree(read_preset(preset, "ipal"))
    found = checked(**tree)
    assert found.encoder == EncoderConfig(kind="gcn", layers=2, hidden=128, width=128)
    assert found.train == TrainConfig(epochs=epochs, lr_base=1e-3, lr_next=1e-4, relative=False)
    assert (found.settings["gamma"], found.settings["node_weights"]) == (gamma, "pagerank")
    assert set(tree["train"]) == set(TrainConfig.model_fields)
    assert set(tree["encoder"]) == set(EncoderConfig.model_fields) - {"heads", "steps", "restart"}, "a gcn has none"
    assert set(tree["ipal"]) == set(own_settings(IPAL))
