# SPDX-License-Identifier: Apache-2.0
"""Read CSV line by line: a file's format follows from its header, and a record from its line alone.

The format of a CSV (its separator, decimal mark, encoding and line end) follows from the file's header, or from the
declaration behind the file's name, and never from a row. A guess that one row could change would affect all other rows.
The rules:

    separator     of , ; tab | the one that cuts the header into the most names, quotation marks and brackets being left
                  out; or what a first line such as "sep=;" says, as spreadsheets write it. A header that another one
                  cuts into more than half as many is refused
    decimal mark  a comma where the separator is a semicolon, else a point. Where it is a comma, "3,5" is 3.5, and
                  "3.5" still is, for each cell is read by itself; a cell with both, such as "1.234,5", is no number,
                  nor is "1.045" there, which may be a thousand
    encoding      UTF-8, or UTF-16 if the file begins with its mark; the others have none, so they have to be declared
    line's end    LF, with or without a CR before it; where the header ends in a CR alone, as old systems write, that
    skip          lines of titles before the header; none
    repeated      "number" calls two columns of one name NAME.1 and NAME.2, in their order; else neither can be read

A declaration is written behind the file's name, wherever a table may be named; the parts that it does not name
follow from the header:

    north.csv#encoding=cp1252
    north.csv#separator=tab,decimal=comma,encoding=latin-1,skip=2

The header is one line, and each line behind it a record by itself. A cell that begins with a quotation mark ends with
the next one that is not doubled. One that is still open at the line's end is closed there, so whatever stands in a
line, no other line's record changes. A quoted cell may continue over further lines only if a plan says how many line
breaks a cell may hold (`privacy.line_breaks`). Then the lines together must be one well-formed record, and no other of
them may begin such a cell by itself. Else each line is a record by itself.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hedgerow.data.declarations import SEPARATORS, Declared, list_characters

MAX_BYTES = 16 * 2**20
"""Longest line or header in bytes. A longer one does not fit, so every block of lines stays bounded in any encoding."""
_FIRST_LINE = re.compile(r'"?sep=([,;|\t])"?(?:\r\n?|\n)', re.IGNORECASE)
_BLANK_LINES = re.compile(r"(?:[^\S\r\n]*(?:\r\n?|\n))*")
_ENCLOSED = re.compile(r'"[^"]*"?|\([^()]*\)|\[[^][]*\]')
_NUMBER, _BETWEEN, _MAX_WORDS = re.compile(r"[-+]?\d*[.,]?\d+"), re.compile(r"[\s,;|]+"), 8
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class TableHeader:
    """A file's header and how the file is written.

    Attributes:
        names: of the columns, without spaces around them; none in a file without a header.
        n_lines: lines up to the header's end; empty ones may come before it.
        separator: one character.
        rival: another separator that may be meant instead; "" for none.
        has_decimal_commas: whether "3,5" is a number.
        encoding: Python's name of it.
        ends_with_cr: whether a CR alone ends a line as well.
        is_open: whether its line ends within a quoted name. The name cannot continue: any row could hold the closing
            mark.
        is_whole: whether a character after its end was read, so that it is complete.
    """

    names: tuple[str, ...]
    n_lines: int
    separator: str
    rival: str
    has_decimal_commas: bool
    encoding: str
    ends_with_cr: bool
    is_open: bool
    is_whole: bool

    @property
    def is_record(self) -> bool:
        """Whether the header is most likely a record.

        It is if most of its names are numbers that are no codes or years, or if it is one uncut line of words.
        """
        numbers = [name for name in self.names if _NUMBER.fullmatch(name)]
        are_codes = len({*numbers}) == len(numbers) and all(map(str.isdigit, numbers))
        is_uncut = len(self.names) == 1 and len(_BETWEEN.findall(self.names[0])) > _MAX_WORDS
        return is_uncut or (2 * len(numbers) > len(self.names) and not are_codes)


def read_header(first: bytes, declaration: Declared) -> TableHeader:
    """Read the header from the first bytes of a file; see the head of this module for the rules.

    Bytes that the encoding does not know are kept as lone surrogates; they matter only in names.
    """
    marked = "utf-8" if first.startswith(codecs.BOM_UTF8) else "utf-16" if first.startswith(_UTF16_MARKS) else None
    encoding = marked or declaration.encoding or "utf-8"
    # The first bytes of a UTF-16 file may end in the middle of a character.
    errors = "ignore" if encoding == "utf-16" else "surrogateescape"
    text = first.decode("utf-8-sig" if encoding == "utf-8" else encoding, errors=errors)
    said = _FIRST_LINE.match(text)
    titles = re.compile(rf"(?:[^\r\n]*(?:\r\n?|\n)){{{declaration.n_skipped}}}").match(text, said.end() if said else 0)
    start = _BLANK_LINES.match(text, titles.end() if titles else len(text)).end()  # type: ignore[union-attr]
    # Use the line end of the header itself: lines before it may come from another program.
    end = re.compile("\r\n?|\n").search(text, start)
    ends_with_cr = end is not None and end[0] == "\r"
    text = text.replace("\r", "\n") if ends_with_cr else text
    line = text[start:].partition("\n")[0]
    separator, rival = declaration.separator or (said[1] if said else ""), ""
    if not separator:
        bare = _ENCLOSED.sub("", line)
        best, second, *_ = sorted(SEPARATORS.values(), key=bare.count, reverse=True)
        separator, rival = best, second if 2 * bare.count(second) > bare.count(best) else ""
    cells, is_open = LineCutter(separator).cells(line.removesuffix("\r").encode(errors="surrogateescape"))
    names = tuple(cell.decode(errors="surrogateescape").strip() for cell in cells) if line else ()
    if declaration.numbers_repeated:
        names = tuple(
            f"{name}.{names[:at].count(name) + 1}" if name and names.count(name) > 1 else name
            for at, name in enumerate(names)
        )
    n_lines = text.count("\n", 0, start) + 1
    has_commas = separator == ";" if declaration.has_decimal_commas is None else declaration.has_decimal_commas
    is_whole = start + len(line) + 1 < len(text)
    return TableHeader(names, n_lines, separator, rival, has_commas, encoding, ends_with_cr, is_open, is_whole)


@dataclass
class LineCounts:
    """How many lines of a file were read, by kind: exact counts of private rows, for their owner.

    Attributes:
        n_lines: lines after the header.
        n_blank: of these, empty lines, which are no records.
        n_joined: of these, lines that continue a cell of the line before.
        n_unclosed: lines that ended within a quoted cell.
        n_fields: number of fields -> rows with that number, if it is not the header's.
    """

    n_lines: int = 0
    n_blank: int = 0
    n_joined: int = 0
    n_unclosed: int = 0
    n_fields: dict[int, int] = field(default_factory=dict)


class LineCutter:
    """Cuts lines into cells, and rewrites a block so that every CSV reader sees one record per line.

    Args:
        separator: one character.
        line_breaks: line breaks that a quoted cell may hold.
        counts: the counts to add to.
    """

    def __init__(
        self, separator: str, n_fields: int = 1, line_breaks: int = 0, counts: LineCounts | None = None
    ) -> None:
        sep, quoted = re.escape(separator.encode()), rb'"[^"\n]*+(?:""[^"\n]*+)*+'
        cell, any_cell = rb'(?:%b"|[^"%b\r\n]*+)' % (quoted, sep), rb'(?:"[^"]*+(?:""[^"]*+)*+"|[^"%b\r\n]*+)' % sep
        self.counts = counts or LineCounts()
        self._separator, self._n_fields, self._line_breaks = separator.encode(), n_fields, line_breaks
        self._cell = re.compile(rb'(?:"([^"]*+(?:""[^"]*+)*+)("?))?([^%b]*+)(%b?)' % (sep, sep))
        self._may_be_before, self._may_be_after = np.zeros((2, 256), dtype=np.bool_)
        self._may_be_before[[_LF, _QUOTE, ord(separator)]] = True
        self._may_be_after[[_LF, _CR, _QUOTE, ord(separator)]] = True
        # Exclude a mark that more likely ends a cell of the line before.
        self._opens = re.compile(rb'(?!"(?:"")*+(?:%b|\r?\n))(?:%b%b)*+%b\n' % (sep, cell, sep, quoted))
        self._is_record = re.compile(rb"%b(?:%b%b)*+\r?\n" % (any_cell, sep, any_cell))
        # This line has a wrong number of fields for a record, both alone and inside a continued cell.
        self.unfit = b'"x"y' + (self._separator if n_fields == 1 else b"")

    def cells(self, line: bytes) -> tuple[list[bytes], bool]:
        """Return the cells of a line without its end, and whether the line ends within a quoted cell."""
        cells, at = [], 0
        while True:
            found = self._cell.match(line, at)
            quoted, close, rest, separator = found.groups()  # type: ignore[union-attr]
            cells.append(rest if quoted is None else quoted.replace(b'""', b'"') + rest)
            if not separator:
                return cells, close == b""
            at = found.end()  # type: ignore[union-attr]

    def neutral(self, block: bytes, is_utf8: bool, is_last: bool) -> tuple[bytes, bytes]:
        """Rewrite a block so that all CSV readers cut it alike; return it and the lines that must wait.

        Lines wait if the lines after them decide how they are read.

        Args:
            is_utf8: whether the block is known to be UTF-8; else lines that are not are rewritten.
            is_last: whether no more lines come.
        """
        data = np.frombuffer(block, dtype=np.uint8)
        ends = np.flatnonzero(data == _LF)
        self.counts.n_lines += len(ends)
        odd = [self._find_odd_quotes(data, ends) if b'"' in block else ends[:0], *_find_unusual(block, ends, is_utf8)]
        parts, done = list[bytes](), 0
        for number in np.unique(np.concatenate(odd)).tolist():
            start = int(ends[number - 1]) + 1 if number else 0
            if start < done:
                continue
            end = self._find_end(block, start, is_last)
            if not end:
                self.counts.n_lines -= len(ends) - number
                return b"".join([*parts, block[done:start]]), block[start:]
            parts += [block[done:start], self._rewrite(block[start : end - 1].removesuffix(b"\r"))]
            done = end
        return (b"".join([*parts, block[done:]]) if parts else block), b""

    def _find_odd_quotes(self, data: NDArray[np.uint8], ends: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the numbers of lines with an odd quotation mark.

        Such a mark neither begins nor ends a cell, and is not doubled.
        """
        marks = np.flatnonzero(data == _QUOTE)
        n_marks = np.diff(np.searchsorted(marks, ends), prepend=0)
        is_uneven = n_marks % 2 == 1
        if is_uneven.any():
            marks = marks[np.repeat(~is_uneven, n_marks)]
        # A doubled mark closes and opens again. For a mark at index 0, index -1 is the block's last byte: a line end,
        # which is what stands before the block.
        opens, closes = marks[::2], marks[1::2]
        fits = self._may_be_before[data[opens - 1]] & self._may_be_after[data[closes + 1]]
        return np.append(np.flatnonzero(is_uneven), np.searchsorted(ends, opens[~fits]))

    def _find_end(self, block: bytes, start: int, is_last: bool) -> int:
        """Return where the record of an odd line ends; 0 if that depends on lines still to come."""
        own = end = block.find(b"\n", start) + 1
        if not self._line_breaks or not self._opens.fullmatch(block, start, own):
            return own
        for _ in range(self._line_breaks):
            if end == len(block):
                return own if is_last or end - start > MAX_BYTES else 0
            after = block.find(b"\n", end) + 1
            if after - start > MAX_BYTES or self._opens.fullmatch(block, end, after):
                return own
            if self._is_record.fullmatch(block, start, after):
                if len(self.cells(block[start : after - 1])[0]) != self._n_fields:
                    return own
                self.counts.n_joined += block.count(b"\n", own, after)
                return after
            end = after
        return own

    def _rewrite(self, line: bytes) -> bytes:
        cells, is_open = self.cells(line)
        self.counts.n_unclosed += is_open
        if len(cells) != self._n_fields:
            return self._separator.join([b"x"] * len(cells)) + b"\n"
        return self._separator.join(b'"%b"' % cell.replace(b'"', b'""') for cell in cells) + b"\n"


