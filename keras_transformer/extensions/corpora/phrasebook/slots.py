"""Values for the templates' slots: kind → pairs (English, German), rendered by CLDR.

All values are enumerated, so the size of a slot is known, and templates draw by index.
"""

import datetime
import functools
import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from keras_transformer.errors import needs_extra

with needs_extra("phrasebook", "the phrasebook"):
    from babel import Locale, dates, lists, numbers, units

Pairs: TypeAlias = tuple[tuple[str, str], ...]

# Values in a natural order: two of them in one sentence keep it ("from … to …").
ORDERED = frozenset("time hour date year number percent decimal thousands".split())

# CLDR writes no-break spaces between numbers and units, and soft hyphens in some names. NFKC in
# the tokenizer turns no-break spaces into normal ones, so no translation could match a reference
# that has them.
_PLAIN_SPACES = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u00ad": None})


def _read_table() -> dict[str, dict[str, str]]:
    """Reads slots.txt: for each kind of names the slots, with their keys or measures."""
    text = Path(__file__).with_name("slots.txt").read_text("utf-8").replace("\n  ", " ")
    table: dict[str, dict[str, str]] = {}
    for names, slot, keys in re.findall(r"^(\w+) (\w+): (.*)$", text, re.MULTILINE):
        table.setdefault(names, {})[slot] = keys
    return table


_TABLE = _read_table()


def _pairs(render: Callable[[Any, str], str], values: Iterable[Any]) -> Pairs:
    """Returns each value as `render(value, locale)` gives it in both languages."""
    return tuple(
        (
            render(value, "en").translate(_PLAIN_SPACES),
            render(value, "de").translate(_PLAIN_SPACES),
        )
        for value in values
    )


def _values(ranges: str) -> list[float]:
    """Returns the values of ranges such as "2:61 100:1000:50 halves"."""
    halves = [value + 0.5 for value in range(1, 10)]
    return [
        value
        for part in ranges.split()
        for value in (halves if part == "halves" else range(*map(int, part.split(":"))))
    ]


def _units(measures: str) -> Iterator[tuple[str, list[float]]]:
    """Yields each unit of measures with its values."""
    for part in measures.split(", "):
        unit, _, ranges = part.partition(" ")
        yield unit, _values(ranges)


def _quantities(measures: str, length: Literal["short", "long"] = "long") -> Pairs:
    """Returns numbers with a CLDR unit, whose name is in the nominative or accusative."""
    return _pairs(
        lambda measure, locale: units.format_unit(measure[0], measure[1], length, locale=locale),
        [(value, unit) for unit, values in _units(measures) for value in values],
    )


def _relative_times(durations: str, sign: int) -> Pairs:
    """Returns times from now: "in 3 days" (sign 1) or "3 days ago" (sign -1)."""
    seconds = dict(dates.TIMEDELTA_UNITS)

    def render(time: tuple[float, str], locale: str) -> str:
        value, unit = time
        return dates.format_timedelta(
            datetime.timedelta(seconds=sign * value * seconds[unit]),
            granularity=cast(Any, unit),
            threshold=1e9,  # stay in this unit however large the number
            add_direction=True,
            locale=locale,
        )

    times = [(n, unit.split("-")[1]) for unit, values in _units(durations) for n in values]
    return _pairs(render, times)


def _dates(values: Iterable[datetime.date], en: str, de: str) -> Pairs:
    """Returns dates in CLDR's pattern letters, one pattern per language."""
    patterns = {"en": en, "de": de}
    return _pairs(lambda date, locale: dates.format_date(date, patterns[locale], locale), values)


def _times(minutes: range, en: str, de: str) -> Pairs:
    """Returns times of day in CLDR's pattern letters, one pattern per language."""
    patterns = {"en": en, "de": de}
    return _pairs(
        lambda time, locale: dates.format_time(time, patterns[locale], locale=locale),
        [datetime.time(hour, minute) for hour in range(6, 24) for minute in minutes],
    )


def _lists(values: Pairs, style: Literal["standard", "or"], in_order: bool = False) -> Pairs:
    """Returns lists of two or three values. If there are too many lists, some of them."""
    rng = random.Random(style)
    drawn = dict.fromkeys(
        tuple(rng.sample(range(len(values)), 2 + draw % 2)) for draw in range(4000)
    )
    chosen = dict.fromkeys(tuple(sorted(indices)) if in_order else indices for indices in drawn)
    return tuple(_join([values[i] for i in indices], style) for indices in chosen)


def _join(values: Iterable[tuple[str, str]], style: Any = "standard") -> tuple[str, str]:
    """Returns a list of values in both languages."""
    english, german = zip(*values, strict=True)
    return lists.format_list(english, style, "en"), lists.format_list(german, style, "de")


def _prices(currencies: str, values: Iterable[float]) -> list[tuple[float, str]]:
    return list(itertools.product(values, currencies.split()))


