"""Translates lines of standard input. Needs `pip install ai-edge-litert sentencepiece`.

    python example.py <input.txt

The file model.tflite is also a ZIP archive that contains the vocabulary.
"""

import sys
import zipfile
from pathlib import Path

import numpy as np
import sentencepiece
from ai_edge_litert.interpreter import Interpreter

MODEL = Path(__file__).parent / "model.tflite"


def read_vocabulary(name: str) -> sentencepiece.SentencePieceProcessor:
    """Reads the vocabulary of the source or target language, which may be one joint file."""
    with zipfile.ZipFile(MODEL) as archive:
        file = f"{name}.model" if f"{name}.model" in archive.namelist() else "joint.model"
        return sentencepiece.SentencePieceProcessor(model_proto=archive.read(file))


source, target = read_vocabulary("source"), read_vocabulary("target")
interpreter = Interpreter(str(MODEL), num_threads=2)
translate = interpreter.get_signature_runner("translate_ids")

for line in sys.stdin.buffer:
    text = line.decode(errors="replace").strip()
    found = translate(
        ids=np.array([source.encode(text, add_eos=True)], np.int32),
        max_length=np.array([0], np.int32),  # 0: as exported
        length_penalty=np.array([np.nan], np.float32),  # NaN: as exported
    )
    length = found["lengths"][0, 0]  # of the best translation, which comes first
    print(target.decode(found["ids"][0, 0, :length].tolist()), flush=True)