_LF, _CR, _QUOTE = b'\n\r"'
_LONE_CR = re.compile(rb"\r(?!\n)")


def _find_unusual(block: bytes, ends: NDArray[np.intp], is_utf8: bool) -> Iterator[NDArray[np.intp]]:
    """Yield the numbers of lines with a lone CR, then of lines that are not UTF-8.

    CSV readers end a line at a lone CR, and cannot name the line of a wrong byte.
    """

    def lines_at(next_at: Callable[[int], int]) -> NDArray[np.intp]:
        """Return the numbers of the lines with a match; `next_at` finds the next match from a position, or -1."""
        found, at = list[int](), next_at(0)
        while at >= 0:
            found.append(int(np.searchsorted(ends, at)))
            at = next_at(int(ends[found[-1]]) + 1)
        return np.array(found, dtype=np.intp)

    def lone_cr(start: int) -> int:
        found = _LONE_CR.search(block, start)
        return -1 if found is None else found.start()

    def no_utf8(start: int) -> int:
        try:
            codecs.utf_8_decode(memoryview(block)[start:], "strict", True)
        except UnicodeDecodeError as fault:
            return start + fault.start
        return -1

    if b"\r" in block:
        yield lines_at(lone_cr)
    if not is_utf8 and not block.isascii():
        yield lines_at(no_utf8)


