"""LiteRT models, single files for phones and CPUs, and their flag --text_signature of `export`.

The signature `translate` contains the tokenizer. LiteRT.js loads no models with text inputs.
"""

help = "add the signature translate to a LiteRT model; browsers cannot load it"
default = True
