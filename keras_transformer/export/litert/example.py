"""Translates lines of standard input: pip install ai-edge-litert sentencepiece

    python example.py <input.txt

Everything is in model.tflite, which is a ZIP archive, too, with the vocabulary.
"""

import sys
import zipfile
from pathlib import Path

import numpy as np
import sentencepiece
from ai_edge_litert.interpreter import Interpreter

MODEL = Path(__file__).parent / "model.tflite"


def vocabulary(name: str) -> sentencepiece.SentencePieceProcessor:
    """Reads the vocabulary of one language; there may be one for both."""
    with zipfile.ZipFile(MODEL) as archive:
        file = f"{name}.model" if f"{name}.model" in archive.namelist() else "joint.model"
        return sentencepiece.SentencePieceProcessor(model_proto=archive.read(file))


source, target = vocabulary("source"), vocabulary("target")
interpreter = Interpreter(str(MODEL), num_threads=2)
translate = interpreter.get_signature_runner("translate_ids")

for line in sys.stdin.buffer:
    text = line.decode(errors="replace").strip()
    found = translate(
        ids=np.array([source.encode(text, add_eos=True)], np.int32),
        max_length=np.array([0], np.int32),  # 0: as exported
        length_penalty=np.array([np.nan], np.float32),  # no number: as exported
    )
    length = found["lengths"][0, 0]  # of the best; the others follow it
    print(target.decode(found["ids"][0, 0, :length].tolist()), flush=True)
