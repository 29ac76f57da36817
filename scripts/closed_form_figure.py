"""Draws docs/figures/closed-form.png: how a task becomes sums, and what sums allow."""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

INK, SOFT, OLD, NEW, KEPT = "#22303c", "#8795a1", "#4c78a8", "#e1812c", "#f2f5f7"


def box(ax: Axes, x: float, y: float, w: float, h: float, text: str = "", fill: str = KEPT) -> None:
    ax.add_patch(FancyBboxPatch((x, y), w, h, boxstyle="round,pad=0.02,rounding_size=0.08", fc=fill, ec=INK, lw=1.1))
    ax.text(x + w / 2, y + h / 2, text, ha="center", va="center", fontsize=9, color=INK)


def arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = INK, bend: float = 0.0) -> None:
    style = f"arc3,rad={bend}"
    ax.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=12, color=colour, lw=1.3, connectionstyle=style)
    )


def graph(ax: Axes, x: float, y: float, colour: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    points = np.array((x, y)) + random.uniform(-0.5, 0.5, (7, 2))
    for a, b in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (2, 6), (6, 0)]:
        ax.plot(*points[[a, b]].T, color=SOFT, lw=0.9, zorder=1)
    ax.scatter(*points.T, s=34, color=colour, edgecolor="white", lw=0.6, zorder=2)


def matrix(ax: Axes, x: float, y: float, size: float, colour: str, seed: int, columns: int = 6) -> None:
    random = np.random.default_rng(seed)
    cells = 6
    rows = np.abs(random.normal(size=(12, cells)))
    values = rows.T @ rows
    values /= values.max()
    step = size / cells
    for i in range(cells):
        for j in range(columns):
            shade = 0.15 + 0.85 * values[i, j]
            corner = (x + j * step, y + size - (i + 1) * step)
            ax.add_patch(Rectangle(corner, step, step, fc=colour, alpha=shade, ec="white", lw=0.4))


def main(path: Path) -> None:
    figure, ax = plt.subplots(figsize=(11, 4.7), dpi=150)
    ax.set_xlim(0, 15.7)
    ax.set_ylim(0, 6.8)
    ax.axis("off")
    for row, (y, colour, name) in enumerate([(5.1, OLD, "task 1"), (2.9, NEW, "task 2")]):
        graph(ax, 0.9, y, colour, row + 3)
        ax.text(
            0.9, y - 0.95, f"{name}: a graph,\nlabels of some nodes", ha="center", va="top", fontsize=8.5, color=INK
        )
        arrow(ax, (1.6, y), (2.2, y))
        box(ax, 2.25, y - 0.42, 1.8, 0.84, "propagate\nwith restart")
        arrow(ax, (4.1, y), (4.6, y))
        box(ax, 4.65, y - 0.42, 1.95, 0.84, "map, fixed $R$\n$\\phi=[h, \\mathrm{ReLU}\\,hR]$")
        arrow(ax, (6.65, y), (7.2, y))
        matrix(ax, 7.3, y - 0.55, 1.1, colour, row)
        matrix(ax, 8.55, y - 0.55, 1.1, colour, row + 7, columns=2)
        ax.text(7.85, y - 0.62, r"$\sum \phi\phi^\top$", ha="center", va="top", fontsize=9, color=INK)
        ax.text(8.95, y - 0.62, r"$\sum \phi$", ha="center", va="top", fontsize=9, color=INK)
        arrow(ax, (9.15, y), (10.35, 4.25 if row == 0 else 3.75), colour)
    ax.text(10.55, 4.0, "+", ha="center", va="center", fontsize=22, color=INK, weight="bold")
    box(ax, 10.95, 3.4, 1.75, 1.2, "", "white")
    matrix(ax, 11.05, 3.5, 1.0, "#5b6770", 5)
    matrix(ax, 12.1, 3.5, 1.0, "#5b6770", 9, columns=3)
    ax.text(11.82, 3.28, "all that is kept:\nsums and $n_c$", ha="center", va="top", fontsize=9, color=INK)
    arrow(ax, (12.75, 4.0), (13.15, 4.0))
    box(ax, 13.2, 3.45, 2.35, 1.1, "$W=(A+\\lambda I)^{-1}M$\n\n$\\mathrm{argmax}_c\\;(\\phi^\\top W)_c$")
    ax.text(7.85, 6.45, "sums over nodes", ha="center", fontsize=10, color=INK, weight="bold")
    ax.text(3.3, 6.45, "a fixed map, nothing learned", ha="center", fontsize=10, color=INK, weight="bold")
    ax.text(13.6, 6.45, "one solve", ha="center", fontsize=10, color=INK, weight="bold")
    for x, title, text in (
        (0.3, "any order", "a sum does not know\nwhich task came first"),
        (4.1, "merge", "two sites add their sums:\nthe jointly trained model"),
        (7.9, "forget", "subtract a node's row,\nor redo its neighbours"),
        (11.7, "audit", "what is kept is known\nto the byte"),
    ):
        box(ax, x, 0.12, 3.2, 1.05)
        ax.text(x + 1.6, 0.92, title, ha="center", va="center", fontsize=9.5, color=INK, weight="bold")
        ax.text(x + 1.6, 0.45, text, ha="center", va="center", fontsize=8.5, color=INK)
    figure.savefig(path, bbox_inches="tight", facecolor="white")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/figures/closed-form.png"))
