"""Text operations of a parser in a graph: words of a text, and trees from symbols.

Text is split into words at spaces, or as in treebanks. Words change in two ways: `(` and `)` become
`-LRB-` and `-RRB-`, as in trees, and invalid UTF-8 becomes U+FFFD.

`restore_trees` is `trees.restore` in a graph. All positions of all sequences are processed in
parallel. Running sums and running minima of the depth replace the stack. A minimum over up to n
positions takes log₂ n steps. There are no loops, and every input is valid.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from keras_transformer.extensions.paper.parsing.trees import OPEN, WORD, SymbolKind

# As in `data.cleaning`, control characters and line separators are spaces.
_SPACES = r"[\x00-\x20\x7f\x{80}-\x{9f}\x{2028}\x{2029}]+"
_ESCAPES = (("(", "-LRB-"), (")", "-RRB-"))
# Letters and digits: all characters beyond ASCII except blocks of punctuation and symbols.
_LETTER = r"[0-9A-Za-z\x{80}-\x{1fff}\x{2c00}-\x{10ffff}]"
_AFFIXES = (  # affixes, which keep their hyphen in newer treebanks
    "anti|ante|auto|bi|bio|co|counter|cross|de|di|e|electro|ex|extra|hyper|hypo|inter|intra|macro|"
    "mega|meta|micro|mid|mini|mono|multi|neo|non|over|para|peri|poly|post|pre|pro|pseudo|quasi|re|"
    "semi|sub|super|supra|trans|tri|ultra|un|uni|vice"
)
_KEPT = "\x01"  # marks a hyphen that stays; the text has no control characters
# They are applied in this order to a text with a space at both ends.
_RULES = (
    (r"""``|''|["“”„«»‘`]|\.\.\.+|…|--+|[–—]""", r" \0 "),
    (r"[\[\](){}<>;%&?!=±×~≤≥′″#$]", r" \0 "),
    # Commas and colons, except inside numbers and addresses.
    (r",([^0-9])", r" , \1"),
    (r"([^0-9]),", r"\1 , "),
    (r":([^0-9/])", r" : \1"),
    # The last full stop of the sentence, with following quotes and brackets.
    (r'([^. ])\.((?: |["”’»\')\]])*)$', r"\1 . \2"),
    # Hyphens and slashes between letters or digits, except of affixes. Twice, because neighbors
    # share letters.
    (rf" ((?i:{_AFFIXES}))-({_LETTER})", rf" \1{_KEPT}\2"),
    (rf"({_LETTER})-(fold|like|wise|less|free) ", rf"\1{_KEPT}\2 "),
    (rf"({_LETTER})-({_LETTER})", r"\1 - \2"),
    (rf"({_LETTER})-({_LETTER})", r"\1 - \2"),
    (r"([^:/ ])/([^/ ])", r"\1 / \2"),
    (r"([^:/ ])/([^/ ])", r"\1 / \2"),
    (_KEPT, "-"),
    # Quotes, then clitics: 's, 're, n't.
    (r" '([^ ]{3})", r" ' \1"),
    (r"([^ ])([nN]['’][tT]) ", r"\1 \2 "),
    (r"([^ ])(['’](?i:s|m|d|re|ve|ll)) ", r"\1 \2 "),
    (r"([^ '])(['’]) ", r"\1 \2 "),
)


def tokenize(text: tf.Tensor) -> tf.Tensor:
    """Splits texts, string `[B]`, into words separated by spaces, string `[B]`.

    It follows the rules of newer treebanks (OntoNotes, the English Web Treebank, CRAFT).
    Punctuation, brackets, quotes, clitics ("do n't", "mouse 's"), and hyphens and slashes between
    words are separate words, except for affixes as in "non-coding" and "2-fold". A full stop is
    only split off at the end of the text, which counts as one sentence. Only spaces are added.
    """
    text = tf.strings.join([" ", _spaced(text), " "])
    for pattern, rewrite in _RULES:
        text = tf.strings.regex_replace(text, pattern, rewrite)
    return text


def words_of(text: tf.Tensor) -> tf.RaggedTensor:
    """Splits texts, string `[B]`, at spaces into words, string `[B, any]`."""
    words = tf.strings.split(_spaced(text))
    return tf.ragged.map_flat_values(_escape_brackets, words)


def _spaced(text: tf.Tensor) -> tf.Tensor:
    text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
    return tf.strings.regex_replace(text, _SPACES, " ")


def _escape_brackets(words: tf.Tensor) -> tf.Tensor:
    for bracket, escape in _ESCAPES:
        words = tf.strings.regex_replace(words, rf"\{bracket}", escape)
    return words


_UNIT = 32  # closing brackets in one string, which is cut to the needed length


