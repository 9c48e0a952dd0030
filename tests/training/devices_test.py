"""The choices of `auto` on different machines."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.errors import InputError
from keras_transformer.training import devices
from keras_transformer.training.devices import choose_platform, use_logical_cpus, uses_gpus
from tests.builders import refuses
from tests.messages import mentions, tells


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    cpu = [SimpleNamespace(name="/device:CPU:0")]
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind: cpu if kind == "CPU" else []
    )


def put_cpu(monkeypatch, tmp_path, flags):
    """Simulates a CPU with these flags. None simulates a system without /proc/cpuinfo."""
    file = tmp_path / "cpuinfo"
    if flags is not None:
        file.write_text(f"processor\t: 0\nmodel name\t: A CPU\nflags\t\t: {flags}\nbugs\t\t:\n")
    monkeypatch.setattr(devices, "Path", lambda name: file if "cpuinfo" in name else Path(name))


def put_gpus(monkeypatch, *capabilities):
    """Simulates GPUs, and returns a list that gets the devices of the strategy."""
    names = []

    def strategy(devices):
        names.extend(devices)
        return SimpleNamespace(num_replicas_in_sync=len(devices))

    details = [{} if c is None else {"compute_capability": c} for c in capabilities]
    logical = [SimpleNamespace(name=f"/device:GPU:{i}") for i in range(len(details))]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: logical)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: range(len(details)))
    monkeypatch.setattr(tf.config.experimental, "get_device_details", details.__getitem__)
    monkeypatch.setattr(devices, "mirrored_strategy", strategy)
    return names


@pytest.mark.parametrize(
    "gpus, flags, precision",
    [
        ((), "fpu avx512f avx512_bf16 sse", "bfloat16"),
        ((), "fpu amx_bf16", "bfloat16"),
        ((), "fpu avx2 not_avx512_bf16", "float32"),
        ((), None, "float32"),
        ([(9, 0)], "fpu", "bfloat16"),
        ([(8, 0), (8, 6)], "fpu", "bfloat16"),
        ([(9, 0), (7, 5)], "fpu", "float32"),
        ([None], "fpu", "float32"),
    ],
)
def test_bfloat16_where_it_is_fast_and_xla_on_gpus_and_for_float32(
    monkeypatch, tmp_path, gpus, flags, precision
):
    put_cpu(monkeypatch, tmp_path, flags)
    if gpus:
        names = put_gpus(monkeypatch, *gpus)
    chosen = choose_platform(TrainingConfig(), num_shapes=3)
    jit_compile = bool(gpus) or precision == "float32"
    assert (chosen.precision, chosen.jit_compile) == (precision, jit_compile)
    assert chosen.policy().compute_dtype == precision
    assert chosen.policy().variable_dtype == "float32"
    assert not gpus or names == [f"/device:GPU:{i}" for i in range(len(gpus))]
    text = "\n".join(chosen.reasons)
    kind = f"{len(gpus)} GPU{'s' * (len(gpus) > 1)}" if gpus else "1 CPU device"
    assert tells(text, kind) and tells(text, "precision", precision)
    assert tells(text, "XLA", "on" if jit_compile else "off")


def test_a_cpu_compiles_only_long_runs(monkeypatch, tmp_path):
    put_cpu(monkeypatch, tmp_path, "fpu")

    def compiles(steps, shapes):
        return choose_platform(TrainingConfig(max_steps=steps), shapes).jit_compile

    assert compiles(10_000, 1) and compiles(10_000, 16)
    assert not compiles(5, 1)
    # More shapes need more steps.
    fewest = next(steps for steps in range(1, 10_000) if compiles(steps, 1))
    assert not compiles(fewest, 2) and compiles(2 * fewest, 2)


def test_replicas_on_cpus_use_no_gpus_even_if_there_are_some(monkeypatch):
    on_cpus = tf.distribute.MirroredStrategy(["CPU:0"])
    assert not uses_gpus(tf.distribute.get_strategy())
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])
    assert uses_gpus(tf.distribute.get_strategy())
    assert not uses_gpus(on_cpus)


@pytest.mark.parametrize(
    "precision, jit_compile", [("float32", "true"), ("bfloat16", "true"), ("float16", "false")]
)
def test_explicit_settings_win(monkeypatch, tmp_path, precision, jit_compile):
    config = TrainingConfig(mixed_precision=precision, jit_compile=jit_compile)
    put_cpu(monkeypatch, tmp_path, "avx512_bf16")
    on_cpu = choose_platform(config, 1)
    put_gpus(monkeypatch, (7, 0))
    for chosen in (on_cpu, choose_platform(config, 1)):
        assert (chosen.precision, chosen.jit_compile) == (precision, jit_compile == "true")
        assert "\n".join(chosen.reasons).count("(as configured)") == 2
    assert on_cpu.policy().compute_dtype == precision


def test_every_logical_cpu_is_a_replica(monkeypatch, two_cpus):
    monkeypatch.undo()
    chosen = choose_platform(TrainingConfig(), 1)
    assert chosen.strategy.num_replicas_in_sync == 2
    assert tells(chosen.reasons[0], "2 CPU devices")


def test_the_devices_of_several_workers():
    here = SimpleNamespace(worker_devices=("/job:worker/task:1/device:CPU:0",))
    strategy = SimpleNamespace(extended=here, num_replicas_in_sync=2)
    chosen = choose_platform(TrainingConfig(), 1, strategy=strategy)
    assert chosen.reasons[0] == "devices: 1 CPU device (replicas in all workers: 2)"


def test_wrong_numbers_of_logical_cpus_are_refused():
    refuses(use_logical_cpus, (0,), "logical CPUs", "0", "1")


def test_several_models_are_trained_in_one_process(two_cpus):
    for size in (3, 4):  # the second one failed when both had the same keys
        strategy = devices.mirrored_strategy(two_cpus)

        @tf.function
        def total(strategy=strategy, size=size):
            context = tf.distribute.get_replica_context
            return strategy.run(lambda: context().all_reduce("SUM", tf.ones([size])))

        for copy in strategy.experimental_local_results(total()):
            assert copy.numpy().tolist() == [2.0] * size


def test_deterministic_runs_have_full_float32_products_and_separate_programs(monkeypatch):
    def number():
        devices.make_xla_cache_names_reproducible()
        return devices.ops.uid() % 1_000_000

    tf_config = devices.tf_config
    was_on = tf_config.is_op_determinism_enabled()
    had_tf32 = tf_config.tensor_float_32_execution_enabled()
    try:
        tf_config.disable_op_determinism()
        tf_config.enable_tensor_float_32_execution(True)
        choose_platform(TrainingConfig(jit_compile="false"), 1)
        assert tf_config.tensor_float_32_execution_enabled() and number() == 1
        choose_platform(TrainingConfig(jit_compile="false", deterministic=True), 1)
        assert not tf_config.tensor_float_32_execution_enabled() and number() == 500_001
    finally:
        tf_config.enable_tensor_float_32_execution(had_tf32)
        if not was_on:
            tf_config.disable_op_determinism()


@pytest.mark.parametrize("has_driver", [False, True])
def test_a_card_that_tensorflow_does_not_find_is_mentioned(
    has_driver, tmp_path, monkeypatch, capsys
):
    driver = tmp_path / "version"
    if has_driver:
        driver.write_text("NVRM version: 580")
    monkeypatch.setattr(devices, "Path", lambda name: driver if "nvidia" in name else Path(name))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    choose_platform(TrainingConfig(), num_shapes=1)
    warning = capsys.readouterr().err
    assert tells(warning, "NVIDIA driver", "does not find a GPU") == has_driver
    choose_platform(TrainingConfig(), num_shapes=1, device="cpu")
    assert not capsys.readouterr().err
    with pytest.raises(InputError, match=mentions("GPU", "docs/gpu.md", "device=cpu")):
        choose_platform(TrainingConfig(), num_shapes=1, device="gpu")
