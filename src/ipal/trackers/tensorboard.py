"""Runs for TensorBoard: one folder per run, with one event file that is replaced.

Written by TensorBoard's own package, without TensorFlow or torch.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ipal.system.files import make_folder, write_atomically
from ipal.system.optional import need_extra
from ipal.trackers.record import RunRecord, Tracked, flat

FILE = "events.out.tfevents.ipal"


def track(record: RunRecord, out: str) -> Tracked:
    """Write a run's numbers to its own folder under `out`; a run that was there is replaced."""
    need_extra("tensorboard", "tensorboard")
    from tensorboard.summary.writer.record_writer import RecordWriter

    content = io.BytesIO()
    writer = RecordWriter(content)
    for event in _events(record):
        writer.write(event.SerializeToString(deterministic=True))
    file = Path(out) / record.name / FILE
    before = file.read_bytes() if file.exists() else None
    if before == content.getvalue():
        return Tracked(record.name, str(file.parent), "unchanged")
    make_folder(file.parent)
    write_atomically(file, content.getvalue())
    return Tracked(record.name, str(file.parent), "updated" if before else "new")


def how_to_look(out: str) -> str:
    return f"Look at them with: tensorboard --logdir {out}"


def _events(record: RunRecord) -> Iterator[Any]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    yield Event(wall_time=record.began, file_version="brain.Event:2")
    yield Event(wall_time=record.began, summary=Summary(value=list(_settings(record))))
    yield Event(wall_time=record.began, summary=_environment(record))
    for name, points in record.series.items():
        for step, value in points:
            scalar = Summary.Value(tag=name, simple_value=value)
            yield Event(wall_time=record.ended, step=step, summary=Summary(value=[scalar]))


def _settings(record: RunRecord) -> Iterator[Any]:
    """For the page of hyper-parameters: settings, when the run began, how it ended."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    start = plugin_data_pb2.SessionStartInfo(group_name=record.name, start_time_secs=record.began)
    for name, value in flat(record.settings).items():
        if isinstance(value, bool):
            start.hparams[name].bool_value = value
        elif isinstance(value, str):
            start.hparams[name].string_value = value
        else:
            start.hparams[name].number_value = value
    end = plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS, end_time_secs=record.ended)
    parts = {
        metadata.SESSION_START_INFO_TAG: {"session_start_info": start},
        metadata.SESSION_END_INFO_TAG: {"session_end_info": end},
    }
    for tag, part in parts.items():
        content = plugin_data_pb2.HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **part)
        # In a fixed order, so that the same run gives the same file.
        plain = content.SerializeToString(deterministic=True)
        about = SummaryMetadata(plugin_data={"plugin_name": metadata.PLUGIN_NAME, "content": plain})
        yield Summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)


def _environment(record: RunRecord) -> Any:
    from tensorboard.plugins.text.summary_v2 import text_pb

    rows = [f"| {name} | {value} |" for name, value in flat(record.facts).items()]
    return text_pb("environment", "\n".join(["| what | value |", "|---|---|", *rows]))