def _time_slots() -> dict[str, Pairs]:
    leap_year = [datetime.date(2024, 1, 1) + datetime.timedelta(days) for days in range(366)]
    # Every eleventh day of four decades: all months and days, at a moderate number.
    decades = [datetime.date(1982, 1, 1) + datetime.timedelta(11 * i) for i in range(1328)]
    months = [datetime.date(2024, month, 1) for month in range(1, 13)]
    # "morning1" and so on are the dayparts that the CLDR distinguishes in both languages.
    dayparts = (("morning1",) * 2, ("afternoon1", "afternoon2"), ("evening1",) * 2, ("night1",) * 2)
    english, german = (Locale.parse(code).day_periods["format"]["wide"] for code in ("en", "de"))
    found: dict[str, Pairs] = {
        "weekday": _dates(leap_year[:7], en="EEEE", de="EEEE"),
        "month": _dates(months, en="LLLL", de="LLLL"),
        "date": _dates(leap_year, en="MMMM d", de="d. MMMM"),
        "full_date": _dates(decades, en="MMMM d, y", de="d. MMMM y"),
        "year": _dates([datetime.date(year, 1, 1) for year in range(1925, 2023)], en="y", de="y"),
        "quarter": _dates(months[::3], en="QQQQ", de="QQQQ"),
        "time": _times(range(0, 60, 10), en="h:mm a", de="HH:mm"),
        "hour": _times(range(1), en="h a", de="H 'Uhr'"),
        "daypart": tuple((english[first], german[second]) for first, second in dayparts),
        "hours_and_minutes": tuple(
            _join(both)
            for both in itertools.product(
                _quantities("duration-hour 2:13"), _quantities("duration-minute 5:60:5")
            )
        ),
    }
    for kind in ("weekday", "month"):
        found[f"{kind}s"] = _lists(found[kind], "standard", in_order=True)
    for kind in ("hours", "years"):
        found[f"in_{kind}"] = _relative_times(_TABLE["long"][kind], 1)
        found[f"{kind}_ago"] = _relative_times(_TABLE["long"][kind], -1)
        # CLDR's units are nominative ("3 Tage"); its relative times hold the dative ("3 Tagen").
        found[f"{kind}_dative"] = tuple(
            (english.removeprefix("in "), german.removeprefix("in "))
            for english, german in found[f"in_{kind}"]
        )
    return found


def _world_slots() -> dict[str, Pairs]:
    def name(key: tuple[str, str], locale: str) -> str:
        return str(getattr(Locale.parse(locale), key[0])[key[1]])

    def city(zone: str, locale: str) -> str:
        return dates.get_timezone_location(zone, locale, return_city=True)

    found = {
        slot: _pairs(name, [(names, key) for key in keys.split()])
        for names in ("territories", "languages", "currencies", "scripts")
        for slot, keys in _TABLE[names].items()
    }
    found["city"] = _pairs(city, _TABLE["cities"]["city"].split())
    for kind, plural in (("country", "countries"), ("language", "languages"), ("city", "cities")):
        found[plural] = _lists(found[kind], "standard")
        found[f"{plural}_or"] = _lists(found[kind], "or")
    return found


def _number_slots() -> dict[str, Pairs]:
    percent_patterns = {"en": "0.#%", "de": "0.#\u00a0%"}  # CLDR's patterns with optional decimals
    money_patterns = {"en": "¤#,##0", "de": "#,##0\u00a0¤"}  # CLDR's patterns without decimals
    cents = [euros + cent / 100 for euros in range(1, 61) for cent in (20, 50, 80, 99)]
    decimals = [i / 10 for i in range(1, 100) if i % 10] + [i + 0.5 for i in range(10, 30)]
    numbers_of = {
        "number": _values("2:100"),
        "thousands": _values("1000:10000:100 10000:100000:5000"),
        "decimal": decimals,
    }
    return {
        **{
            kind: _pairs(lambda n, locale: numbers.format_decimal(n, locale=locale), values)
            for kind, values in numbers_of.items()
        },
        "percent": _pairs(
            lambda n, locale: numbers.format_percent(n / 100, percent_patterns[locale], locale),
            sorted(_values("2:100 halves")),
        ),
        "price": _pairs(
            lambda money, locale: numbers.format_currency(money[0], money[1], locale=locale),
            _prices("EUR USD GBP", cents),
        ),
        "amount": _pairs(
            lambda money, locale: numbers.format_currency(
                money[0], money[1], money_patterns[locale], locale, currency_digits=False
            ),
            _prices("EUR USD GBP", _values("10:100:10 100:1000:50 1000:10000:500")),
        ),
        # Money in words, for currencies whose German name has this form inside a sentence.
        "money": _pairs(
            lambda money, locale: (
                f"{money[0]} {numbers.get_currency_name(money[1], money[0], locale)}"
            ),
            _prices("EUR USD CHF", _values("2:101")),
        ),
    }


@functools.cache
def slots() -> dict[str, Pairs]:
    """Returns the values (English, German) of all slot kinds."""
    return {
        **_time_slots(),
        **_world_slots(),
        **_number_slots(),
        **{slot: _quantities(measures, "long") for slot, measures in _TABLE["long"].items()},
        **{slot: _quantities(measures, "short") for slot, measures in _TABLE["short"].items()},
    }
