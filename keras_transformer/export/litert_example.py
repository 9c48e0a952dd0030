"""Translates lines of standard input: pip install ai-edge-litert sentencepiece

    python example.py <input.txt

Everything is in model.tflite; the vocabulary is also in the .model files beside it.
"""

import sys
from pathlib import Path

import numpy as np
import sentencepiece
from ai_edge_litert.interpreter import Interpreter

HERE = Path(__file__).parent


def vocabulary(name: str) -> sentencepiece.SentencePieceProcessor:
    """Reads the vocabulary of one language; there may be one for both."""
    path = HERE / f"{name}.model"
    file = path if path.exists() else HERE / "joint.model"
    return sentencepiece.SentencePieceProcessor(model_file=str(file))


source, target = vocabulary("source"), vocabulary("target")
interpreter = Interpreter(str(HERE / "model.tflite"), num_threads=2)
translate = interpreter.get_signature_runner("translate_ids")

for line in sys.stdin:
    found = translate(
        ids=np.array([source.encode(line.strip(), add_eos=True)], np.int32),
        max_length=np.array([0], np.int32),  # 0: as exported
        length_penalty=np.array([np.nan], np.float32),  # no number: as exported
    )
    length = found["lengths"][0, 0]  # of the best; the others follow it
    print(target.decode(found["ids"][0, 0, :length].tolist()), flush=True)
