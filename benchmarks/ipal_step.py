"""What IPAL adds to its encoder: a whole training step against the encoder's forward and backward alone.

Goes through the stream of CS-CL as a run does. On each task the sides take turns: the step (loss, backward,
Adam), and the encoder's forward over all nodes of the task's graph with a backward from a fixed gradient, by our layers
and by stock `GCNConv` layers. At the end a full run in a process of its own tells its peak memory.
"""

import tempfile
from dataclasses import replace
from statistics import median

import numpy as np
import torch
import work
from encoder_step import Stock, stock_inputs
from machine import Work
from timing import WIDTH, Line, begin, cs, describe, interleaved, ipal_run, options, ratio
from work import Layers

from ipal.backend.operators import operators
from ipal.backend.runtime import Runtime
from ipal.config import EncoderConfig, ProtocolConfig, TrainConfig
from ipal.data.datasets import Dataset
from ipal.data.streams import TaskStream
from ipal.data.task import Task
from ipal.engine.trainer import Training, begin_task, numbered, task_context
from ipal.estimator.model import Model, empty_model
from ipal.estimator.settings import learner_config
from ipal.methods.ipal import IPAL

HERE = Runtime.of()


def compare(method: IPAL, model: Model, task: Task, index: int, repeats: int) -> tuple[Model, dict[str, list[float]]]:
    """Print one task and learn it: the model after it, and milliseconds of the steps and of the encoder alone."""
    state = begin_task(method, model.state, task, model.setup)
    context = method.prepare(state.memory, task_context(state, numbered(task, state.classes), HERE))
    training = Training(method, state, context, model.setup)
    (batch,) = training.batches(0)
    everywhere, network = operators(task.graph, HERE), training.network.encoder
    stock, inputs = Stock(network), stock_inputs(task.graph)
    fixed = torch.randn(task.graph.num_nodes, network.width, generator=torch.Generator().manual_seed(0))

    def step() -> None:
        training.step(batch)

    def encoder() -> None:
        network.zero_grad(set_to_none=True)
        network(everywhere).backward(fixed)

    def stock_layers() -> None:
        stock.zero_grad(set_to_none=True)
        stock(*inputs).backward(fixed)

    times = interleaved({"step": step, "encoder": encoder, "stock": stock_layers}, repeats)
    with torch.no_grad():
        memory = method.end_task(state.network, state.memory, context, state.generator)
    print(
        f"  task {index}: {task.graph.num_nodes:6,} nodes, {len(context.current)} + {len(context.old)} classes: "
        f"step {median(times['step']):7.2f} ms, "
        f"encoder {median(times['encoder']):7.2f} ms, ratio {ratio(times['step'], times['encoder']):.2f} x"
    )
    return replace(model, state=replace(state, memory=memory, teacher=None)), times


def peak_memory(dataset: Dataset, size: str, threads: int) -> int:
    """Bytes that a full run through the command held at its peak."""
    with tempfile.TemporaryDirectory() as folder:
        name, split = "cs", ",".join(map(str, dataset.split or ()))
        if dataset.name != "cs":
            name, x = f"{folder}/graph.npz", dataset.graph.x
            parts = {"x_values": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "x_shape": x.shape}
            np.savez(name, edge_index=dataset.graph.edges, y=dataset.y, **parts)
        epochs = ["train.epochs=2"] if size == "small" else []
        result = ipal_run("ipal", name, epochs, threads, "--preset", "paper", "--split", split)
    return int(result["peak_memory_bytes"])


def measure(size: str, repeats: int) -> Line:
    """Print every task, and the whole stream."""
    dataset = cs(size)
    print(f"\nCS-CL ({describe(dataset)})")
    stream = TaskStream(dataset.graph, dataset.y, dataset.split or (), ProtocolConfig(), seed=0)
    method, shared = IPAL(gamma=0.4, node_weights="pagerank"), {"encoder": EncoderConfig(), "train": TrainConfig()}
    config, tasks = learner_config(IPAL, {**vars(method), **shared}), []
    model = empty_model(config, stream.task(0).graph, HERE)
    for index in range(len(stream)):
        model, times = compare(method, model, stream.task(index), index, repeats)
        tasks.append(times)
    step, encoder, stock = (sum(median(times[side]) for times in tasks) for side in ("step", "encoder", "stock"))
    fastest = sum(min(times["step"]) for times in tasks) / sum(min(times["encoder"]) for times in tasks)
    print(
        f"  whole stream: step {step:.1f} ms, encoder {encoder:.1f} ms, ratio {step / encoder:.2f} x   "
        f"(of the fastest rounds {fastest:.2f} x)"
    )
    print(f"  stock GCNConv layers, forward and backward alone: {stock:.1f} ms")
    sizes = [Layers.of_task(stream.task(index)) for index in range(len(stream))]
    floor = sum((work.step(one, WIDTH, WIDTH) + work.adam(one, WIDTH, WIDTH) for one in sizes), Work())
    return Line("IPAL step, sum over CS-CL", step / 1000, stock / 1000, "GCNConv, encoder alone", floor)


def main() -> None:
    chosen = options("IPAL step: the whole against the encoder alone, on CS-CL.", repeats=25).parse_args()
    begin(chosen.threads)
    measure(chosen.size, chosen.repeats)
    held = peak_memory(cs(chosen.size), chosen.size, chosen.threads)
    print(f"  peak memory of a full run: {held / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
