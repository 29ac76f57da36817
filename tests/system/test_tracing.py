"""Spans: own times add up to the whole, whatever happens inside; without a recorder nothing is kept."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from ipal.backend.neighbor_sampling import prefetched
from ipal.backend.runtime import Runtime
from ipal.config import EncoderConfig, TrainConfig
from ipal.data.graph import Graph
from ipal.engine.trainer import Setup, initial_state
from ipal.methods.bare import Bare
from ipal.nn.propagated_features import propagated
from ipal.system import tracing
from ipal.system.tracing import SILENT, Recorder


def seconds(recorder: Recorder, *path: str) -> float:
    return recorder.laps[-1][path].nanoseconds / 1e9


def test_time_belongs_to_the_innermost_span_alone() -> None:
    recorder = Recorder()
    with recorder.listening():
        begin = time.perf_counter()
        with recorder.span("outer"):
            time.sleep(0.02)
            for _ in range(2):
                with recorder.span("inner"):
                    time.sleep(0.03)
        wall = time.perf_counter() - begin
    assert seconds(recorder, "outer", "inner") >= 0.06
    assert 0.02 <= seconds(recorder, "outer") <= wall - seconds(recorder, "outer", "inner")
    assert recorder.laps[0]["outer", "inner"].times == 2
    assert recorder.laps[0]["outer",].times == 1


def test_own_times_add_up_exactly_to_what_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that goes on by more at every look, no nanosecond is lost or counted twice."""
    looks: list[int] = []

    def clock() -> int:
        looks.append((looks[-1] if looks else 0) + 7 + len(looks) ** 2)
        return looks[-1]

    monkeypatch.setattr(tracing, "perf_counter_ns", clock)
    recorder = Recorder({"height": lambda: 1})
    with recorder.listening():
        with recorder.span("a"), recorder.span("b"), recorder.span("c"):
            pass
        recorder.next_lap()
        with recorder.span("a"):
            recorder.next_lap()
            with recorder.span("b"):
                pass
        with recorder.span("d"):
            pass
    assert sum(account.nanoseconds for lap in recorder.laps for account in lap.values()) == looks[-1] - looks[0]
    assert len(recorder.laps) == 3


def test_an_exception_leaves_the_recorder_sane() -> None:
    recorder = Recorder()
    with recorder.listening():
        with pytest.raises(ValueError, match="inside"), recorder.span("outer"), recorder.span("inner"):
            raise ValueError("inside")
        with recorder.span("after"):
            pass
    assert ("after",) in recorder.laps[0]
    assert not recorder.listens
    with pytest.raises(KeyError), recorder.listening(), recorder.span("again"):
        raise KeyError
    assert not recorder.listens
    assert ("again",) in recorder.laps[0]


def test_a_generator_that_is_left_in_the_middle_leaves_no_span_behind() -> None:
    recorder = Recorder()

    def left_open() -> Iterator[None]:
        with recorder.span("left"):
            yield

    with recorder.listening():
        with recorder.span("around"):
            abandoned = left_open()
            next(abandoned)
        with recorder.span("after"):
            abandoned.close()
            with recorder.span("inside"):
                pass
    assert {("around",), ("around", "left"), ("after",), ("after", "inside")} <= recorder.laps[0].keys()


def test_without_a_recorder_nothing_is_kept() -> None:
    recorder = Recorder()
    with recorder.span("before"):
        pass
    assert SILENT.span("one") is SILENT.span("two") is recorder.span("three"), "no object is made"
    assert not SILENT.listens
    with recorder.listening():
        assert recorder.listens
    with recorder.span("after"):
        pass
    assert list(recorder.laps[0]) == [()]


def test_gauges_say_the_peak_of_each_part_after_a_wait_for_what_runs_elsewhere() -> None:
    readings, waited = iter([5, 10, 80, 20, 90, 30]), list[int]()
    recorder = Recorder({"height": lambda: next(readings)}, settle=lambda: waited.append(1))
    with recorder.listening():  # 5: of what came before, forgotten
        with recorder.span("a"):  # 10: of nothing yet
            assert len(waited) == 1
        assert len(waited) == 2  # 80
        with recorder.span("a"):  # 20: of nothing
            pass  # 90
    peaks = {path: account.peaks["height"] for path, account in recorder.laps[0].items()}
    assert peaks == {(): 30, ("a",): 90}


def test_of_what_other_threads_do_only_the_wait_counts() -> None:
    recorder = Recorder()

    def make() -> int:
        with recorder.span("sampling"), recorder.span("inner"):
            time.sleep(0.03)
        return threading.get_ident()

    with recorder.listening():
        for maker in prefetched([make, make], recorder):
            assert maker != threading.get_ident()
            with recorder.span("step"):
                time.sleep(0.05)
    lap = recorder.laps[0]
    assert ("sampling", "inner") not in lap
    assert 0 < lap["sampling",].nanoseconds < 0.06e9, "the second was made while the first was in use"
    assert lap["step",].nanoseconds >= 0.1e9


def test_propagation_and_the_making_of_an_optimiser_are_parts() -> None:
    graph = Graph(np.eye(3, dtype=np.float32), np.array([[0, 1], [1, 2]]))
    recorder = Recorder()
    runtime = Runtime.of(tracer=recorder)
    with recorder.listening():
        propagated(graph, 1, 0.1, runtime)
        propagated(graph, 1, 0.1, runtime)  # looked up
        initial_state(Bare(), Setup(runtime, 3, 0, EncoderConfig(), TrainConfig()))
    parts = recorder.laps[0]
    assert parts["propagation",].times == 1
    assert parts["optimiser",].times == 1