def text_blocks(blocks: Iterable[bytes], header: TableHeader) -> Iterator[bytes]:
    """Decode a file's bytes to UTF-8 with lines ending in LF.

    Bytes that are no character of UTF-16 become the replacement character. Bytes that are not UTF-8 in a UTF-8 file
    stay as they are: each cell is decoded by itself later.
    """
    utf16, is_first = codecs.getincrementaldecoder("utf-16")(errors="replace"), True
    for block in blocks:
        if header.encoding == "utf-16":
            block = utf16.decode(block).encode(errors="replace")
        elif header.encoding != "utf-8":
            block = codecs.charmap_decode(block, "strict", list_characters(header.encoding))[0].encode()
        elif is_first:
            block = block.removeprefix(codecs.BOM_UTF8)
        is_first = False
        yield block.replace(b"\r", b"\n") if header.ends_with_cr else block
    yield utf16.decode(b"", True).encode(errors="replace")


def whole_lines(blocks: Iterable[bytes], unfit: bytes) -> Iterator[bytes]:
    """Yield blocks of whole lines, each with its end.

    `unfit` replaces a line of more than `MAX_BYTES`.
    """
    rest, is_skipped = b"", False
    for block in blocks:
        if is_skipped:
            end = block.find(b"\n")
            if end < 0:
                continue
            rest, block, is_skipped = unfit, block[end:], False
        text = rest + block
        first, end = text.find(b"\n"), text.rfind(b"\n") + 1
        if first > MAX_BYTES:
            text, end = unfit + text[first:], end - first + len(unfit)
        is_skipped = first < 0 and len(text) > MAX_BYTES
        if end:
            yield text[:end]
        rest = b"" if is_skipped else text[end:]
    if rest or is_skipped:
        yield (unfit if is_skipped else rest) + b"\n"


def without_first(blocks: Iterable[bytes], n_lines: int) -> Iterator[bytes]:
    """Yield blocks of whole lines without the first `n_lines` lines."""
    for block in blocks:
        at = 0
        while n_lines and at < len(block):
            at, n_lines = block.find(b"\n", at) + 1, n_lines - 1
        if at < len(block):
            yield block[at:]
