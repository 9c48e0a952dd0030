"""Values for the templates' slots: kind → pairs (English, German), rendered by CLDR.

All values are enumerated, so the size of a slot is known, and templates draw by index.
"""

import datetime
import functools
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, cast

from keras_transformer.errors import needs_extra

with needs_extra("phrasebook", "the phrasebook"):
    from babel import Locale, dates, lists, numbers, units

Pair = tuple[str, str]

LOCALES = ("en", "de")

# Values in a natural order: two of them in one sentence keep it ("from … to …").
ORDERED = frozenset("time hour date year number percent decimal thousands".split())

# CLDR writes no-break spaces between numbers and units, and soft hyphens in some names. NFKC in
# the tokenizer turns no-break spaces into normal ones, so no translation could match a reference
# that has them.
_PLAIN_SPACES = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u00ad": None})

# Only countries whose German name has no article, so that "in" and "nach" fit:
# not "die Schweiz", "der Iran", "die Niederlande", "auf Malta".
_COUNTRIES = (
    "AF AL DZ AD AO AR AM AU AT AZ BD BY BE BJ BO BW BR BG KH CM CA CL CN CO CR HR CZ DK EC EG "
    "SV EE ET FI FR GA GE DE GH GR GT HN HU IS IN ID IE IL IT JP JO KZ KE KG LA LV LY LI LT LU "
    "MY ML MX MC ME MA MZ NA NP NZ NI NG KP MK NO PK PA PY PE PL PT QA RO RU RW SA RS SG SI SO "
    "ZA KR ES LK SE SY TJ TW TZ TH TN TM UG UY UZ VE VN ZM ZW"
)
_LANGUAGES = (
    "af ar az be bg bn bs ca cs cy da de el en eo es et eu fa fi fr ga gl he hi hr hu hy id is "
    "it ja ka kk ko ku la lb lt lv mk mn ms mt ne nl no pl pt ro ru sk sl sq sr sv sw ta th tr "
    "uk ur uz vi zh"
)
_CITIES = (
    "Europe/Amsterdam Europe/Athens Europe/Belgrade Europe/Berlin Europe/Brussels "
    "Europe/Bucharest Europe/Budapest Europe/Copenhagen Europe/Dublin Europe/Helsinki "
    "Europe/Istanbul Europe/Lisbon Europe/London Europe/Madrid Europe/Minsk Europe/Moscow "
    "Europe/Oslo Europe/Paris Europe/Prague Europe/Riga Europe/Rome Europe/Sarajevo Europe/Sofia "
    "Europe/Stockholm Europe/Tallinn Europe/Vienna Europe/Vilnius Europe/Warsaw Europe/Zagreb "
    "Europe/Zurich Africa/Accra Africa/Algiers Africa/Cairo Africa/Casablanca Africa/Johannesburg "
    "Africa/Khartoum Africa/Lagos Africa/Nairobi Africa/Tripoli Africa/Tunis Asia/Baghdad "
    "Asia/Bangkok Asia/Beirut Asia/Damascus Asia/Dubai Asia/Hong_Kong Asia/Jakarta Asia/Jerusalem "
    "Asia/Kabul Asia/Karachi Asia/Manila Asia/Riyadh Asia/Seoul Asia/Shanghai Asia/Taipei "
    "Asia/Tashkent Asia/Tbilisi Asia/Tehran Asia/Tokyo Asia/Yerevan America/Caracas "
    "America/Chicago America/Denver America/Lima America/Los_Angeles America/Mexico_City "
    "America/New_York America/Toronto America/Vancouver Australia/Melbourne Australia/Perth "
    "Australia/Sydney Pacific/Auckland"
)
_CURRENCIES = "AUD BRL CAD CHF CZK DKK GBP INR JPY MXN NOK PLN RUB SEK TRY UAH USD"
_SCRIPTS = "Arab Armn Cyrl Geor Grek Hebr Kore Latn Mong Tibt"


def _pairs(render: Callable[[Any, str], str], values: Iterable[Any]) -> tuple[Pair, ...]:
    """Each value as `render(value, locale)` gives it in both languages."""
    return tuple(
        (
            render(value, "en").translate(_PLAIN_SPACES),
            render(value, "de").translate(_PLAIN_SPACES),
        )
        for value in values
    )


def _names(table: str, keys: str) -> tuple[Pair, ...]:
    """CLDR's display names: `table` is an attribute of babel's Locale."""
    return _pairs(lambda key, locale: str(getattr(Locale.parse(locale), table)[key]), keys.split())


def _dated(values: Iterable[datetime.date], **patterns: str) -> tuple[Pair, ...]:
    """Dates in CLDR's pattern letters, one pattern per language."""
    return _pairs(lambda date, locale: dates.format_date(date, patterns[locale], locale), values)


def _timed(hours: Iterable[int], minutes: Sequence[int], **patterns: str) -> tuple[Pair, ...]:
    """Times of day in CLDR's pattern letters, one pattern per language."""
    return _pairs(
        lambda time, locale: dates.format_time(time, patterns[locale], locale=locale),
        [datetime.time(hour, minute) for hour in hours for minute in minutes],
    )


