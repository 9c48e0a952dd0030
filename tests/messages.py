"""Finds facts in messages, in any order, so that tests do not depend on the sentences."""

import re


class Pattern(str):
    """A pattern for `re.search`, with the facts for the name of a test case."""

    facts: tuple[str, ...]


def mentions(*facts: object) -> Pattern:
    """Returns a pattern for `re.search` that matches a line with all facts.

    Facts match only whole words and numbers. 5 is not found in 50, in 0.5 or in a path.

    Example:
        >>> bool(re.search(mentions("seed", 5), "seed is 5, not a text"))
        True
        >>> bool(re.search(mentions("seed", 5), "seed is 50"))
        False
    """
    assert facts
    pattern = Pattern("(?i:" + "".join(f"(?=.*{_whole(str(fact))})" for fact in facts) + ")")
    pattern.facts = tuple(map(str, facts))
    return pattern


def _whole(fact: str) -> str:
    assert fact
    before = after = ""
    if re.fullmatch(r"-?\d[\d.,]*", fact):
        before = r"(?<![\w./-])"
    elif fact[0].isalnum() or fact[0] == "_":
        before = r"(?<!\w)"
    if fact[-1].isdigit():
        after = r"(?!\w|[.,]\d)"
    elif fact[-1].isalpha() or fact[-1] == "_":
        after = r"(?!\w)"
    return before + re.escape(fact) + after


def tells(text: str, *facts: object) -> bool:
    """True if a line of the text matches `mentions(*facts)`."""
    return re.search(mentions(*facts), text) is not None
