"""Translates lines of standard input. Needs `pip install ai-edge-litert sentencepiece`.

    python example.py <input.txt

The file model.tflite is also a ZIP archive that contains the vocabulary.
"""

import json
import re
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import sentencepiece
from ai_edge_litert.compiled_model import CompiledModel, CpuOptions, Options

MODEL = Path(__file__).parent / "model.tflite"
SIGNATURE = "translate_ids"
WEIGHTS_IN_MEMORY = ":memory"  # XNNPACK's cache of packed weights; the file's are released
TRUNCATED, NOT_TRANSLATED = 1, 32  # bits of the output `status`
DAMAGED = f"{MODEL} is cut off or was changed after the export. Copy or export it again."


def read_vocabulary(name: str) -> sentencepiece.SentencePieceProcessor:
    """Reads the vocabulary of the source or target language, which may be one joint file."""
    with zipfile.ZipFile(MODEL) as archive:
        file = f"{name}.model" if f"{name}.model" in archive.namelist() else "joint.model"
        return sentencepiece.SentencePieceProcessor(model_proto=archive.read(file))


if not MODEL.is_file():
    sys.exit(f"{MODEL} is missing. Copy it from the export.")
try:
    with zipfile.ZipFile(MODEL) as archive:
        checksum = json.loads(archive.read("model.json"))["model_crc32"]
        size = min(info.header_offset for info in archive.infolist())
    source, target = read_vocabulary("source"), read_vocabulary("target")
except Exception as error:  # zipfile, json and SentencePiece raise many exceptions
    sys.exit(f"{DAMAGED} ({type(error).__name__})")
with MODEL.open("rb") as content:
    if zlib.crc32(content.read(size)) != checksum:
        sys.exit(DAMAGED)
cpu = CpuOptions(num_threads=2, xnnpack_weight_cache_path=WEIGHTS_IN_MEMORY)
options = Options(cpu_options=cpu)
model = CompiledModel.from_file(str(MODEL), options=options)
shapes = {  # all are constant
    "source": model.get_input_tensor_details(SIGNATURE)["ids"]["shape"],  # [1, S]
    "target": model.get_output_tensor_details(SIGNATURE)["ids"]["shape"],  # [1, K, L]
}
names = model.get_signature_list()[SIGNATURE]
inputs = {name: model.create_input_buffer_by_name(SIGNATURE, name) for name in names["inputs"]}
outputs = {name: model.create_output_buffer_by_name(SIGNATURE, name) for name in names["outputs"]}
inputs["max_length"].write(np.array([0], np.int32))  # 0: as exported
inputs["length_penalty"].write(np.array([np.nan], np.float32))  # NaN: as exported

for number, line in enumerate(sys.stdin.buffer, 1):
    text = line.decode(errors="replace").strip()
    padded = np.zeros(shapes["source"], np.int32)
    ids = source.encode(text, add_eos=True)[: padded.size]
    padded[0, : len(ids)] = ids
    inputs["ids"].write(padded)
    inputs["lengths"].write(np.array([len(ids)], np.int32))
    model.run_by_name(SIGNATURE, inputs, outputs)
    _, translations, longest = shapes["target"]
    found = outputs["ids"].read(translations * longest, np.int32)
    length = outputs["lengths"].read(translations, np.int32)[0]  # the best translation is first
    translation = target.decode(found[:length].tolist())
    # Tokens of single bytes may be line breaks.
    print(re.sub(r"[\x00-\x1f\x7f]", " ", translation), flush=True)
    status = outputs["status"].read(1, np.int32)[0]
    if status & TRUNCATED:
        print(f"Line {number} is too long: the rest is not translated.", file=sys.stderr)
    if status & NOT_TRANSLATED:
        print(f"Line {number} has no translation.", file=sys.stderr)
