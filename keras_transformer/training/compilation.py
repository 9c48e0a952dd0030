"""Compiles the training step for all batch shapes in background threads, on GPUs.

XLA compiles each batch shape, which takes up to a minute on a GPU. Meanwhile, training starts with
the graph executor, which is slower but needs no compilation. A step uses XLA as soon as the program
of its shape is ready. This changes neither the batches nor the dropout masks, only the rounding.
Where results must have the same bits, steps wait for their programs instead.

On CPUs, each shape is compiled at its first step. The graph executor would not start much earlier,
and the threads would take the cores and the memory of the training steps.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.console import duration, say
from keras_transformer.data.batches import Batches, Shape
from keras_transformer.tf_import import op_error_reason
from keras_transformer.training.devices import compilation_threads
from keras_transformer.training.step import TrainingStep

# Steps in which the frequency of shapes is counted.
_LOOK_AHEAD = 2_000


class BackgroundCompilation:
    """Compiles a training step for the shapes of its batches, one after the other.

    The threads start with the first step. The end of a `with` block waits for the programs that are
    being compiled, because XLA cannot be interrupted. It does not wait after `KeyboardInterrupt`.

    Args:
        step: a training step with `jit_compile`.
        shapes: the (rows, S, T) of global batches, in the order of compilation. Other shapes are
            compiled at their first step.
        num_threads: number of shapes to compile at a time. Each occupies one of TensorFlow's
            inter-op threads per replica.
        use_graph_executor: True runs steps without XLA until the program of their shape is ready.
            False waits for it.
        report: gets a line at the first step, and one for each program that is ready.

    Example:
    >>> from keras_transformer import Transformer, preset
    >>> from keras_transformer.training.trainer import Trainer
    >>> config = preset("tiny").replace(model__d_model=8, model__num_heads=2)
    >>> trainer = Trainer(Transformer(config.model), config.training, jit_compile=True)
    >>> compilation = BackgroundCompilation(trainer.training_step, [(8, 3, 4)])
    >>> compilation.finished, compilation.status()
    (False, '0 of 1 batch shapes compiled')
    """

    def __init__(
        self,
        step: TrainingStep,
        shapes: Sequence[Shape],
        num_threads: int = 1,
        use_graph_executor: bool = True,
        report: Callable[[str], None] = say,
    ):
        self._step = step
        self._use_graph_executor = use_graph_executor
        self._report = report
        # The shapes of one replica.
        shapes = [(-(-rows // step.num_replicas), *lengths) for rows, *lengths in shapes]
        self._ready = {shape: threading.Event() for shape in shapes}
        self._waiting = collections.deque(self._ready)
        self._begun: dict[Shape, float] = {}
        self._seconds: list[float] = []  # of the finished compilations
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._compile_shapes, daemon=True) for _ in range(num_threads)
        ]
        self._compile_shape: Any = None
        self._with_xla: Any = None
        self._without_xla: Any = None
        self._tracing_seconds = 0.0

    def __enter__(self) -> BackgroundCompilation:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._waiting.clear()
        self._use_graph_executor = False  # for steps after the block
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._report = lambda line: None  # the threads outlive the program
            return  # a second Ctrl-C
        running = [thread for thread in self._threads if thread.is_alive()]
        if running:
            say(f"Waiting for XLA (compilations in progress: {len(running)}).")
        for thread in running:
            thread.join()

    @property
    def finished(self) -> bool:
        """True if the programs of all shapes are ready."""
        return all(event.is_set() for event in self._ready.values())

    def status(self) -> str:
        """Returns the progress and the time left, or "" if all programs are ready."""
        done = len(self._seconds)
        if done == len(self._ready):
            return ""
        return f"{done} of {len(self._ready)} batch shapes compiled{self._time_left()}"

    def _time_left(self) -> str:
        """Returns the time left as the end of a line, or "" if it is 0 or not known."""
        done = len(self._seconds)
        if done in (0, len(self._ready)):
            return ""
        mean, now = sum(self._seconds) / done, time.monotonic()
        left = mean * len(self._waiting)
        for shape, begun in list(self._begun.items()):
            if not self._ready[shape].is_set():
                left += max(mean - (now - begun), 0.0)
        return f", about {duration(left / len(self._threads))} left"

    @property
    def step_with_xla(self) -> Callable[[Any], dict[str, tf.Tensor]]:
        """The training step, traced for batches of all shapes after the first step."""
        return self._with_xla or self._step

    def take_step(self, iterator: Any) -> dict[str, tf.Tensor]:
        """Takes a training step with the next batch, and returns its logs.

        Args:
            iterator: iterates over a dataset, which may be distributed over the replicas.
        """
        data = next(iterator)
        if self._compile_shape is None:
            self._trace(iterator.element_spec)
        if self._use_graph_executor and not self._is_ready(data):
            return self._step_without_xla(data, iterator.element_spec)
        try:
            return self._with_xla(data)
        except tf.errors.ResourceExhaustedError:
            if self._step.num_replicas > 1 or not self._stop():
                raise
            return self._with_xla(data)

    def _stop(self) -> bool:
        """Ends the compilations, because each needs the memory of a step.

        Returns:
            False if there were none.
        """
        running = [thread for thread in self._threads if thread.is_alive()]
        self._waiting.clear()
        self._use_graph_executor = False
        for thread in running:
            thread.join()
        self._ready = {shape: event for shape, event in self._ready.items() if event.is_set()}
        return bool(running)

    def _trace(self, element_spec: Any) -> None:
        """Traces the step, and then starts the threads.

        XLA finds programs in its cache on disk by a number that counts functions and tensors of the
        process. So nothing else may run while the step is traced, always in this order.
        """
        first = f" First shape: {_text(self._waiting[0])}." if self._waiting else ""
        self._report(
            f"Compiling batch shapes with XLA (shapes: {len(self._ready)}, threads: "
            f"{len(self._threads)}).{first}"
        )
        size = tf.TensorSpec([], tf.int32)
        begun = time.monotonic()
        self._compile_shape = tf.function(
            self._step.compile_shape, [size, size, size], autograph=False
        )
        self._compile_shape.get_concrete_function()
        self._tracing_seconds = time.monotonic() - begun
        self._with_xla = tf.function(self._step.__call__, [element_spec], autograph=False)
        self._with_xla.get_concrete_function()
        for thread in self._threads:
            thread.start()

    def _compile_shapes(self) -> None:
        """Compiles the waiting shapes, in a thread."""
        while self._waiting:
            try:
                shape = self._waiting.popleft()
            except IndexError:  # another thread was faster
                return
            begun = self._begun[shape] = time.monotonic()
            problem = ""
            try:
                self._compile_shape(*map(tf.constant, shape)).numpy()
            except Exception as error:  # a step of this shape compiles again, and raises it
                problem = op_error_reason(str(error))
            seconds = time.monotonic() - begun
            with self._lock:
                self._seconds.append(seconds)
                self._ready[shape].set()
                number = f"{len(self._seconds)} of {len(self._ready)}"
                if problem:
                    line = f"Compiling batch shape {number} ({_text(shape)}) failed: {problem}."
                else:
                    line = (
                        f"Compiled batch shape {number} ({_text(shape)}) in "
                        f"{duration(seconds)}{self._time_left()}."
                    )
                self._report(line)

    def _is_ready(self, data: Any) -> bool:
        """True if a step with this batch does not have to wait."""
        inputs, labels = tf.nest.map_structure(self._step.local_shape, data)
        ready = self._ready.get((*inputs["source_ids"], labels[1]))
        if ready is None:
            return True
        if self._without_xla is None:
            # Programs from the cache on disk are ready before another graph could be traced.
            ready.wait(self._tracing_seconds)
        return ready.is_set()

    def _step_without_xla(self, data: Any, element_spec: Any) -> dict[str, tf.Tensor]:
        if self._without_xla is None:

            def step(data: Any) -> dict[str, tf.Tensor]:
                return self._step(data, use_xla=False)

            self._without_xla = tf.function(step, [element_spec], autograph=False)
        try:
            return self._without_xla(data)
        except tf.errors.ResourceExhaustedError:  # it needs more memory than XLA
            if self._step.num_replicas > 1:
                raise  # the other replicas may have updated their weights
            self._use_graph_executor = False
            return self._with_xla(data)


def _text(shape: Shape) -> str:
    rows, source_length, target_length = shape
    return f"{rows} rows, source length {source_length}, target length {target_length}"


def background_compilation(
    step: TrainingStep,
    batches: Batches,
    first_step: int,
    config: TrainingConfig,
    report: Callable[[str], None] = say,
) -> BackgroundCompilation | None:
    """Returns the background compilation of a run, the most frequent shape of the next steps first.

    Args:
        step: the training step.
        batches: the training batches.
        first_step: number of steps taken before.
        config: configuration of the training.
        report: gets lines about the progress.

    Returns:
        The compilation, or None on CPUs, if XLA is off, or if TensorFlow has too few threads.

    Example:
    >>> from keras_transformer import Transformer, preset
    >>> from keras_transformer.training.data import TrainingData
    >>> from keras_transformer.training.trainer import Trainer
    >>> config = preset("tiny").replace(model__d_model=8, model__num_heads=2)
    >>> trainer = Trainer(Transformer(config.model), config.training)
    >>> batches, _ = TrainingData.open("build/data").batches(config.training)
    >>> print(background_compilation(trainer.training_step, batches, 0, config.training))
    None
    """
    if not (step.on_gpus and step.jit_compile):
        return None
    threads = compilation_threads(step.num_replicas)
    if threads < 1:
        return None
    steps = config.max_steps - first_step
    seen = range(first_step, first_step + min(steps, batches.steps_per_epoch, _LOOK_AHEAD))
    shapes = [shape for shape, _ in collections.Counter(map(batches.shape, seen)).most_common()]
    if len(seen) < steps:
        shapes += [shape for shape in batches.shapes if shape not in shapes]
    # All workers must run the same graph, because collectives find each other by their numbers.
    use_graph_executor = not (config.deterministic or step.on_several_workers)
    return BackgroundCompilation(step, shapes, threads, use_graph_executor, report)
