"""Table and figure of where the time and memory of a run went, from what `ipal.analysis.profile` has measured."""

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ipal.report.figures import DPI, write_figure
from ipal.system.files import make_folder, write_atomically

# Colour (Okabe and Ito's palette) and hatch of each part, in the order in which a run comes to them.
PARTS = {
    "start": ("#FFFFFF", ""),
    "preparation": ("#CC79A7", ""),
    "propagation": ("#0072B2", ""),
    "sums": ("#E69F00", ""),
    "ridge": ("#56B4E9", ""),
    "solve": ("#009E73", ""),
    "sampling": ("#56B4E9", "///"),
    "encoder": ("#0072B2", ""),
    "loss": ("#E69F00", ""),
    "backward": ("#009E73", ""),
    "adjusting gradients": ("#F0E442", "..."),
    "optimiser": ("#D55E00", "\\\\\\"),
    "end of task": ("#56B4E9", "..."),
    "evaluation": ("#555555", ""),
    "checkpoint": ("#999999", "///"),
    "end": ("#FFFFFF", ""),
    "other": ("#DDDDDD", ""),
    "recording": ("#FFFFFF", "..."),
}
TITLES = {"sampling": "sampling (waited for)", "recording": "profiling itself"}
AROUND = {"start", "end"}
"""Before the first task and after the last."""
SMALL = 5e-4
"""Parts with less than this share of the time are counted as other."""
SMALL_IN_FIGURE = 1e-2
Measured = Mapping[str, Any]
"""A part of the profile with its times and peaks."""
OfTasks = Callable[[NDArray[np.float64]], float]
MEMORY = {"host": "memory", "device": "GPU memory"}


@dataclass(frozen=True, eq=False)
class ProfileLine:
    """One line of the table: a part with all that happens inside it, or, indented, something that does."""

    name: str
    title: str
    is_inside: bool
    seconds: float
    per_task: NDArray[np.float64]
    peaks: Mapping[str, int]


def lines(profile: Mapping[str, Any], small: float = SMALL) -> list[ProfileLine]:
    """The parts in order, each followed by what happens inside it; those that are not indented add up to the whole."""
    least = small * profile["seconds"]
    found: list[ProfileLine] = []
    others: list[Measured] = []
    for name, rows in _by_part(profile["parts"], 0):
        whole = _line(rows, name)
        if name == "other" or whole.seconds < least:
            others += rows
        else:
            inside = [_line(own, part, is_inside=True) for part, own in _by_part(rows, 1)]
            found += [whole, *(line for line in inside if line.seconds >= least)]
    return [*found, _line(others, "other")]


def all_of_it(profile: Mapping[str, Any]) -> ProfileLine:
    """The whole run as a line."""
    per_task = np.asarray(profile["seconds_per_task"])
    return ProfileLine("all", "all", False, profile["seconds"], per_task, profile["peak_bytes"])


def task_columns(tasks: int, most: int) -> dict[str, OfTasks]:
    """What a table says of every task; where they are more than fit, the most telling of all tasks together."""
    if tasks <= most:
        return {f"task {task + 1}": itemgetter(task) for task in range(tasks)}
    telling: dict[str, OfTasks] = {
        "mean": np.mean,
        "highest": np.max,
        "first": itemgetter(0),
        "last": itemgetter(-1),
        "lowest": np.min,
    }
    return dict(list(telling.items())[:most])


def background(profile: Mapping[str, Any]) -> list[ProfileLine]:
    """Time of other threads, which is not part of the total."""
    return [_line(rows, name, suffix=" (background)") for name, rows in _by_part(profile["background"], 0)]


def _by_part(rows: Sequence[Measured], depth: int) -> list[tuple[str, list[Measured]]]:
    """Rows of each part: known parts as a run comes to them, then others as they came."""
    found: dict[str, list[Measured]] = {}
    for row in rows:
        if len(row["part"]) > depth:
            found.setdefault(row["part"][depth], []).append(row)
    known = list(PARTS)
    return sorted(found.items(), key=lambda item: known.index(item[0] if item[0] in known else "other"))