def restore_trees(
    symbols: Sequence[str],
    ids: tf.Tensor,
    lengths: tf.Tensor,
    words: tf.RaggedTensor,
    max_length: int,
) -> tf.Tensor:
    """Returns trees, string `[N]`, over exactly the words, string `[N, any]`; "" without words.

    `symbols` has the symbol of each id, or "". Rows of `ids`, `[N, L]`, have `lengths` valid ids,
    and L is at most `max_length`.
    """
    kinds, names = _looked_up(symbols, ids, lengths)  # --> [N, L + 1], the last nothing
    counts = tf.expand_dims(tf.cast(words.row_lengths(), tf.int32), 1)  # --> [N, 1]
    is_word, is_opening, is_closing = (
        kinds == kind for kind in (SymbolKind.WORD, SymbolKind.OPEN, SymbolKind.CLOSE)
    )
    number = tf.cumsum(tf.cast(is_word, tf.int32), axis=1)  # words up to each position
    stands = is_word & (number <= counts)
    number = tf.minimum(number, counts)
    more = number < counts  # True if words follow
    change = tf.cast(is_opening, tf.int32) - tf.cast(is_closing, tf.int32)
    total = tf.cumsum(change, axis=1)
    # A closing bracket without an open one changes nothing (Lindley's recursion).
    backwards = tf.reverse(total, [1])
    lowest = _minimum_to_the_end(backwards, tf.zeros_like(total), max_length + 1)
    depth = total - tf.minimum(tf.reverse(lowest, [1]), 0)
    # A gap is a word and all symbols up to the next word. A bracket that opens and closes in the
    # same gap contains no word, nor does one that opens after the last word.
    least = _minimum_to_the_end(depth, number, max_length + 1)
    opens = is_opening & (depth == least) & more
    closing = tf.where(stands, depth - tf.where(more, least, 0), 0)
    leaves = _leaf(names, _words_at(words, number - 1, stands)) + _closing(closing, max_length)
    texts = tf.where(opens, " (" + names, tf.where(stands, leaves, ""))
    rest = _rest(words, number[:, -1])
    end = _closing(tf.where(more[:, -1], depth[:, -1], 0), max_length)
    trees = tf.strings.join(["(TOP", tf.strings.reduce_join(texts, axis=1), rest, end, ")"])
    return tf.where(counts[:, 0] > 0, trees, "")


def _looked_up(
    symbols: Sequence[str], ids: tf.Tensor, lengths: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the function of each id, int32, and its label or tag, string, both `[N, L + 1]`."""
    known = [*symbols, ""]
    counted = tf.sequence_mask(lengths, tf.shape(ids)[1]) & (ids >= 0) & (ids < len(symbols))
    ids = tf.pad(
        tf.where(counted, ids, len(symbols)), [[0, 0], [0, 1]], constant_values=len(symbols)
    )
    kinds = tf.constant([int(SymbolKind.of(symbol)) for symbol in known])
    names = tf.constant([symbol.removeprefix(OPEN) for symbol in known])
    return tf.gather(kinds, ids), tf.gather(names, ids)


def _words_at(words: tf.RaggedTensor, positions: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """Returns the word at each requested position, string `[N, L]`, and "" at other positions."""
    # Stays ragged, because one long sentence would make all others as long.
    known = tf.concat([words.flat_values, [""]], axis=0)
    begins = tf.expand_dims(tf.cast(words.row_starts(), tf.int32), 1)
    return tf.gather(known, tf.where(wanted, begins + positions, tf.size(known) - 1))


def _leaf(tags: tf.Tensor | str, words: tf.Tensor) -> tf.Tensor:
    return tf.strings.join([" (", tags, " ", words, ")"])


def _rest(words: tf.RaggedTensor, used: tf.Tensor) -> tf.Tensor:
    """Returns the leaves of the words after the first `used`, as one string per row, `[N]`."""
    flat = tf.range(tf.size(words.flat_values))
    # `value_rowids` would pad all rows to the longest internally.
    rows = tf.searchsorted(tf.cast(words.row_limits(), tf.int32), flat, side="right")
    positions = flat - tf.gather(tf.cast(words.row_starts(), tf.int32), rows)
    leaves = tf.where(positions >= tf.gather(used, rows), _leaf(WORD, words.flat_values), "")
    return tf.strings.unsorted_segment_join(leaves, rows, tf.shape(used)[0])


def _closing(counts: tf.Tensor, most: int) -> tf.Tensor:
    """Returns strings of `counts` closing brackets. `counts`, int32, is at most `most`."""
    few = tf.constant([")" * i for i in range(_UNIT)])
    many = tf.constant([")" * (_UNIT * i) for i in range(most // _UNIT + 1)])
    return tf.gather(many, counts // _UNIT) + tf.gather(few, counts % _UNIT)


def _minimum_to_the_end(values: tf.Tensor, gap: tf.Tensor, most: int) -> tf.Tensor:
    """Returns the minimum of each value and all later values in the same gap, int32 `[N, L]`.

    `gap` has the number of the gap of each position, in rising order, and L is at most `most`.
    """
    reach = 1  # each value is the minimum of this number of values
    while reach < most:
        shift = tf.minimum(reach, tf.shape(values)[1])
        paddings = [[0, 0], [0, shift]]
        behind = tf.pad(values[:, shift:], paddings)
        same = tf.pad(gap[:, shift:], paddings, constant_values=-1) == gap
        values = tf.where(same, tf.minimum(values, behind), values)
        reach *= 2
    return values
