"""Runs for TensorBoard: one folder per run, with one event file that is replaced.

Written by TensorBoard's own package, without TensorFlow or torch.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ipal.system.files import make_folder, write_atomically
from ipal.system.optional import need_extra
from ipal.trackers.record import RunRecord, cells

FILE = "events.out.tfevents.ipal"


def track(record: RunRecord, out: str) -> str:
    """Write a run's numbers to its own folder under `out`."""
    need_extra("tensorboard", "tensorboard")
    from tensorboard.summary.writer.record_writer import RecordWriter

    content = io.BytesIO()
    writer = RecordWriter(content)
    for event in _events(record):
        writer.write(event.SerializeToString())
    folder = Path(out) / record.name
    make_folder(folder)
    write_atomically(folder / FILE, content.getvalue())
    return str(folder)


def _events(record: RunRecord) -> Iterator[Any]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.plugins.text.summary_v2 import text_pb

    rows = [f"| {name} | {value} |" for name, value in cells(record.facts).items()]
    environment = text_pb("environment", "\n".join(["| what | value |", "|---|---|", *rows]))
    settings = hparams_pb(cells(record.settings), trial_id=record.name, start_time_secs=record.began)
    yield Event(wall_time=record.began, file_version="brain.Event:2")
    for summary in (settings, environment):
        yield Event(wall_time=record.began, summary=summary)
    for name, points in record.series.items():
        for step, value in points:
            scalar = Summary.Value(tag=name, simple_value=value)
            yield Event(wall_time=record.ended, step=step, summary=Summary(value=[scalar]))