def _line(rows: Sequence[Measured], name: str, is_inside: bool = False, suffix: str = "") -> ProfileLine:
    peaks: dict[str, int] = {}
    for row in rows:
        peaks |= {gauge: max(value, peaks.get(gauge, 0)) for gauge, value in row["peak_bytes"].items()}
    return ProfileLine(
        name=name,
        title=name + suffix if suffix or is_inside else TITLES.get(name, name),
        is_inside=is_inside,
        seconds=sum(row["own_seconds"] for row in rows),
        per_task=np.sum([row["own_seconds_per_task"] for row in rows], axis=0),
        peaks=peaks,
    )


def notes(profile: Mapping[str, Any]) -> list[str]:
    """Notes on the numbers."""
    said = []
    if profile["device"] != "cpu":
        said.append(
            "While parts are timed, every part waits for the GPU, and steps are not recorded as CUDA graphs: "
            "an undisturbed run is faster (--undisturbed gives its time)."
        )
    if profile["background"]:
        said.append(
            "Batches are made ahead in another thread: that time is no part of the sum, the wait for it is."
            + (" There it is the processor's time alone." if profile["device"] != "cpu" else "")
        )
    if profile["undisturbed_seconds"] is not None:
        said.append(
            f"The same run once more, undisturbed and with everything loaded: {profile['undisturbed_seconds']:.2f} s."
        )
    return said


def write(profile: Mapping[str, Any], out: Path) -> list[Path]:
    """The numbers as JSON, and the figure."""
    make_folder(out)
    numbers = out / f"{profile['name']}.json"
    write_atomically(numbers, json.dumps(profile, indent=2) + "\n")
    return [*write_figure(out / profile["name"], partial(figure, profile)), numbers]


def figure(profile: Mapping[str, Any]) -> Figure:
    """Above, seconds of every task as a bar of its parts; below, the peak of memory in every task."""
    drawn = Figure(figsize=(7.2, 5.0), dpi=DPI)
    above, below = drawn.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    drawn.subplots_adjust(left=0.1, right=0.68, top=0.9, bottom=0.1, hspace=0.12)
    tasks = np.arange(1, profile["tasks"] + 1)
    _bars(above, tasks, [line for line in lines(profile, SMALL_IN_FIGURE) if not line.is_inside], profile)
    peaks = {name: np.asarray(values) / 1e9 for name, values in profile["peak_bytes_per_task"].items()}
    for (name, values), mark in zip(peaks.items(), ("o-", "s--"), strict=False):
        below.plot(tasks, values, mark, color="black", markersize=4, linewidth=1.2, label=MEMORY[name])
    below.set(xlabel="task", ylabel="peak, GB", ylim=(0, 1.15 * max(map(np.max, peaks.values()))))
    below.set_xlim(0.4, len(tasks) + 0.6)
    below.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=15, min_n_ticks=1))
    below.grid(axis="y", color="0.9", linewidth=0.6)
    below.legend(loc="upper left", bbox_to_anchor=(1.02, 1.05), frameon=False, fontsize=8)
    drawn.align_ylabels()
    return drawn


def _bars(axes: Axes, tasks: NDArray[Any], parts: Sequence[ProfileLine], profile: Mapping[str, Any]) -> None:
    bottom = np.zeros(len(tasks))
    bars = [line for line in parts if line.name not in AROUND]
    whole = profile["seconds"]
    width = 0.8 if len(tasks) < 40 else 1.0
    for line in bars:
        colour, hatch = PARTS.get(line.name, PARTS["other"])
        axes.bar(
            tasks, line.per_task, width, bottom=bottom, color=colour, hatch=hatch, edgecolor="0.15",
            linewidth=0.4 if width < 1 else 0, label=f"{line.title} {line.per_task.sum() / whole:.0%}",
        )  # fmt: skip
        bottom += line.per_task
    axes.set_ylabel("seconds")
    around = sum(line.seconds - line.per_task.sum() for line in parts)
    graph = textwrap.shorten(profile["dataset"].replace(",", ", "), 30, placeholder=" …")
    axes.set_title(
        f"{graph}, {profile['method']} on {profile['device']}: {whole:.3g} s in all, "
        f"{around:.2g} s of it before and after the tasks",
        loc="left", fontsize=9,
    )  # fmt: skip
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", length=0)
    # From the top down, as they lie on each other.
    axes.legend(
        reverse=True, loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False, fontsize=8,
        title="share of the whole", title_fontsize=8, alignment="left",
    )  # fmt: skip
