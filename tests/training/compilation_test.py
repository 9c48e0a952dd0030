"""Steps before, during and after the background compilation."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.training import compilation as compilation_module
from keras_transformer.training.compilation import BackgroundCompilation, background_compilation
from tests.training.tiny_model import (
    MODEL,
    Arrays,
    Batch,
    assert_same_bits,
    batches,
    dataset,
    make_batch,
    make_trainer,
    relative_difference,
    shared_trainer,
    train,
    weights,
)

FIRST, SECOND = (4, 7, 8), (4, 5, 6)  # the shapes of `batches`


class Step:
    """A training step whose programs are ready when the test says so.

    Attributes:
        programs: the shapes that may be compiled, or an error of their compilation.
        taken: True for each step with XLA.
    """

    jit_compile = on_gpus = True
    on_several_workers = False
    num_replicas = 1

    def __init__(self) -> None:
        self.programs: dict[tuple[int, ...], threading.Event] = {
            shape: threading.Event() for shape in (FIRST, SECOND)
        }
        self.compiled: list[tuple[int, ...]] = []
        self.taken: list[bool] = []
        self.traces = 0
        self.error: Exception | None = None
        self.error_with_xla: Exception | None = None  # of the next step
        self.error_without_xla: Exception | None = None

    def local_shape(self, ids: Any) -> tuple[int, ...]:
        return tuple(ids.shape)

    def compile_shape(self, rows: Any, source_length: Any, target_length: Any) -> Any:
        def wait(*sizes: Any) -> np.int32:
            shape = tuple(map(int, sizes))
            assert self.programs[shape].wait(30)
            self.compiled.append(shape)
            if self.error is not None:
                raise self.error
            return np.int32(0)

        return tf.numpy_function(wait, [rows, source_length, target_length], tf.int32)

    def __call__(self, data: Any, use_xla: bool = True) -> dict[str, Any]:
        self.traces += 1

        def take() -> np.float32:
            if not use_xla and self.error_without_xla is not None:
                raise self.error_without_xla
            if use_xla and self.error_with_xla is not None:
                error, self.error_with_xla = self.error_with_xla, None
                raise error
            self.taken.append(use_xla)
            return np.float32(1.0)

        return {"loss": tf.numpy_function(take, [], tf.float32)}


@pytest.fixture
def step() -> Iterator[Step]:
    step = Step()
    yield step
    for event in step.programs.values():  # a failed test must not leave a waiting thread
        event.set()


def take_steps(compilation: BackgroundCompilation, data: list[Batch]) -> None:
    iterator = iter(dataset(data))
    for _ in data:
        compilation.take_step(iterator)


def wait_for(compilation: BackgroundCompilation, shape: tuple[int, ...]) -> None:
    assert compilation._ready[shape].wait(30)


def test_steps_use_xla_as_soon_as_the_program_of_their_shape_is_ready(step: Step) -> None:
    compilation = BackgroundCompilation(step, [FIRST, SECOND])  # type: ignore[arg-type]
    with compilation:
        take_steps(compilation, batches(2))
        assert step.taken == [False, False]
        step.programs[FIRST].set()
        wait_for(compilation, FIRST)
        take_steps(compilation, batches(2))
        assert step.taken[2:] == [True, False] and not compilation.finished
        step.programs[SECOND].set()
        wait_for(compilation, SECOND)
        take_steps(compilation, batches(2))
    assert step.taken[4:] == [True, True] and compilation.finished
    assert step.compiled == [FIRST, SECOND]


def test_other_shapes_are_compiled_at_their_first_step(step: Step) -> None:
    with BackgroundCompilation(step, [FIRST]) as compilation:  # type: ignore[arg-type]
        step.programs[FIRST].set()
        take_steps(compilation, [make_batch([3], [4], seed=1)])
    assert step.taken == [True]


def test_the_graph_executor_is_never_used_if_bits_must_not_depend_on_time(step: Step) -> None:
    compilation = BackgroundCompilation(step, [FIRST], use_graph_executor=False)  # type: ignore[arg-type]
    with compilation:
        take_steps(compilation, batches(2))
        assert step.taken == [True, True] and not compilation.finished
        step.programs[FIRST].set()


def test_the_end_drops_the_waiting_shapes_and_later_steps_use_xla(
    step: Step, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    compilation = BackgroundCompilation(step, [FIRST, SECOND], report=lines.append)  # type: ignore[arg-type]
    with compilation:
        take_steps(compilation, batches(1))
        while compilation._waiting != compilation._waiting.__class__([SECOND]):
            time.sleep(0.01)
        threading.Timer(0.2, step.programs[FIRST].set).start()
    assert step.compiled == [FIRST]
    assert capsys.readouterr().err == "Waiting for XLA (compilations in progress: 1).\n"
    take_steps(compilation, batches(2))
    assert step.taken == [False, True, True]


def test_a_block_without_steps_ends_at_once(step: Step) -> None:
    with BackgroundCompilation(step, [FIRST]):  # type: ignore[arg-type]
        pass
    assert not step.compiled


def test_after_an_error_of_the_compilation_a_step_tries_again(step: Step) -> None:
    step.error = ValueError("no program")
    step.programs[FIRST].set()
    lines: list[str] = []
    with BackgroundCompilation(step, [FIRST], report=lines.append) as compilation:  # type: ignore[arg-type]
        take_steps(compilation, batches(1))
        wait_for(compilation, FIRST)
        take_steps(compilation, batches(1))
    assert step.taken[-1] and compilation.finished
    assert "failed" in lines[1] and "no program" in lines[1]


def test_a_step_without_enough_memory_is_taken_again_after_the_compilations(step: Step) -> None:
    compilation = BackgroundCompilation(step, [FIRST, SECOND])  # type: ignore[arg-type]
    step.programs[FIRST].set()
    full = MemoryError()  # TensorFlow raises ResourceExhaustedError for it
    with compilation:
        take_steps(compilation, batches(2)[:1])
        wait_for(compilation, FIRST)
        step.error_with_xla = full
        threading.Timer(0.2, step.programs[SECOND].set).start()
        take_steps(compilation, batches(2)[:1])  # it waits for the other program
        assert step.compiled == [FIRST, SECOND] and step.taken[-1]
        assert compilation.status() == ""
        step.error_with_xla = full
        with pytest.raises(tf.errors.ResourceExhaustedError):
            take_steps(compilation, batches(2)[:1])  # nothing is being compiled


def test_an_interruption_does_not_wait_for_a_program(step: Step) -> None:
    compilation = BackgroundCompilation(step, [FIRST])  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt), compilation:
        take_steps(compilation, batches(2)[:1])
        raise KeyboardInterrupt
    assert not step.compiled


def test_a_graph_that_needs_too_much_memory_is_left_for_xla(step: Step) -> None:
    step.error_without_xla = MemoryError("a GPU is full")  # becomes ResourceExhaustedError
    with BackgroundCompilation(step, [FIRST]) as compilation:  # type: ignore[arg-type]
        take_steps(compilation, batches(2))
        step.programs[FIRST].set()
    assert step.taken == [True, True]


def test_status_and_lines_tell_the_number_of_programs_and_the_time_left(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(compilation_module.time, "monotonic", lambda: now)
    lines: list[str] = []
    compilation = BackgroundCompilation(step, [FIRST, SECOND], report=lines.append)  # type: ignore[arg-type]
    with compilation:
        take_steps(compilation, batches(1))
        assert compilation.status() == "0 of 2 batch shapes compiled"
        now = 130.0
        step.programs[FIRST].set()
        wait_for(compilation, FIRST)
        while SECOND not in compilation._begun:
            time.sleep(0.01)
        now = 140.0
        assert compilation.status() == "1 of 2 batch shapes compiled, about 20 s left"
        step.programs[SECOND].set()
        wait_for(compilation, SECOND)
        assert compilation.status() == ""
    assert lines == [
        "Compiling batch shapes with XLA (shapes: 2, threads: 1). First shape: 4 rows, source "
        "length 7, target length 8.",
        "Compiled batch shape 1 of 2 (4 rows, source length 7, target length 8) in 30 s, about "
        "30 s left.",
        "Compiled batch shape 2 of 2 (4 rows, source length 5, target length 6) in 10 s.",
    ]


class Shapes:
    """Batches of three shapes."""

    shapes = (FIRST, SECOND, (8, 3, 3))
    steps_per_epoch = 5

    def shape(self, step: int) -> tuple[int, ...]:
        return self.shapes[0 if step % 5 == 0 else 1]


def test_the_most_frequent_shapes_are_compiled_first(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    def order(first_step: int = 0, **fields: Any) -> list[tuple[int, ...]]:
        config = TrainingConfig(**fields)
        found = background_compilation(step, Shapes(), first_step, config)  # type: ignore[arg-type]
        assert found is not None
        return list(found._ready)

    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "2")
    assert order() == [SECOND, FIRST, (8, 3, 3)]
    # A short run compiles only the shapes of its steps.
    assert order(max_steps=2) == [FIRST, SECOND]
    assert order(first_step=5, max_steps=6) == [FIRST]


@pytest.mark.parametrize(
    ("inter_op_threads", "replicas", "threads"), [(16, 1, 4), (3, 1, 2), (16, 8, 1), (8, 8, None)]
)
def test_compilations_leave_threads_for_the_steps(
    step: Step, monkeypatch: pytest.MonkeyPatch, inter_op_threads: int, replicas: int,
    threads: int | None,
) -> None:  # fmt: skip
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", str(inter_op_threads))
    step.num_replicas = replicas
    found = background_compilation(step, Shapes(), 0, TrainingConfig())  # type: ignore[arg-type]
    assert (found and len(found._threads)) == threads


def test_only_gpus_with_xla_compile_in_the_background(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compilation(**fields: Any) -> BackgroundCompilation | None:
        return background_compilation(step, Shapes(), 0, TrainingConfig(**fields))  # type: ignore[arg-type]

    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "2")
    found = compilation()
    assert found is not None and found._use_graph_executor
    found = compilation(deterministic=True)
    assert found is not None and not found._use_graph_executor
    for name, value in {"on_several_workers": True, "on_gpus": False, "jit_compile": False}.items():
        monkeypatch.setattr(step, name, value)
        found = compilation()
        assert found is None or not found._use_graph_executor
        assert (found is None) == (name != "on_several_workers")


def test_after_the_compilation_the_step_is_not_traced_again(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer()
    monkeypatch.setattr(trainer, "training_step", step)
    for event in step.programs.values():
        event.set()
    compilation = BackgroundCompilation(step, [FIRST], use_graph_executor=False)  # type: ignore[arg-type]
    trainer.compilation = compilation
    with compilation:
        train(trainer, batches(1))
        wait_for(compilation, FIRST)
        assert compilation.finished and step.traces == 1
        train(trainer, batches(2))
    assert step.taken == [True] * 3 and step.traces == 1


def test_the_graph_executor_takes_the_same_steps_as_xla_with_the_same_dropout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Not even the program that is ready takes a step.
    monkeypatch.setattr(BackgroundCompilation, "finished", False)
    monkeypatch.setattr(BackgroundCompilation, "_is_ready", lambda *_: False)
    model = dataclasses.replace(MODEL, residual_dropout=0.3)
    data = batches(1) * 2
    train(trainer := shared_trainer(model, jit_compile=True), data)
    expected = weights(trainer)

    def found(use_graph_executor: bool) -> Arrays:
        shared_trainer(model, jit_compile=True)  # back to the start
        trainer.compilation = BackgroundCompilation(
            trainer.training_step, [FIRST], use_graph_executor=use_graph_executor
        )
        with trainer.compilation:
            train(trainer, data)
        trainer.compilation = None
        return weights(trainer)

    assert_same_bits(found(use_graph_executor=False), expected)
    for path, weight in found(use_graph_executor=True).items():
        assert relative_difference(weight, expected[path]) < 1e-5, path