def _measured(
    unit: str, values: Iterable[float], length: Literal["short", "long"] = "long"
) -> tuple[Pair, ...]:
    """Numbers with a CLDR unit, whose name is in the nominative or accusative."""
    return _pairs(
        lambda value, locale: units.format_unit(value, unit, length, locale=locale), values
    )


def _relative(unit: str, values: Iterable[int], sign: int) -> tuple[Pair, ...]:
    """Times from now: "in 3 days" (sign 1) or "3 days ago" (sign -1)."""
    seconds = dict(dates.TIMEDELTA_UNITS)[unit]
    return _pairs(
        lambda value, locale: dates.format_timedelta(
            datetime.timedelta(seconds=sign * value * seconds),
            granularity=cast(Any, unit),
            threshold=1e9,  # stay in this unit however large the number
            add_direction=True,
            locale=locale,
        ),
        values,
    )


def _listed(
    values: Sequence[Pair], style: Literal["standard", "or"], in_order: bool = False
) -> tuple[Pair, ...]:
    """Lists of two or three values. If there are too many lists, some of them."""
    rng = random.Random(style)
    drawn = dict.fromkeys(
        tuple(rng.sample(range(len(values)), 2 + draw % 2)) for draw in range(4000)
    )
    chosen = dict.fromkeys(tuple(sorted(indices)) if in_order else indices for indices in drawn)
    return tuple(
        (
            lists.format_list([values[i][0] for i in indices], style, "en"),
            lists.format_list([values[i][1] for i in indices], style, "de"),
        )
        for indices in chosen
    )


def _numbered(values: Iterable[float]) -> tuple[Pair, ...]:
    return _pairs(lambda value, locale: numbers.format_decimal(value, locale=locale), values)


def _percentages(values: Iterable[float]) -> tuple[Pair, ...]:
    patterns = {"en": "0.#%", "de": "0.#\u00a0%"}  # from the CLDR, with an optional decimal
    return _pairs(
        lambda value, locale: numbers.format_percent(value / 100, patterns[locale], locale), values
    )


def _priced(currencies: str, values: Iterable[float]) -> tuple[Pair, ...]:
    """Amounts of money in CLDR's currency format."""
    return _pairs(
        lambda money, locale: numbers.format_currency(money[0], money[1], locale=locale),
        itertools.product(values, currencies.split()),
    )


def _rounded(currencies: str, values: Iterable[int]) -> tuple[Pair, ...]:
    """Amounts of money in CLDR's currency format without decimals."""
    patterns = {"en": "¤#,##0", "de": "#,##0\u00a0¤"}
    return _pairs(
        lambda money, locale: numbers.format_currency(
            money[0], money[1], patterns[locale], locale, currency_digits=False
        ),
        itertools.product(values, currencies.split()),
    )


def _named_money(currencies: str, values: Iterable[int]) -> tuple[Pair, ...]:
    """Money in words, for currencies whose German name has this form inside a sentence."""

    def render(money: tuple[int, str], locale: str) -> str:
        value, currency = money
        return f"{value} {numbers.get_currency_name(currency, value, locale)}"

    return _pairs(render, itertools.product(values, currencies.split()))


def _time_slots() -> dict[str, tuple[Pair, ...]]:
    leap_year = [datetime.date(2024, 1, 1) + datetime.timedelta(days) for days in range(366)]
    # Every eleventh day of four decades: all months and days, at a moderate number.
    decades = [datetime.date(1982, 1, 1) + datetime.timedelta(11 * i) for i in range(1328)]
    week, months = leap_year[:7], [datetime.date(2024, month, 1) for month in range(1, 13)]
    weekday_pairs = _dated(week, en="EEEE", de="EEEE")
    month_pairs = _dated(months, en="LLLL", de="LLLL")
    # "morning1" and so on are the dayparts that the CLDR distinguishes in both languages.
    dayparts = (("morning1",) * 2, ("afternoon1", "afternoon2"), ("evening1",) * 2, ("night1",) * 2)
    periods = [Locale.parse(locale).day_periods["format"]["wide"] for locale in LOCALES]
    hours = {"minute": range(2, 91), "hour": range(2, 25)}
    years = {"day": range(2, 32), "week": range(2, 21), "month": range(2, 25), "year": range(2, 31)}
    found: dict[str, tuple[Pair, ...]] = {
        "weekday": weekday_pairs,
        "weekdays": _listed(weekday_pairs, "standard", in_order=True),
        "month": month_pairs,
        "months": _listed(month_pairs, "standard", in_order=True),
        "date": _dated(leap_year, en="MMMM d", de="d. MMMM"),
        "full_date": _dated(decades, en="MMMM d, y", de="d. MMMM y"),
        "year": _dated([datetime.date(year, 1, 1) for year in range(1925, 2023)], en="y", de="y"),
        "quarter": _dated(months[::3], en="QQQQ", de="QQQQ"),
        "time": _timed(range(6, 24), range(0, 60, 10), en="h:mm a", de="HH:mm"),
        "hour": _timed(range(6, 24), [0], en="h a", de="H 'Uhr'"),
        "daypart": tuple((periods[0][en], periods[1][de]) for en, de in dayparts),
    }
    for kind, counts in (("hours", hours), ("years", years)):
        lengths = [_measured(f"duration-{unit}", values) for unit, values in counts.items()]
        future = [_relative(unit, values, 1) for unit, values in counts.items()]
        past = [_relative(unit, values, -1) for unit, values in counts.items()]
        found[kind] = sum(lengths, ())
        found[f"in_{kind}"] = sum(future, ())
        found[f"{kind}_ago"] = sum(past, ())
        # CLDR's units are nominative ("3 Tage"); its relative times hold the dative ("3 Tagen").
        found[f"{kind}_dative"] = tuple(
            (english.removeprefix("in "), german.removeprefix("in "))
            for english, german in found[f"in_{kind}"]
        )
    found["hours_and_minutes"] = tuple(
        (
            lists.format_list([hour[0], minute[0]], locale="en"),
            lists.format_list([hour[1], minute[1]], locale="de"),
        )
        for hour in _measured("duration-hour", range(2, 13))
        for minute in _measured("duration-minute", range(5, 60, 5))
    )
    return found


