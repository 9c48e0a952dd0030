"""The core is a whole translator: it works after `extensions/` has been deleted."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import PHRASES, ROOT

PROGRAM = """
import sys
sys.modules["keras_transformer.extensions"] = None  # those of an editable installation
import keras_transformer as kt
from keras_transformer.tf_import import load_tensorflow

assert kt.__file__.startswith(FOLDER), kt.__file__
load_tensorflow()
import tensorflow as tf
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # as in the tests
data = kt.prepare(source="train.en", target="train.de", output_dir="data", vocab_size=60,
                  valid_pairs=2, num_workers=1)
run = kt.train(data, "run", preset="tiny", num_encoder_layers=1, num_decoder_layers=1,
               d_model=16, d_ff=32, num_heads=2, max_steps=2, batch_tokens=64,
               max_extra_tokens=5, max_source_tokens=40, beam_size=1)
source, target = (open(f"train.{name}").read().splitlines()[:3] for name in ("en", "de"))
translator = run.translator()
assert len(translator.evaluate(source, target).hypotheses) == 3
started = []
sys.addaudithook(lambda event, args: started.append(str(args) if "Popen" in event else ""))
run.export("export")
assert any("isolated_process" in command for command in started)  # compared in another process
[text] = translator(["a small dog"])
assert kt.load("export")(["a small dog"]) == [text]
"""


def test_prepare_train_evaluate_export_and_translate_without_extensions(tmp_path: Path) -> None:
    package = shutil.copytree(
        ROOT / "keras_transformer", tmp_path / "keras_transformer",
        ignore=shutil.ignore_patterns("extensions"),
    )  # fmt: skip
    assert not (package / "extensions").exists()
    for points in ROOT.glob("*.egg-info/entry_points.txt"):  # not those of an older installation
        shutil.copytree(points.parent, tmp_path / points.parent.name)
    for name, phrases in (("en", PHRASES[:3]), ("de", PHRASES[3:])):
        lines = [f"{phrase} {number}\n" for number in range(4) for phrase in phrases]
        (tmp_path / f"train.{name}").write_text("".join(lines), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", f"FOLDER = {str(tmp_path)!r}\n{PROGRAM}"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
