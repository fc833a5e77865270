"""Secrets hidden in what leaves the host: a command line, the value of a variable, a run's configuration."""

from __future__ import annotations

import re
from typing import Iterator, Sequence

MASK = "***"
HIDDEN = '"***"'
LONGEST_COMMAND = 4000

_SEP = "[-_]?"
SECRET_WORD = (
    r"(?:token|secret|passw(?:or)?d|passphrase|pwd|credential|auth(?:orization)?|bearer|cookie"
    rf"|(?:api|access|private|secret|wandb|swanlab){_SEP}key)"
)
_HARMLESS = (
    r"(?:pad|bos|eos|unk|mask|cls|sep|additional_special|image|prompt|end|start|stop|new|max_?new|max|min|num|total"
    rf"|special){_SEP}tokens?"
)
_OWN_WORD = r"(?:[\w.-]*[-_.]|[\w.-]*(?-i:[a-z0-9](?=[A-Z])))?"
"""What may stand before the word in a name: words of their own, by a mark or by the case of letters."""
_NAME = rf"(?!{_HARMLESS}\b)(?:{_OWN_WORD}{SECRET_WORD}(?:s|{_SEP}(?:key|id|value))?|(?:[\w.-]*[-_.])?(?:ak|sk)|pass)"
_KEY = rf"(?:[!&]\S*[ \t]+)*[\"']?(?!\w*token{_SEP}id\b){_NAME}[\"']?"
_QUOTED = r"\"(?:[^\"\\]|\\.)*\"|'[^']*'"
_FLAGS = re.IGNORECASE | re.MULTILINE

_SECRET_OPTION = re.compile(rf"^-{{1,2}}[\w-]*{SECRET_WORD}$", re.IGNORECASE)
_SECRET_SETTING = re.compile(rf"^([\w.-]*{SECRET_WORD}[\w.-]{{0,60}}=).*$", re.IGNORECASE | re.DOTALL)
_PAIR = re.compile(
    rf"((?<![\w.-])[\w.-]*{SECRET_WORD}[\w.-]{{0,60}}[\"']?\s*[=:]\s*)(?!\s)(?:(?:bearer|basic)\s+[^\s\"',;&}}]+|{_QUOTED}|[^\s,;&}}]+)",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(rf"((?<![\w.-])[\w.-]*{SECRET_WORD}[\w.-]{{0,60}}=\\?[\"']?)[^\s,;&\"'}})\]\\]+", re.IGNORECASE)
_SIGNED = re.compile(r"([?&][\w-]*sig(?:nature)?=)[^\s&\"'\\]+", re.IGNORECASE)
_HOOK = re.compile(r"(https?://(?:hooks\.[\w.]+|[\w.]+/[\w./-]*hook)/)[^\s\"']+", re.IGNORECASE)
_BEARER = re.compile(r"\b((?:bearer|basic)[ \t]+)[\w.~+/=-]{6,}", re.IGNORECASE)
_OPTION = re.compile(rf"((?<![\w-])--?[\w-]*{SECRET_WORD}[ \t]+)(?!-)[^\s\"']+", re.IGNORECASE)
_OPTION_ITEM = re.compile(
    rf"([\"']--?[\w-]*{SECRET_WORD}[\"']\s*,\s*|^[ \t]*-[ \t]+[\"']?--?[\w-]*{SECRET_WORD}[\"']?[ \t]*\n[ \t]*-[ \t]+)"
    rf"(?:{_QUOTED}|[^\s,\]]+)",
    _FLAGS,
)
_NAMED = re.compile(
    rf"(\bname[\"']?\s*:\s*[\"']?[\w.-]*{SECRET_WORD}[\w.-]{{0,60}}[\"']?\s*,?\s*[\"']?value[\"']?\s*:\s*)"
    rf"(?:{_QUOTED}|[^\s,}}]+)",
    _FLAGS,
)
_LOGIN = re.compile(r"((?<!\w)\w+://)(?:[^/@\s\"']+|[^/:@\s\"']{1,99}:(?!\d+/)[^@\s\"']{1,300})@")
_KNOWN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{12,}|sst_[0-9a-f]{12}_[\w-]{8,}"
    r"|(?:sk-|gh[opsur]_|github_pat_|glpat-|AKIA|ASIA|xox[abeprs]-|xapp-|eyJ)[A-Za-z0-9_\-.]{8,})"
)
_PRIVATE = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
_LINE = re.compile(rf"^((?:\s|-\s)*)({_KEY}\s*:)(?:[ \t]+(\S.*?))?[ \t]*$", re.IGNORECASE)
_INLINE = re.compile(rf"[{{,]\s*{_KEY}\s*:\s*(?=\S)", re.IGNORECASE)
_SCALAR = re.compile(rf"{_QUOTED}|[^,}}\]\s][^,}}\]]*")
_PART = re.compile(rf"{_QUOTED}|[\[\]{{}}]")
_SWITCH = re.compile(r"(?:true|false|null|none|~)\s*,?", re.IGNORECASE)
_INDENT = re.compile(r"^(?:\s|-\s)*")
_BELOW = re.compile(rf"^((?:\s|-\s)*)((?:{_QUOTED}|[^\s\"'#:][^:#]*?)\s*:)?(?:\s+|$)?(.*?)(,?)\s*$")


