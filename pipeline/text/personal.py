"""Personal data: addresses and numbers that are masked.

In:  cleaned documents.
Out: the same with each mail address, public IP address, telephone number and card number replaced
     by one that is reserved for examples; how many each document had.

Mail and IP addresses are those that FineWeb masks (Penedo et al. 2024, arXiv 2406.17557, 3.7);
private and reserved IP addresses stay. A telephone number has a country code after `+`, or is
written like `(212) 555-0123`. A card number has 13 to 19 digits, in groups or not, begins like
those of a card network, and its last digit is right (Luhn, ISO/IEC 7812-1).
"""

import ipaddress
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from cloze.artifacts.arrays import Int64s, offsets_of
from cloze.pipeline.config.rules import RulesConfig
from cloze.pipeline.readers.documents import DocumentBlock
from cloze.pipeline.text.cleaning import LINE_FEED


class Kind(NamedTuple):
    """A kind of personal data."""

    pattern: re.Pattern[bytes]
    is_one: Callable[[bytes], bool]
    mask: Callable[[bytes], bytes]
    needs: tuple[bytes, int]
    """Bytes of which a line has so many if it has one."""


def passes_luhn(number: bytes) -> bool:
    """Whether the last digit of a card number is right; what is not a digit does not count."""
    digits = [byte - ord("0") for byte in number if chr(byte).isdigit()]
    # From the right, every second digit is doubled; where that has two digits, their sum counts.
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return (sum(doubled) + sum(digits[::-2])) % 10 == 0


def _is_public(address: bytes) -> bool:
    try:
        return ipaddress.ip_address(address.decode()).is_global
    except ValueError:
        return False


def _has_digits(least: int, most: int) -> Callable[[bytes], bool]:
    return lambda number: least <= sum(48 <= byte <= 57 for byte in number) <= most


DIGITS = b"0123456789"

KINDS: dict[str, Kind] = {
    "mail": Kind(
        re.compile(
            # No pattern may begin within a word: from each of its characters, a long run without an
            # @ would be searched to its end again, in quadratic time.
            rb"(?<![\w.+-])[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
            rb"@(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z0-9]"
            rb"(?:[A-Za-z0-9-]*[A-Za-z0-9])?"
        ),
        lambda _: True,
        lambda _: b"mail@example.com",  # RFC 2606
        (b"@", 1),
    ),
    "card": Kind(
        re.compile(rb"(?<![\w.-])[2-6]\d{3}(?:[ -]?\d){9,15}(?![\w-])"),
        lambda number: _has_digits(13, 19)(number) and passes_luhn(number),
        lambda _: b"0000 0000 0000 0000",
        (DIGITS, 13),
    ),
    "phone": Kind(
        re.compile(
            rb"(?<![\w+.-])(?:\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d(?:[ ./-]?\d){5,13}"
            rb"|\(\d{3}\) ?\d{3}[ .-]\d{4}|\d{3}([.-])\d{3}\1\d{4})(?![\w-])"
        ),
        _has_digits(8, 15),
        lambda _: b"555-0100",  # the numbers of fiction in North America
        (DIGITS, 8),
    ),
    "ip": Kind(
        re.compile(
            rb"(?<![\w.:])(?:(?:\d{1,3}\.){3}\d{1,3}(?![\w:])(?!\.\d)"
            rb"|(?:[0-9A-Fa-f]{1,4}:){2,7}(?:(?::[0-9A-Fa-f]{1,4}){1,5}|[0-9A-Fa-f]{1,4}|:)(?![\w:]))"
        ),
        _is_public,
        # RFC 5737, RFC 3849
        lambda address: b"2001:db8::1" if b":" in address else b"192.0.2.1",
        (DIGITS + b":", 4),
    ),
}
"""In the order in which they are looked for: what is one kind is no other."""

# D documents


def mask_personal(
    block: DocumentBlock, cleaning: RulesConfig
) -> tuple[DocumentBlock, dict[str, Int64s]]:
    """The documents with what `mask` names masked; and how many of each kind each had, (D,)."""
    raw, ends = block.text.tobytes(), block.ends
    masked: dict[str, Int64s] = {}
    for name, kind in KINDS.items():
        if name not in cleaning.mask:
            continue
        found = [
            (match.start(), match.end())
            for match in _matches(raw, kind)
            if kind.is_one(match.group())
        ]
        starts, stops = np.array(found, dtype=np.int64).reshape(-1, 2).T
        # How many matches lie before each document's end: the differences are its own, and the sum
        # of what these have grown by moves the end.
        before_D = np.searchsorted(stops, ends, side="right")
        masked[name] = np.diff(before_D, prepend=0)
        masks = [kind.mask(raw[start:stop]) for start, stop in found]
        bounds = zip([0, *stops.tolist()], [*starts.tolist(), len(raw)], strict=True)
        kept = (raw[start:stop] for start, stop in bounds)
        grown = np.array([len(mask) for mask in masks], dtype=np.int64) - (stops - starts)
        # The next kind is looked for in the text as it now is, so what was masked is not found
        # again.
        raw = b"".join(part for pair in zip(kept, [*masks, b""], strict=True) for part in pair)
        ends = ends + offsets_of(grown)[before_D]
    if not any(counts.any() for counts in masked.values()):
        return block, masked
    return DocumentBlock(np.frombuffer(raw, dtype=np.uint8), ends, block.positions), masked


def _matches(raw: bytes, kind: Kind) -> Iterator[re.Match[bytes]]:
    """The matches in `raw`; only lines that can have one are searched."""
    text = np.frombuffer(raw, dtype=np.uint8)
    ends_L = np.flatnonzero(text == LINE_FEED) + 1
    wanted, least = kind.needs
    places = np.flatnonzero(np.isin(text, np.frombuffer(wanted, dtype=np.uint8)))
    counts_L = np.diff(np.searchsorted(places, ends_L), prepend=0)
    # Neighbouring lines are searched together.
    edges = np.flatnonzero(np.diff(counts_L >= least, prepend=False, append=False))
    starts_L = np.concatenate(([0], ends_L))
    for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield from kind.pattern.finditer(raw, int(starts_L[first]), int(starts_L[last]))
