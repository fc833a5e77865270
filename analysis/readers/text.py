"""Text files as they come: gzip told by its magic bytes, bounded line length, UTF-8, columns found by a normal form
of their name."""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import math
import re
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import polars as pl

from analysis.errors import BadDump
from analysis.words import mapped

BLOCK = 1 << 20
MAX_COLUMNS = 2_000
MAX_PLAIN_BYTES = 16 << 30
MAX_RATIO = 200
"""What one gzip file may unpack to, in bytes and in sizes of its own; profiler tables pack 10 to 30 times."""
FREE_BYTES = 64 << 20
"""Up to here no ratio is asked."""
MAX_JSON_BYTES = 256 << 20
MAX_LEVELS = 200
ODD_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
HALF_OR_NUL = re.compile("[\0\ud800-\udfff]")
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
"""What spreadsheets put between cells in some languages."""
UNIT_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


@contextmanager
def plain(path: Path, name: str) -> Iterator[Path]:
    """The file itself, or an unpacked copy for the time of the block when it begins like gzip. `name` is for errors."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
    except OSError as error:
        raise BadDump(name, f"cannot be read: {error.strerror or error}") from error
    if not packed:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="stepscope-") as folder:
        unpacked = Path(folder) / "plain"
        with unpacked.open("wb") as target:
            _unpack(path, target, name)
        yield unpacked


def _unpack(path: Path, target: IO[bytes], name: str) -> None:
    written = 0
    limit = min(MAX_PLAIN_BYTES, max(FREE_BYTES, path.stat().st_size * MAX_RATIO))
    try:
        with gzip.open(path, "rb") as source:
            while block := source.read(BLOCK):
                written += len(block)
                if written > limit:
                    raise BadDump(name, f"unpacks past the limit of {limit >> 20} MiB: refused as a bomb")
                target.write(block)
    except (OSError, EOFError, zlib.error) as error:
        raise BadDump(name, "gzip data is cut or damaged") from error


@dataclass(frozen=True)
class Scan:
    """What one pass over the bytes says: `lines` counts line ends, `open_quote` a quote that never closes."""

    lines: int
    ends_in_line: bool


def scan_text(path: Path, name: str) -> Scan:
    """Refuse, in bounded memory, what no reader could use: empty, binary, not UTF-8, endless lines, quotes that never
    close."""
    lines = quotes = size = run = 0
    last = b"\n"
    decoder = codecs.getincrementaldecoder("utf-8")()
    clean = True
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            size += len(block)
            here = block.count(b"\n")
            run = 0 if here else run + len(block)
            if run > BLOCK:
                raise BadDump(name, f"line {lines + 1} is longer than {BLOCK >> 20} MiB")
            quotes += block.count(b'"')
            if not (clean and block.isascii()):
                clean = _decode(decoder, block, name, lines)
            if b"\0" in block:
                raise BadDump(name, f"holds NUL bytes, first near line {lines + 1}: not a text file, or damaged")
            lines += here
            last = block[-1:]
    if not size:
        raise BadDump(name, "is empty (zero bytes)")
    if not clean:
        _decode(decoder, b"", name, lines, final=True)
    if quotes % 2:
        raise BadDump(name, f"line {_odd_quotes(path)}: a quote is never closed")
    return Scan(lines, last == b"\n")


def _decode(decoder: codecs.IncrementalDecoder, block: bytes, name: str, lines: int, final: bool = False) -> bool:
    try:
        decoder.decode(block, final)
    except UnicodeDecodeError as error:
        line = lines + 1 + block[: error.start].count(b"\n")
        raise BadDump(name, f"line {line}: is not UTF-8 text") from error
    return False


def _odd_quotes(path: Path) -> int:
    """First line at which an odd number of quotes stands; exact where cells hold no line ends."""
    with path.open("rb") as file:
        return next((number for number, line in enumerate(file, 1) if line.count(b'"') % 2), 1)


def normal_name(title: str) -> str:
    """`Start Time(us)`, `start_time` and `Start Time (us)` are one column."""
    return re.sub(r"[\s_\-]", "", re.sub(r"\(.*?\)\s*$", "", title.strip())).lower()


def unit_of(title: str) -> str | None:
    """`us` of `Start Time(us)`."""
    match = re.search(r"\(\s*(\w+)\s*\)\s*$", title)
    return match.group(1).lower() if match else None


def read_header(path: Path, name: str) -> list[str]:
    """Titles of the first line, as written. More than `MAX_COLUMNS` of them is no table of a profiler."""
    with path.open("rb") as file:
        line = file.readline(BLOCK).decode("utf-8-sig", errors="replace")
    if "\r" in line.rstrip("\r\n"):
        raise BadDump(
            name, "line 1: lines end in a carriage return alone, which no profiler writes; save them with \\n"
        )
    try:
        titles = next(csv.reader([line.rstrip("\r\n")]), [])
    except csv.Error as error:
        raise BadDump(name, f"line 1: is no header ({error})") from error
    if len(titles) > MAX_COLUMNS:
        raise BadDump(name, f"has {len(titles)} columns; {MAX_COLUMNS} at most are expected")
    if len(titles) == 1 and (mark := max(SEPARATORS, key=line.count)) and line.count(mark) > 1:
        what = SEPARATORS[mark]
        raise BadDump(
            name, f"line 1: cells are separated by {what}, not commas: export the file again, or as plain CSV"
        )
    return [title.strip() for title in titles]


def find_titles(titles: Sequence[str], wanted: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Our column name -> position of the first title that is one of its normal names."""
    positions: dict[str, int] = {}
    normal = [normal_name(title) for title in titles]
    for column, names in wanted.items():
        found = next((normal.index(each) for each in names if each in normal), None)
        if found is not None:
            positions[column] = found
    return positions


