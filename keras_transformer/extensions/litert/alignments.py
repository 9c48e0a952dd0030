"""The flag --alignments of `export`. It is off by default, because the search takes longer."""

help = "add alignments to the outputs of a LiteRT model; the search takes about 2 % longer"
default = False
