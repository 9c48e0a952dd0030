"""Symbols that replace text that a translation must keep: spans, such as URLs, and tags.

They are user-defined pieces of a vocabulary. `decoding/symbols.py` makes them survive a search.
"""

SPAN_SYMBOLS = tuple(f"｟{number}｠" for number in range(10))
# The begin and the end of each tag.
TAG_SYMBOLS = tuple((f"｟b{number}｠", f"｟e{number}｠") for number in range(5))
# Spans, then all begins, then all ends.
SYMBOLS = (*SPAN_SYMBOLS, *(begin for begin, _ in TAG_SYMBOLS), *(end for _, end in TAG_SYMBOLS))
# Only in sources: the begin and the end of a translation instead of a term.
TERM_SYMBOLS = ("｟t0｠", "｟t1｠")