def _world_slots() -> dict[str, tuple[Pair, ...]]:
    country, language = _names("territories", _COUNTRIES), _names("languages", _LANGUAGES)
    city = _pairs(
        lambda zone, locale: dates.get_timezone_location(zone, locale, return_city=True),
        _CITIES.split(),
    )
    return {
        "country": country,
        "countries": _listed(country, "standard"),
        "countries_or": _listed(country, "or"),
        "language": language,
        "languages": _listed(language, "standard"),
        "languages_or": _listed(language, "or"),
        "city": city,
        "cities": _listed(city, "standard"),
        "cities_or": _listed(city, "or"),
        "currency": _names("currencies", _CURRENCIES),
        "script": _names("scripts", _SCRIPTS),
    }


def _measure_slots() -> dict[str, tuple[Pair, ...]]:
    cents = [euros + cent / 100 for euros in range(1, 61) for cent in (20, 50, 80, 99)]
    round_amounts = [*range(10, 100, 10), *range(100, 1000, 50), *range(1000, 10000, 500)]
    halves = [value + 0.5 for value in range(1, 10)]
    tens = range(50, 1000, 50)
    return {
        "number": _numbered(range(2, 100)),
        "thousands": _numbered([*range(1000, 10000, 100), *range(10000, 100000, 5000)]),
        "decimal": _numbered(
            [i / 10 for i in range(1, 100) if i % 10] + [i + 0.5 for i in range(10, 30)]
        ),
        "percent": _percentages(sorted([*range(2, 100), *halves])),
        "price": _priced("EUR USD GBP", cents),
        "amount": _rounded("EUR USD GBP", round_amounts),
        "money": _named_money("EUR USD CHF", range(2, 101)),
        "mass": _measured("mass-kilogram", [*range(2, 61), *halves])
        + _measured("mass-gram", tens)
        + _measured("mass-pound", range(2, 31)),
        "distance": _measured("length-kilometer", [*range(2, 101), *halves])
        + _measured("length-mile", range(2, 61)),
        "altitude": _measured("length-meter", [*range(300, 1000, 50), *range(1000, 8900, 100)]),
        "length": _measured("length-centimeter", range(20, 100))
        + _measured("length-meter", [*range(2, 31), *halves]),
        "volume": _measured("volume-liter", [*range(2, 51), *halves])
        + _measured("volume-milliliter", tens)
        + _measured("volume-gallon", range(2, 21)),
        "spoons": _measured("volume-tablespoon", range(2, 10))
        + _measured("volume-teaspoon", range(2, 10))
        + _measured("volume-cup", range(2, 7)),
        "area": _measured("area-square-meter", range(20, 151)),
        "land": _measured("area-hectare", range(2, 100))
        + _measured("area-square-kilometer", range(2, 61)),
        "speed": _measured("speed-kilometer-per-hour", range(5, 255, 5))
        + _measured("speed-mile-per-hour", range(5, 155, 5))
        + _measured("speed-meter-per-second", range(2, 31)),
        "temperature": _measured("temperature-celsius", range(2, 46))
        + _measured("temperature-fahrenheit", range(30, 111)),
        "degrees": _measured("temperature-celsius", range(2, 46), "short")
        + _measured("temperature-fahrenheit", range(30, 111), "short"),
        "oven": _measured("temperature-celsius", range(120, 255, 5), "short"),
        "data": _measured("digital-megabyte", range(10, 1000, 10))
        + _measured("digital-gigabyte", range(2, 65)),
        "calories": _measured("energy-kilocalorie", range(50, 1000, 10)),
        "energy": _measured("energy-kilowatt-hour", range(2, 100)),
        "watts": _measured("power-watt", [*range(2, 100), *range(100, 1000, 50)]),
        "horsepower": _measured("power-horsepower", range(60, 310, 2), "short"),
    }


@functools.cache
def slots() -> dict[str, tuple[Pair, ...]]:
    """All slot kinds with their values (English, German)."""
    return {**_time_slots(), **_world_slots(), **_measure_slots()}
