"""Words of a text within a graph: as they stand between spaces, or split as treebanks split them.

Words are never changed but in two ways: `(` and `)` become `-LRB-` and `-RRB-`, as they stand in
trees, and bytes that are no UTF-8 become U+FFFD. Nothing here fails.
"""

from __future__ import annotations

import tensorflow as tf

# As `data.cleaning` has it: control characters and line separators are spaces.
_SPACES = r"[\x00-\x20\x7f\x{80}-\x{9f}\x{2028}\x{2029}]+"
_ESCAPES = (("(", "-LRB-"), (")", "-RRB-"))
# With all that is beyond ASCII but the blocks of punctuation and symbols.
_LETTER = r"[0-9A-Za-z\x{80}-\x{1fff}\x{2c00}-\x{10ffff}]"
_AFFIXES = (  # keep their hyphen in newer treebanks
    "anti|ante|auto|bi|bio|co|counter|cross|de|di|e|electro|ex|extra|hyper|hypo|inter|intra|macro|"
    "mega|meta|micro|mid|mini|mono|multi|neo|non|over|para|peri|poly|post|pre|pro|pseudo|quasi|re|"
    "semi|sub|super|supra|trans|tri|ultra|un|uni|vice"
)
_KEPT = "\x01"  # stands for a hyphen that stays; text has no control characters any more
# In this order, over a text with a space at either end.
_RULES = (
    (r"""``|''|["“”„«»‘`]|\.\.\.+|…|--+|[–—]""", r" \0 "),
    (r"[\[\](){}<>;%&?!=±×~≤≥′″#$]", r" \0 "),
    # Commas and colons, but those within numbers and of addresses.
    (r",([^0-9])", r" , \1"),
    (r"([^0-9]),", r"\1 , "),
    (r":([^0-9/])", r" : \1"),
    # The last full stop of the sentence, with what may stand behind it.
    (r'([^. ])\.((?: |["”’»\')\]])*)$', r"\1 . \2"),
    # Hyphens and slashes between letters or digits, not of affixes; twice, as letters are shared.
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
    """Splits texts, string `[B]`, into words with a space between, string `[B]`.

    By the rules of newer treebanks (OntoNotes, the English Web Treebank, CRAFT): punctuation,
    brackets and quotes stand alone, clitics ("do n't", "mouse 's") too, and so do hyphens and
    slashes between words, but for affixes as in "non-coding" and "2-fold". A full stop is
    split off at the end of the text alone, which is taken for one sentence. The letters of a
    text stay as they are and in their order: only spaces come between.
    """
    text = tf.strings.join([" ", _spaced(text), " "])
    for pattern, rewrite in _RULES:
        text = tf.strings.regex_replace(text, pattern, rewrite)
    return text


def words_of(text: tf.Tensor) -> tf.RaggedTensor:
    """Returns the words, string `[B, any]`, that stand between spaces in texts, string `[B]`."""
    words = tf.strings.split(_spaced(text))
    return tf.ragged.map_flat_values(_escaped, words)


def _spaced(text: tf.Tensor) -> tf.Tensor:
    text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
    return tf.strings.regex_replace(text, _SPACES, " ")


def _escaped(words: tf.Tensor) -> tf.Tensor:
    for bracket, escape in _ESCAPES:
        words = tf.strings.regex_replace(words, rf"\{bracket}", escape)
    return words
