"""What type checkers see of the public names.

`bin/test` runs mypy on this file, which also reports an ignored error that is none.
"""

import numpy as np

import keras_transformer as kt

data = kt.prepare("a.en", "a.de", output_dir="data")
kt.prepare(pairs=[{"en": "a", "de": "b"}], valid_pairs=[["a", "b"]], output_dir="data")
run = kt.train(data, "run", preset="tiny", max_steps=100)
translator = kt.load("build/run", beam_size=4)
text: str = translator("a dog")
found: list[str] = translator(np.array(["a dog"]))
run.export("export", languages=("en", "de"), text_signature=False)
model = kt.Transformer.from_preset("tiny", 30)
texts: list[str] = kt.Translator(model, run.translator().tokenizer)(["a dog"])

number: int = translator("a dog")  # type: ignore[assignment]
kt.load(3)  # type: ignore[arg-type]
kt.nonsense  # type: ignore[attr-defined]  # noqa: B018
kt.prepare("a.en", "a.de")  # type: ignore[call-arg]
kt.train(data, "run", label_smothing=0.1)  # type: ignore[call-arg]
translator.translate([text], beam_size="a")  # type: ignore[arg-type]
kt.load("run", sample=1.5, seed=2)  # type: ignore[arg-type]
run.translator(precision=8)  # type: ignore[arg-type]
translator.export("x", languges=("en", "de"))  # type: ignore[call-arg]
run.export("x", max_bleu_loss="0.1")  # type: ignore[arg-type]
kt.convert("x", source_format="marian", positon="marian")  # type: ignore[call-arg]
translator.translate_file("a", "b", overwrit=True)  # type: ignore[call-arg]
length: int = model.generate([[5, 3]], n_best=2).ids_of_no_name  # type: ignore[attr-defined]