def slices(path: Path, name: str, size: int = 8 * BLOCK) -> Iterator[bytes]:
    """The file after its first line, in pieces of about `size` bytes that end at a line end outside quotes.

    A file mapped whole into memory would count as memory of ours; in slices the peak does not grow with the file.
    Raises BadDump for what `scan_text` refuses, before the piece that holds it.
    """
    with path.open("rb") as file:
        if not _is_sound(file.readline(BLOCK)):
            scan_text(path, name)
        while piece := file.read(size):
            piece += file.readline(3 * BLOCK)
            quotes, scanned = piece.count(b'"'), False
            while quotes % 2 and (line := file.readline(3 * BLOCK)):
                piece += line
                quotes += line.count(b'"')
                if len(piece) > 2 * size and not scanned:
                    scan_text(path, name)
                    scanned = True
            if quotes % 2 or not _is_sound(piece):
                scan_text(path, name)
            yield piece


def _is_sound(piece: bytes) -> bool:
    """Whether lines from `piece` are surely text; where not, `scan_text` knows better."""
    if b"\0" in piece or any(piece.find(b"\n", at, at + BLOCK) < 0 for at in range(0, len(piece) - BLOCK + 1, BLOCK)):
        return False
    if piece.isascii():
        return True
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True)
class Kinds:
    """Columns that are not taken as text: categories, which are few texts often repeated, and Float32 numbers."""

    words: Collection[str] = ()
    numbers: Collection[str] = ()


def _parse(piece: bytes, name: str, titles: Sequence[str], positions: Mapping[str, int], kinds: Kinds) -> pl.DataFrame:
    """The wanted columns of a piece under our names; nulls where a row is too short.

    `__odd`: whether the last cell is missing, or there is one more than the header has.
    """
    last = [column for column in kinds.numbers if positions[column] == len(titles) - 1]  # its nulls tell odd rows
    try:
        frame = _cells(piece, titles, positions, _as_words(kinds, last))
    except pl.exceptions.PolarsError as error:
        if len(kinds.numbers) == len(last):
            raise BadDump(name, f"is not a table that can be read ({first_line(error)})") from error
        last = [*kinds.numbers]  # some cell is no number
        frame = _parse(piece, name, titles, positions, _as_words(kinds, last))
    told = [mapped(frame[column], partial(evaluated, number)) for column in last]
    return frame.with_columns(told).with_columns(counter(pl.col(column)) for column in kinds.numbers)


def _as_words(kinds: Kinds, columns: Collection[str]) -> Kinds:
    return Kinds([*kinds.words, *columns], [column for column in kinds.numbers if column not in columns])


