"""`linearization.restore` within a graph: ids of symbols in, trees in brackets out.

Nothing here fails or loops. All places of all sequences are looked at together: what a stack
would tell of a place follows from running sums and running minima of the depth, and a minimum over
up to n places takes log₂ n steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from keras_transformer.paper.parsing.linearization import OPEN, WORD, Does

_UNIT = 32  # closing brackets, of which longer runs are joined


def restored(
    symbols: Sequence[str],
    ids: tf.Tensor,
    lengths: tf.Tensor,
    words: tf.RaggedTensor,
    max_length: int,
) -> tf.Tensor:
    """Returns trees, string `[N]`, over exactly the words; "" where there are no words.

    Args:
        symbols: the symbol of each id, "" for one that has none.
        ids: int32 `[N, L]`; what is no id of a symbol is nothing.
        lengths: int32 `[N]`; only the first so many ids of a row count.
        words: string `[N, any]`.
        max_length: the most that L can be.
    """
    does, names = _looked_up(symbols, ids, lengths)  # --> [N, L + 1], the last nothing
    counts = tf.expand_dims(tf.cast(words.row_lengths(), tf.int32), 1)  # --> [N, 1]
    number = tf.cumsum(tf.cast(does == Does.STAND, tf.int32), axis=1)  # of words up to each place
    stands = (does == Does.STAND) & (number <= counts)
    number = tf.minimum(number, counts)
    more = number < counts  # whether words follow
    change = tf.cast(does == Does.OPEN, tf.int32) - tf.cast(does == Does.CLOSE, tf.int32)
    total = tf.cumsum(change, axis=1)
    # What closes where nothing is open changes nothing (Lindley's recursion).
    depth = total - tf.minimum(_running_minimum(total, max_length + 1), 0)
    # A gap is a word and all that is said before the next. What opens in a gap and closes in
    # it holds no word; so does what opens after the last word.
    least = _minimum_to_the_end_of_the_gap(depth, number, max_length + 1)
    opens = (does == Does.OPEN) & (depth == least) & more
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
    """Returns what each id does, int32, and its label or tag, string, both `[N, L + 1]`."""
    known = [*symbols, ""]
    counted = tf.sequence_mask(lengths, tf.shape(ids)[1]) & (ids >= 0) & (ids < len(symbols))
    ids = tf.pad(
        tf.where(counted, ids, len(symbols)), [[0, 0], [0, 1]], constant_values=len(symbols)
    )
    does = tf.constant([int(Does.of(symbol)) for symbol in known])
    names = tf.constant([symbol.removeprefix(OPEN) for symbol in known])
    return tf.gather(does, ids), tf.gather(names, ids)


def _words_at(words: tf.RaggedTensor, places: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """Returns the word, string `[N, L]`, at each place of its sentence that is wanted, else ""."""
    # Never densified: one long sentence would make all the others as long.
    known = tf.concat([words.flat_values, [""]], axis=0)
    begins = tf.expand_dims(tf.cast(words.row_starts(), tf.int32), 1)
    return tf.gather(known, tf.where(wanted, begins + places, tf.size(known) - 1))


def _leaf(tags: tf.Tensor | str, words: tf.Tensor) -> tf.Tensor:
    return tf.strings.join([" (", tags, " ", words, ")"])


def _rest(words: tf.RaggedTensor, used: tf.Tensor) -> tf.Tensor:
    """Returns the leaves, string `[N]` of all in one, of the words behind the first `used`."""
    flat = tf.range(tf.size(words.flat_values))
    # Not `value_rowids`, which makes all rows as long as the longest on its way.
    rows = tf.searchsorted(tf.cast(words.row_limits(), tf.int32), flat, side="right")
    places = flat - tf.gather(tf.cast(words.row_starts(), tf.int32), rows)
    leaves = tf.where(places >= tf.gather(used, rows), _leaf(WORD, words.flat_values), "")
    return tf.strings.unsorted_segment_join(leaves, rows, tf.shape(used)[0])


def _closing(counts: tf.Tensor, most: int) -> tf.Tensor:
    """Returns so many closing brackets, string; `counts` int32 are at most `most`."""
    few = tf.constant([")" * i for i in range(_UNIT)])
    many = tf.constant([")" * (_UNIT * i) for i in range(most // _UNIT + 1)])
    return tf.gather(many, counts // _UNIT) + tf.gather(few, counts % _UNIT)


def _running_minimum(values: tf.Tensor, most: int) -> tf.Tensor:
    """Returns the minimum of each value, int32 `[N, L]`, and all before it; L is at most `most`."""
    reach = 1  # each value is the minimum of so many
    while reach < most:
        shift = tf.minimum(reach, tf.shape(values)[1])
        before = tf.pad(
            values[:, : tf.shape(values)[1] - shift],
            [[0, 0], [shift, 0]],
            constant_values=values.dtype.max,
        )
        values = tf.minimum(values, before)
        reach *= 2
    return values


def _minimum_to_the_end_of_the_gap(depth: tf.Tensor, gap: tf.Tensor, most: int) -> tf.Tensor:
    """Returns the minimum of each depth and all behind it that are in the same gap.

    Args:
        depth: int32 `[N, L]`.
        gap: int32 `[N, L]`, which one each is in; they come one after the other.
        most: L is at most this.
    """
    reach = 1
    while reach < most:
        shift = tf.minimum(reach, tf.shape(depth)[1])
        paddings = [[0, 0], [0, shift]]
        behind = tf.pad(depth[:, shift:], paddings)
        same = tf.pad(gap[:, shift:], paddings, constant_values=-1) == gap
        depth = tf.where(same, tf.minimum(depth, behind), depth)
        reach *= 2
    return depth
