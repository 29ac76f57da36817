"""Which runs a page is about: by path, by name or part of one, by the bench they belong to, or all."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ipal.errors import ConfigError, IpalError, did_you_mean
from ipal.report.page.facts import read_facts
from ipal.runs.manifest import all_manifests, manifest_path, read_manifest
from ipal.runs.run_folder import RunFolder, RunStore


@dataclass
class Chosen:
    """Runs, their labels in benches, and remarks on those left out."""

    folders: list[RunFolder] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    """By the name of the folder."""
    remarks: list[str] = field(default_factory=list)

    def add(self, folder: RunFolder) -> None:
        if folder.path.resolve() not in {known.path.resolve() for known in self.folders}:
            self.folders.append(folder)

    def add_if_readable(self, folder: RunFolder) -> None:
        """A run that cannot be read becomes a remark; the others are shown."""
        try:
            read_facts(folder)
        except IpalError as error:
            self.remarks.append(str(error))
        else:
            self.add(folder)


def choose(names: Sequence[str], runs: Path) -> Chosen:
    """The runs named, or all finished ones."""
    store, chosen = RunStore(runs), Chosen()
    for name in names:
        if name and manifest_path(runs, name).exists():
            _add_bench(chosen, name, runs)
        else:
            chosen.add(_find(store, name))
    if not names:
        for folder in store.all():
            if folder.is_finished:
                chosen.add_if_readable(folder)
    if not chosen.folders:
        why = f" ({chosen.remarks[0]})" if chosen.remarks else ""
        raise ConfigError(
            f"There is no finished run to show under {runs}{why}: make one with 'ipal run --dataset digits', or name "
            "the folder of the runs with --runs."
        )
    return chosen


def _find(store: RunStore, name: str) -> RunFolder:
    try:
        return store.find(name)
    except IpalError as error:
        benches = [manifest.name for manifest in all_manifests(store.root)]
        near = did_you_mean(name, benches)
        raise ConfigError(f"{error}{near}" if "Did you mean" in near else str(error)) from error


def _add_bench(chosen: Chosen, name: str, runs: Path) -> None:
    for entry in read_manifest(manifest_path(runs, name)).entries:
        for run in entry.runs:
            folder = RunFolder(runs / run)
            if folder.is_finished:
                chosen.labels.setdefault(run, entry.label)
                chosen.add_if_readable(folder)
            else:
                chosen.remarks.append(f"{entry.label}: {run} of {name} is not finished.")
        chosen.remarks += [f"{entry.label}: {failure.run} failed: {failure.reason}" for failure in entry.failures]