def _cells(piece: bytes, titles: Sequence[str], positions: Mapping[str, int], kinds: Kinds) -> pl.DataFrame:
    count = len(titles)
    schema: dict[str, type[pl.DataType]] = {f"c{index}": pl.String for index in range(count + 1)}
    schema |= {f"c{positions[word]}": pl.Categorical for word in kinds.words}
    schema |= {f"c{positions[each]}": pl.Float32 for each in kinds.numbers}
    chosen = sorted({*positions.values(), count - 1, count})
    frame = pl.read_csv(
        piece,
        has_header=False,
        schema=schema,
        columns=chosen,
        null_values={f"c{positions[each]}": "N/A" for each in kinds.numbers},
        truncate_ragged_lines=True,
        missing_columns="insert",
        extra_columns="ignore",
    )
    odd = pl.col(f"c{count - 1}").is_null() | pl.col(f"c{count}").is_not_null()
    return frame.select(*(pl.col(f"c{index}").alias(column) for column, index in positions.items()), odd.alias("__odd"))


def evaluated(read: Callable[[str], pl.Expr], values: pl.Series) -> pl.Series:
    """What the expression that `read` makes of a column gives for these values."""
    return values.to_frame("value").select(read("value")).to_series()


def read_columns(
    path: Path,
    name: str,
    wanted: Mapping[str, Sequence[str]],
    warnings: list[str],
    positions: Mapping[str, int] | None = None,
) -> pl.DataFrame:
    """Wanted columns as text, found by name unless `positions` are given; absent ones are null. Rows of odd length
    are warned of."""
    scan_text(path, name)
    titles = read_header(path, name)
    positions = positions if positions is not None else find_titles(titles, wanted)
    frame = collect(path, name, titles, positions, lambda rows: rows, warnings)
    missing = [pl.lit(None, pl.String).alias(column) for column in wanted if column not in positions]
    return frame.with_columns(missing).select(list(wanted))


Shape = Callable[[pl.LazyFrame], pl.LazyFrame]
MOST_COUNTED = 1e15
"""No counter of a profiler says more, and sums of a million such, weighted by time, stay within a Float32."""


def counter(value: pl.Expr) -> pl.Expr:
    """As Float32; null for what no counter says."""
    return pl.when(value.abs() <= MOST_COUNTED).then(value).cast(pl.Float32)


def collect(
    path: Path,
    name: str,
    titles: Sequence[str],
    positions: Mapping[str, int],
    shape: Shape,
    warnings: list[str],
    words: Collection[str] = (),
    numbers: Collection[str] = (),
) -> pl.DataFrame:
    """Run `shape` over the wanted columns, slice by slice. Those in `words` are categories: few texts, often repeated;
    those in `numbers` are Float32, null where no finite number stands.

    Rows longer than the header are cut, shorter ones filled with null; both are warned of by line.
    """
    parts = []
    suspicious = False
    kinds = Kinds(words, numbers)
    for piece in slices(path, name):
        if not piece.isspace():
            rows = _parse(piece, name, titles, positions, kinds)
            suspicious = suspicious or bool(rows["__odd"].any())
            parts.append(shape(rows.drop("__odd").lazy()).collect())
    if not parts:
        schema: dict[str, type[pl.DataType]] = dict.fromkeys(positions, pl.String)
        schema |= dict.fromkeys(words, pl.Categorical) | dict.fromkeys(numbers, pl.Float32)
        return shape(pl.LazyFrame(schema=schema)).collect()
    if suspicious:
        warnings.extend(ragged_rows(path, name, len(titles)))
    return pl.concat(parts)


def has_rows(path: Path) -> bool:
    """Whether anything but blanks stands after the first line."""
    with path.open("rb") as file:
        file.readline(BLOCK)
        return any(line.strip() for line in iter(lambda: file.readline(BLOCK), b""))


def ragged_rows(path: Path, name: str, columns: int) -> list[str]:
    """One warning for all rows that have more or fewer cells than the header, naming the first line."""
    count, first = 0, None
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        rows = csv.reader(file)
        try:
            for row in rows:
                if row and len(row) != columns:
                    count += 1
                    first = first or (rows.line_num, len(row))
        except csv.Error:
            return [f"{name}: line {rows.line_num}: cannot be split into cells"]
    if first is None:
        return []
    more = f", and {count - 1} more such rows" if count > 1 else ""
    return [f"{name}: line {first[0]}: {first[1]} cells where the header has {columns}{more}"]