def masked(text: str) -> str:
    """`text` without logins in addresses, `token=...` pairs and tokens of known shape."""
    text = _KNOWN.sub(MASK, _LOGIN.sub(rf"\1{MASK}@", text))
    for pattern in (_PAIR, _BEARER, _SIGNED, _HOOK, _OPTION):
        text = pattern.sub(rf"\1{MASK}", text)
    return text


def masked_command(arguments: Sequence[str]) -> str:
    """A command line fit to be shown."""
    shown, hide = [], False
    for argument in arguments:
        shown.append(MASK if hide else masked(_SECRET_SETTING.sub(rf"\1{MASK}", argument)))
        hide = bool(_SECRET_OPTION.match(argument))
    return " ".join(shown)[:LONGEST_COMMAND]


def masked_config(text: str) -> str:
    """A YAML or JSON file with secrets hidden: values of keys that sound so, whatever stands below such a key, and what
    comments, commands and addresses hold. Tokenizer settings such as pad_token stay.

    It can still be read as what it was: a bare *** would be an alias in YAML.
    """
    lines = _PRIVATE.sub("<hidden>", text).splitlines()
    text = "\n".join(_without_values(lines)) + "\n"
    text = _without_inline(text)
    for pattern in (_OPTION_ITEM, _NAMED):
        text = pattern.sub(rf"\1{HIDDEN}", text)
    text = _COMMENT.sub(lambda comment: masked(comment.group()), text)
    for pattern in (_ASSIGNED, _SIGNED, _HOOK, _BEARER, _OPTION):
        text = pattern.sub(rf"\1{MASK}", text)
    return _KNOWN.sub("<hidden>", _LOGIN.sub(rf"\1{MASK}@", text))


def _without_inline(text: str) -> str:
    """The text with `"***"` for values of secret-sounding keys between brackets, lists and mappings as a whole."""
    shown, at = "", 0
    for found in _INLINE.finditer(text):
        begin = found.end()
        if begin < at:
            continue  # within a value that is hidden
        scalar = _SCALAR.match(text, begin)
        end = _bracket_end(text, begin) if text[begin] in "[{" else scalar.end() if scalar else begin
        if end > begin:
            shown, at = shown + text[at:begin] + HIDDEN, end
    return shown + text[at:]


def _bracket_end(text: str, begin: int) -> int:
    """Behind the bracket that closes the one at `begin`; the text's end where none does."""
    depth = 0
    for part in _PART.finditer(text, begin):
        depth += (part.group() in "[{") - (part.group() in "]}")
        if depth == 0:
            return part.end()
    return len(text)


def _without_values(lines: Sequence[str]) -> Iterator[str]:
    """The lines, with `"***"` for what secret-sounding keys have: beside them, or below."""
    below: int | None = None  # what is indented deeper than this belongs to a hidden value
    under: int | None = None  # this deep, only names are shown
    flow = 0  # brackets open around what is shown
    waiting, brackets = "", 0  # a line whose value such as [a, has not ended
    for line in lines:
        indent = _indent(line)
        if brackets > 0:
            brackets += _opened(line)
            if brackets <= 0:
                yield waiting + _closing(line, -brackets) + _comma(line, flow)
                flow += brackets
            continue
        if below is not None and (indent > below or not line.strip()):
            continue
        below = None
        if under is not None and line.strip() and indent <= under:
            under = None
        found = _LINE.match(line)
        if found is not None and found.group(3) is not None and not _SWITCH.fullmatch(found.group(3)):
            waiting, brackets = found.group(1) + found.group(2) + " " + HIDDEN, _opened(found.group(3))
            below = indent if brackets <= 0 else None
            if brackets <= 0:
                yield waiting + _closing(found.group(3), -brackets) + _comma(line, flow)
                flow += brackets
            continue
        shown, scalar = (line, False) if found is not None or under is None else _name_only(line)
        yield shown
        flow += _opened(line)
        below = indent - scalar if shown != line else None
        if found is not None and found.group(3) is None:
            under = indent if under is None else under
    if brackets > 0:
        yield waiting


def _closing(text: str, count: int) -> str:
    """The last brackets of a value that close what was open before it."""
    return "".join(letter for letter in text if letter in "]}")[-count:] if count else ""


def _comma(line: str, flow: int) -> str:
    return "," if flow > 0 and line.rstrip().endswith(",") else ""


def _indent(line: str) -> int:
    found = _INDENT.match(line)
    return len(found.group()) if found else 0


def _opened(text: str) -> int:
    """Brackets that open here, less those that close."""
    return sum((letter in "[{") - (letter in "]}") for letter in re.sub(_QUOTED, "", text))


def _name_only(line: str) -> tuple[str, bool]:
    """A line below a secret-sounding key with its value hidden, and whether all of it is a value that may go on."""
    found = _BELOW.match(line)
    if line.strip(" ,[]{}") == "" or found is None:
        return line, False
    start, name, value, comma = found.groups()
    if name is None:
        return start + HIDDEN + comma, "-" not in start
    return (line if value in ("", "{", "[") else start + name + " " + HIDDEN + comma), False
