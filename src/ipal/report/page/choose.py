"""Which runs a page is about: by path, by name or part of one, by the bench they belong to, or all."""

from collections.abc import Sequence
from pathlib import Path

from ipal.errors import ConfigError, IpalError
from ipal.report.collect import Run, read_whole_run
from ipal.runs.manifest import manifest_path, read_manifest
from ipal.runs.run_folder import RunFolder, RunStore


def choose(names: Sequence[str], runs: Path) -> tuple[list[Run], list[str]]:
    """The runs named, or all finished ones; and remarks on those of a bench, or of the folder, that cannot be read."""
    store, remarks = RunStore(runs), list[str]()
    found: dict[Path, Run] = {}

    def add(folder: RunFolder, label: str = "") -> None:
        try:
            found.setdefault(folder.path.resolve(), read_whole_run(folder, label))
        except IpalError as error:
            remarks.append(str(error))

    for name in names:
        if name and manifest_path(runs, name).exists():
            for entry in read_manifest(manifest_path(runs, name)).entries:
                for run in entry.runs:
                    add(RunFolder(runs / run), entry.label)
                remarks += [f"{entry.label}: {failure.run} failed: {failure.reason}" for failure in entry.failures]
        else:
            folder = store.find(name)
            found.setdefault(folder.path.resolve(), read_whole_run(folder))
    for folder in store.all() if not names else ():
        if folder.is_finished:
            add(folder)
    if not found:
        why = f" ({remarks[0]})" if remarks else ""
        raise ConfigError(
            f"There is no finished run to show under {runs}{why}: make one with 'ipal run --dataset digits', or name "
            "the folder of the runs with --runs."
        )
    return list(found.values()), remarks