def text(column: str) -> pl.Expr:
    """Cell without blanks and quotes; null where nothing or `N/A` stands."""
    bare = pl.col(column).str.strip_chars(' \t\r"')
    return pl.when(bare.is_in(["", "N/A", "NA", "nan", "NaN", "null", "None"])).then(None).otherwise(bare)


def nanoseconds(column: str, unit: str | None = "us", default: str = "us") -> pl.Expr:
    """Exact integer ns from decimal text: never through float64, which is a quarter of a microsecond off at today's
    dates."""
    factor = UNIT_NS.get(unit or default, UNIT_NS[default])
    bare = pl.col(column).str.strip_chars(' \t\r"')
    if factor == 1:
        return bare.str.extract(r"^([+-]?\d+)").cast(pl.Int64, strict=False)
    digits = len(str(factor)) - 1
    return (bare.cast(pl.Decimal(38, digits), strict=False) * factor).cast(pl.Int64, strict=False)


def integer(column: str) -> pl.Expr:
    """Whole number, also where a tool wrote `12.0`; null for anything else."""
    bare = pl.col(column).str.strip_chars(' \t\r"')
    return bare.str.strip_suffix(".0").cast(pl.Int64, strict=False)


def number(column: str) -> pl.Expr:
    """Finite float, else null."""
    value = pl.col(column).str.strip_chars(' \t\r"').cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value).otherwise(None)


def not_numbers(rows: pl.DataFrame, read: Mapping[str, tuple[str, pl.Expr]], name: str) -> list[str]:
    """One line for each column (to its title and what is made of it) where something is written that is no such number,
    with the first line where. `rows` are all lines after the header, as text."""
    found = []
    for column, (title, value) in read.items():
        bad = rows.select((text(column).is_not_null() & value.is_null()).arg_true()).to_series()
        if len(bad):
            told = f"{title} is no number, or out of range; in {len(bad)} rows it is left unknown"
            found.append(f"{name}: line {bad[0] + 2}: {told}")
    return found


def first_line(error: BaseException, file: Path | None = None) -> str:
    """What an error says, cut to its first line; without the place of `file`, which is this machine's business."""
    told = str(error).replace(f' in file "{file}"', "").replace(str(file), "the file") if file else str(error)
    return (told.strip().splitlines() or [type(error).__name__])[0][:200]


def read_json(path: Path, name: str, *, exact: bool = False, most: int = MAX_JSON_BYTES) -> Any:
    """A JSON document. `exact` keeps decimals as the text they are. Size is bounded by `most` bytes."""
    with plain(path, name) as file:
        size = file.stat().st_size
        if size == 0:
            raise BadDump(name, "is empty (zero bytes)")
        if size > most:
            raise BadDump(name, f"is {size >> 20} MiB; {most >> 20} MiB at most are read")
        data = file.read_bytes()
    try:
        decoded = data.decode("utf-8-sig")
        value = json.loads(decoded, parse_float=str) if exact else json.loads(decoded)
        return storable(value) if ODD_ESCAPE.search(decoded) else value
    except UnicodeDecodeError as error:
        raise BadDump(name, "is not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise BadDump(name, f"line {error.lineno}: is not valid JSON, or was cut ({error.msg})") from error
    except RecursionError as error:
        raise BadDump(name, "is nested too deep for a profiler's file") from error
    except ValueError as error:
        raise BadDump(name, f"is not usable JSON ({first_line(error)})") from error


def storable(value: Any, levels: int = MAX_LEVELS) -> Any:
    """The same JSON with what no file or database could hold marked or unknown: NUL and half surrogates become U+FFFD,
    numbers that are not finite null. Raises RecursionError for more levels."""
    if isinstance(value, str):
        return HALF_OR_NUL.sub("\ufffd", value)
    if not isinstance(value, (dict, list)):
        return None if isinstance(value, float) and not math.isfinite(value) else value
    if not levels:
        raise RecursionError
    if isinstance(value, list):
        return [storable(held, levels - 1) for held in value]
    return {storable(name): storable(held, levels - 1) for name, held in value.items()}
