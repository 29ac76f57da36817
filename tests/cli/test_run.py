"""`ipal run`: what it prints, where it puts it, and how its settings reach it."""

from pathlib import Path

import pytest

from tests.cli.support import GRAPH, SMALL, assert_same_model, config_of, stamps
from tests.support import Command, Ipal, complaint

# ---------------------------------------------------------------------- run


def test_a_run_as_a_user_starts_it(ipal: Ipal, command: Command, tmp_path: Path) -> None:
    """The one run here through a real process: a matrix for people on stdout, progress on stderr."""
    done = ipal("run", "--dataset", "digits", "--set", "train.epochs=2", check=True)
    for word in ("Accuracy (%)", "task 4", "AP", "AF", "peak memory", "retained", "no node is stored", "ipal: appnp"):
        assert word in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name in done.stdout.replace("\n", "")
    assert folder.name.startswith("digits-ipal-seed0-")
    assert "task 4 of 4 learned" in done.stderr
    assert "learned, AP so far" not in done.stdout
    assert "Traceback" not in done.stderr
    again = command("run", "--dataset", "digits", "--set", "train.epochs=2", "--json")
    assert again.json["protocol"]["split"] == [4, 2, 2, 2]
    assert "finished already" in again.err


def test_a_result_fits_on_a_terminal(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """80 columns and 25 lines, those of the command and of the next prompt among them."""
    monkeypatch.setenv("COLUMNS", "80")
    for method, small in (("ipal", "train.epochs=2"), ("analytic", "analytic.width=1024")):
        run = ["run", "--dataset", "digits", "--method", method, "--set", small, "--set", "protocol.calibration=0"]
        first, again = command(*run), command(*run)
        lines = [*again.err.splitlines(), *first.out.splitlines()]
        assert first.out == again.out
        assert len(lines) <= 23
        assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--method", "analytic", "--set", "analytic.width=1024", "--set", "analytic.ridge=0.5"],
            "analytic: width 1,024, steps 16, restart 0.02 and 0.3, ridge 0.5\n",
        ),
        (
            ["--set", "ipal.k=7", "--epochs", 3],
            "ipal: appnp 32, steps 16, restart 0.02 and 0.3, 3 epochs, tau 0.07, gamma 3, k 7\n",
        ),
        (["--set", "encoder.kind=gcn", "--epochs", 3], "ipal: gcn 128, 3 epochs, tau 0.07, gamma 3\n"),
        (["--method", "ncm"], "ncm: steps 10, restart 0.3, tau 0.07\n"),
    ],
)
def test_a_line_says_what_the_model_is(command: Command, options: list[object], words: str) -> None:
    shown = command("run", "--dataset", GRAPH, *options)
    assert words in shown.out, shown
    model = next(Path("runs").glob("*/model.safetensors"))
    assert words.strip() in " ".join(command("show", model).out.split())


@pytest.mark.parametrize("change", [["--seed", 1], ["--set", "ipal.gamma=0.1"], ["--split", "4,2"]], ids=str)
def test_a_run_with_other_settings_has_a_folder_of_its_own(
    command: Command, finished: Path, change: list[object]
) -> None:
    before = stamps(finished)
    other = command("run", *SMALL, *change, "--json").json
    assert Path(other["run"]).resolve() != finished
    assert stamps(finished) == before


# ---------------------------------------------------------------------- settings


def test_the_folder_of_runs_may_come_from_the_environment_and_numbers_are_the_same_there(
    command: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPAL_RUNS", str(tmp_path / "mine"))
    done = command("run", *SMALL, "--json")
    other = Path(done.json["run"])
    assert other == tmp_path / "mine" / finished.name
    assert "task 3 of 3 learned" in done.err
    for name in ("history.csv", "config.yaml"):
        assert (other / name).read_bytes() == (finished / name).read_bytes()
    assert_same_model(other, finished)
    assert len(command("list", "runs", "--json").json) == 1


def test_a_file_lies_below_options_and_options_below_set(command: Command, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(
        f"dataset: {GRAPH}\nseed: 1\nthreads: 1\nsplit: [6]\n"
        "train: {epochs: 1, lr_base: 0.5}\nipal: {gamma: 0.1, tau: 0.2}\nencoder: {width: 16}\n"
    )
    overriding = ["--seed", 2, "--split", "4,2", "--epochs", 2, "--set", "ipal.gamma=0.8"]
    overriding += ["--set", "seed=3", "--set", "ipal.gamma=0.9"]
    tree = config_of(Path(command("run", "--config", "my.yaml", *overriding, "--json").json["run"]))
    assert tree["seed"] == 3, "--set lies over the option"
    assert tree["train"]["epochs"] == 2, "--epochs lies over the file"
    assert tree["split"] == [4, 2], "the option lies over the file"
    assert tree["ipal"]["gamma"] == 0.9, "--set lies over the file, the later over the earlier"
    assert tree["ipal"]["tau"] == 0.2, "what is not overridden stays"
    assert tree["train"]["lr_base"] == 0.5
    assert tree["encoder"]["width"] == 16
    assert (tree["encoder"]["kind"], tree["encoder"]["hidden"]) == ("appnp", 2048), "what nobody sets is the method's"


def test_a_preset_lies_below_everything_and_an_unknown_one_is_answered_with_those_there_are(command: Command) -> None:
    done = command("run", "--dataset", GRAPH, "--preset", "printed", "--set", "train.epochs=1", "--json")
    tree = config_of(Path(done.json["run"]))
    assert tree["train"]["epochs"] == 1
    assert (tree["ipal"]["products"], tree["ipal"]["gamma"], tree["encoder"]["hidden"]) == ("raw", 0.7, 128)
    assert (tree["encoder"]["kind"], tree["encoder"]["layers"], tree["ipal"]["node_weights"]) == ("gcn", 2, "pagerank")
    assert (tree["train"]["lr_base"], tree["train"]["lr_next"], tree["train"]["relative"]) == (1e-3, 1e-4, False)
    complaint(command("run", "--dataset", GRAPH, "--preset", "papr"), "no preset 'papr'", "Did you mean 'paper'?")
    wrong = command("run", "--dataset", GRAPH, "--preset", "paper", "--method", "ewc")
    complaint(wrong, "'paper' has 0 entries of the method 'ewc'")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--method", "ncm", "--epochs", 3],
            "The method 'ncm' trains no network: leave out --epochs and all settings of train.",
        ),
        (["--set", "ewc.strength=3"], "The settings 'ewc' are of another method than 'ipal': add --method ewc."),
        (["--gamma", 3], "--set ipal.gamma=VALUE"),
        (["--thread", 3], "(Possible options: --method, --threads)"),
        (["--lr", 3], "settings are given as --set NAME=VALUE (see 'ipal run --help')."),
        (["--dataset", "CS"], "Unknown dataset 'CS'. Did you mean 'cs'?"),
        (["--set", "ipal.epochs=3"], "Unknown setting 'ipal.epochs'. Did you mean 'train.epochs'?"),
    ],
)
def test_a_setting_where_it_does_not_belong_is_shown_where_it_does(
    command: Command, options: list[object], words: str
) -> None:
    complaint(command("run", "--dataset", "digits", *options), words)
