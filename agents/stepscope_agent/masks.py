"""Secrets hidden in what leaves the host: a command line, the value of a variable, a run's configuration.

Text in, text out; it imports nothing of ours, so that the server can read the same rules from this file. A
configuration is YAML or JSON, but is not parsed as a whole: one that is damaged must not let out what one that is whole
would keep. Where it is in doubt what belongs to a secret, more is hidden.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Iterator, NamedTuple, Sequence

MASK = "***"
HIDDEN = '"***"'
GONE = "<hidden>"
LONGEST_COMMAND = 4000

_SEP = "[-_]?"
_STRONG = (
    r"(?:secret|passw(?:or)?d|passphrase|pwd|credential|cookie|keytab|密码|口令|密钥|令牌"
    rf"|(?:api|access|private|secret|wandb|swanlab|ssh|encryption|signing|master|account|storage|deploy|license){_SEP}key)"
)
SECRET_WORD = rf"(?:{_STRONG}|token|auth(?:orization)?|bearer)"
_HARMLESS = (
    r"(?:pad|bos|eos|unk|mask|cls|sep|additional_special|image|prompt|end|start|stop|new|max_?new|max|min|num|total"
    rf"|special){_SEP}tokens?"
)
_OWN_WORD = r"(?:[\w.-]*[-_.]|[\w.-]*(?-i:[a-z0-9](?=[A-Z]))|[\w.-]*(?=[密口令]))?"
"""What may stand before the word in a name: words of their own, by a mark or by the case of letters."""
_NAME = (
    rf"(?!{_HARMLESS}\b)(?!\w*token_?id\b)"
    rf"(?:{_OWN_WORD}{SECRET_WORD}(?:s|{_SEP}(?:key|id|value|\d+))?|{_OWN_WORD}{_STRONG}s?[-_.]\w[\w.-]*"
    r"|(?:[\w.-]*[-_.])?(?:ak|sk|pass|pw))"
)
_QUOTED = r"\"(?:[^\"\\]|\\.)*\"|'[^']*'"
_FLAGS = re.IGNORECASE | re.MULTILINE
_IS_SECRET = re.compile(rf"(?:[!&]\S*\s+)*[\"']?(?:{_NAME})[\"']?", re.IGNORECASE)
_SOUNDS_SECRET = re.compile(SECRET_WORD, re.IGNORECASE)

# Of commands and plain text
_SECRET_OPTION = re.compile(rf"^-{{1,2}}[\w-]*{SECRET_WORD}$", re.IGNORECASE)
_SECRET_SETTING = re.compile(rf"^([\w.-]*{SECRET_WORD}[\w.-]{{0,60}}=).*$", re.IGNORECASE | re.DOTALL)
_PAIR = re.compile(
    rf"((?<![\w.-])(?!{_HARMLESS}\b)[\w.-]*{SECRET_WORD}[\w.-]{{0,60}}[\"']?\s*[=:]\s*)(?!\s|[\"']?\*\*\*)(?:(?:bearer|basic)\s+[^\s\"',;&}}]+|{_QUOTED}|[^\s,;&}}]+)",
    re.IGNORECASE,
)
_SHELL_VALUE = (
    r"(?:(?<=\")[^\s,;&\"'})\]\\][^\"\\\n]*(?=\\?\")|(?<=')[^\s,;&\"'})\]\\][^'\n]*(?=')"
    r"|[^\s,;&\"'})\]\\]+)"
)
"""A whole value in quotes, which themselves stay; else up to the next blank or mark."""
_ASSIGNED = re.compile(
    rf"((?<![\w.-])[\w.-]*{SECRET_WORD}[\w.-]{{0,60}}(?:\+?=|[\"']\][ \t]*=[ \t]*)\$?\\?[\"']?){_SHELL_VALUE}",
    re.IGNORECASE,
)
_SIGNED = re.compile(r"([?&](?:[\w-]*sig(?:nature)?|key|code)=)[^\s&\"'\\]+", re.IGNORECASE)
_HOOK = re.compile(r"(https?://(?:hooks\.[\w.]+|[\w.]+/[\w./-]*hook)/)[^\s\"'?]+", re.IGNORECASE)
_BEARER = re.compile(r"\b((?:bearer|basic)[ \t]+)[\w.~+/=-]{6,}", re.IGNORECASE)
_OPTION = re.compile(
    rf"((?<![\w-])-{{1,2}}(?!-|{_HARMLESS}\b)[\w-]*{SECRET_WORD}(?:[ \t]|\\\r?\n)+\\?[\"']?)(?!-){_SHELL_VALUE}",
    re.IGNORECASE,
)
_SPELT = re.compile(
    rf"(\blogin[ \t]+\S+\s+password[ \t]+|\bsshpass[ \t]+-p[ \t]*[\"']?|\bdocker[ \t]+login\b.{{0,200}}?[ \t]-p[ \t]+"
    rf"|\b(?:wandb|swanlab)[ \t]+login[ \t]+(?:--relogin[ \t]+)?[\"']?"
    rf"|\bset(?:env|[ \t]+-\w+)[ \t]+\w*{SECRET_WORD}\w{{0,60}}[ \t]+[\"']?"
    rf"|\bread[ \t]+(?:-\w+[ \t]+)*\w*{SECRET_WORD}\w{{0,60}}[ \t]*<<<[ \t]*[\"']?"
    r"|\blogin\([ \t]*(?:\w*key[ \t]*=[ \t]*)?[\"']|\bmysql\b[^\n|;&]{0,200}?[ \t]-p(?=\S))"
    r"[^\s\"']+",
    re.IGNORECASE,
)  # as .netrc and commands have it
_USER = re.compile(r"((?<![\w-])(?:-u[ \t=]*|--(?:proxy-)?user[ \t=]+)[\"']?[^\s:\"'=-][^\s:\"']*:)[^\s\"']+")
_ARRAY = re.compile(rf"((?<![\w.-])\w*{SECRET_WORD}\w{{0,60}}\+?=\()[^)\n]+", re.IGNORECASE)
_PIPED = re.compile(
    r"(\b(?:echo|printf)[ \t]+(?:-\w+[ \t]+)?)[^\n|;&]{1,400}?"
    r"(?=[ \t]*\|[ \t]*(?:docker|podman|helm|gh|huggingface-cli)\b[^\n|;&]{0,99}\blogin\b)"
)
_LOGIN = re.compile(r"((?<![\w+.-])[\w+.-]+://)(?:[^/@\s\"']+|[^/:@\s\"']{1,99}:(?!\d+/)[^@\s\"']{1,300})@")
_KNOWN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{12,}|sst_[0-9a-f]{12}_[\w-]{8,}|AIza[\w-]{30,}|(?:ya29|hvs|SG)\.[\w.-]{16,}"
    r"|(?:sk-|gh[opsur]_|github_pat_|glpat-|AKIA|ASIA|xox[abeprs]-|xapp-|eyJ|[rs]k_(?:live|test)_|npm_|pypi-|nvapi-|gsk_)"
    r"[A-Za-z0-9_\-.]{8,})"
)
_PRIVATE = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)

# Of configurations
_ESCAPE = re.compile(r"\\(?:\\|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2}))")
_OPTION_ITEM = re.compile(
    rf"([\"']--?[\w-]*{SECRET_WORD}[\"']\s*,\s*|[\[,]\s*--?[\w-]*{SECRET_WORD}\s*,\s*"
    rf"|^[ \t]*-[ \t]+[\"']?--?[\w-]*{SECRET_WORD}[\"']?[ \t]*\n[ \t]*-[ \t]+)"
    rf"(?:{_QUOTED}|[^\s,\]]+)",
    _FLAGS,
)
_NAMED = re.compile(
    rf"(\b(?:name|key)[\"']?\s*:\s*[\"']?[\w.-]*{SECRET_WORD}[\w.-]{{0,60}}[\"']?\s*(?:,\s*)?[\"']?value[\"']?\s*:\s*)"
    rf"(?:{_QUOTED}|[^\s,}}]+)",
    _FLAGS,
)
_NAMED_AFTER = re.compile(
    rf"(\bvalue[\"']?[ \t]*:[ \t]*)(?:{_QUOTED}|[^\s,}}]+)"
    rf"(?=\s*(?:,\s*)?[\"']?(?:name|key)[\"']?\s*:\s*[\"']?[\w.-]*{SECRET_WORD})",
    _FLAGS,
)
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
_FLOW_AT = re.compile(
    rf"^[ \t]*(?:[-?:][ \t]+){{0,9}}(?:(?:[!&]\S*[ \t]+){{0,3}}"
    rf"(?:(?:{_QUOTED})[ \t]*:[ \t]*|[^\s\"'#\[{{][^\n#]*?:[ \t]+))?"
    r"(?:[!&]\S*[ \t]+){0,3}(?=[\[{])",
    re.MULTILINE,
)
_KEYED = re.compile(rf"((?:[!&]\S*[ \t]+){{0,3}}(?:{_QUOTED}|[^\s\"'#](?:.*?\S)??))([ \t]*:)(?:[ \t]+(.*))?$")
_ASKED = re.compile(r"^(?:\s|-\s)*\?[ \t]+(\S.*?)[ \t]*$")
_ALIASED = re.compile(rf"(?<![\w.-])(?:{_NAME})[\"']?\s*:\s*\*([^\s,\[\]{{}}]+)", re.IGNORECASE)
_ANCHORED = re.compile(r"(?<!\S)&(\S+)(?=\s|$)")
_SWITCH = re.compile(r"(?:true|false|null|none|~)\s*,?", re.IGNORECASE)
_INDENT = re.compile(r"(?:\s|[-?:](?:\s|$))*")
_BELOW = re.compile(rf"((?:{_QUOTED}|[^\s\"'#:][^:#]*):(?=\s|$))?(.*)$")
_LEFT = re.compile(
    rf"((?<![\w.-])(?:{_NAME})[\"']?[ \t]*[:=][ \t]*)(?![\\\"'\[{{\s]|\*\*\*|<hidden>|(?:true|false|null|none|~)\b)"
    r"[^\s\"',;\]}]+",
    re.IGNORECASE,
)
_WORD = r"(?:[^\s,\[\]{}:]|:(?![\s,\[\]{}]|\Z))"
_TOKEN = re.compile(
    rf"""(?P<space>\s+|(?:(?<=\s)|(?<![\s\S]))\#[^\n]*)
    |(?P<opens>[\[{{])|(?P<closes>[\]}}])|(?P<comma>,)|(?P<ask>\?(?=\s))
    |(?P<quoted>"(?:[^"\\]|\\.)*(?:"|\\?\Z)|'(?:[^']|'')*(?:'|\Z))
    |(?P<mark>[&!*][^\s,\[\]{{}}]*)
    |(?P<plain>{_WORD}+)
    |(?P<colon>:)""",
    re.VERBOSE | re.DOTALL,
)
_BLOCK = re.compile(r"(?:^|\s)[|>][-+\d]{0,2}(?:\s+#.*)?\s*$")
_CLOSES = {"[": "]", "{": "}"}
_MORE = re.compile(rf"(?:[^\S\n]*\n?)*?(?P<plain>{_WORD}+)", re.DOTALL)
"""A further word of a plain value: within it quotes and marks mean nothing."""
_NAMES, _VALUES = ("name", "key", "env", "variable"), ("value", "default", "content")


def masked(text: str) -> str:
    """`text` without logins in addresses, `token=...` pairs and tokens of known shape."""
    text = _KNOWN.sub(MASK, _LOGIN.sub(rf"\1{MASK}@", _PRIVATE.sub(MASK, text)))
    for pattern in (_ARRAY, _PAIR, _BEARER, _SIGNED, _HOOK, _OPTION, _SPELT, _PIPED, _USER):
        text = pattern.sub(rf"\1{MASK}", text)
    return text


def masked_command(arguments: Sequence[str]) -> str:
    """A command line fit to be shown."""
    shown, hide = [], False
    for argument in arguments:
        shown.append(MASK if hide else masked(_SECRET_SETTING.sub(rf"\1{MASK}", argument)))
        hide = bool(_SECRET_OPTION.match(argument))
    return masked(" ".join(shown))[:LONGEST_COMMAND]


def masked_config(text: str) -> str:
    """A YAML or JSON file with secrets hidden: values of keys that sound so, whatever stands below such a key, and what
    comments, commands and addresses hold. Tokenizer settings such as pad_token stay.

    It can still be read as what it was: a bare *** would be an alias in YAML.
    """
    text = _ESCAPE.sub(_plain, text.replace("\0", ""))
    text = "\n".join(_PRIVATE.sub(GONE, text).splitlines()) + "\n"
    secret = frozenset(_ALIASED.findall(text))
    text, aside = _flows_aside(text, secret)
    text = "\n".join(_without_values(text.splitlines(), secret)) + "\n"
    text = re.sub("\0(\\d+)\0", lambda found: aside[int(found.group(1))], text)
    for pattern in (_OPTION_ITEM, _NAMED, _NAMED_AFTER):
        text = pattern.sub(rf"\1{HIDDEN}", text)
    text = _COMMENT.sub(lambda comment: masked(comment.group()), text)
    for pattern in (_ARRAY, _ASSIGNED, _SIGNED, _HOOK, _BEARER, _OPTION, _SPELT, _PIPED, _USER):
        text = pattern.sub(rf"\1{MASK}", text)
    return _LEFT.sub(rf"\1{GONE}", _KNOWN.sub(GONE, _LOGIN.sub(rf"\1{MASK}@", text)))


def _plain(escape: re.Match[str]) -> str:
    """A letter, digit or mark of a name that was written as an escape needs none, and may only hide a name."""
    number = next((digits for digits in escape.groups() if digits), None)
    code = int(number, 16) if number else 0
    letter = chr(code) if 0x20 < code < 0x110000 else ""
    return letter if letter.isalnum() or letter in tuple("-_.:=/@+&?#") else escape.group()


def _is_secret(key: str, anchors: frozenset[str] = frozenset()) -> bool:
    """Whether a key sounds so, or a part of what may be one in a damaged file; or the name of a value used as one."""
    if key.startswith("&") and key[1:] in anchors:
        return True
    return any(_IS_SECRET.fullmatch(part) for part in [key, *key.split()])


def _flows_aside(text: str, secret: frozenset[str]) -> tuple[str, list[str]]:
    """The text with a mark in place of each collection in brackets, and those collections, secrets hidden."""
    shown: list[str] = []
    aside: list[str] = []
    place = 0
    blocks = _blocks(text)
    while True:
        found = _FLOW_AT.search(text, place)
        if found is None:
            return "".join(shown) + text[place:], aside
        begin = found.end()
        inside = blocks[bisect_right(blocks, (begin, len(text))) - 1 :][:1]
        limit = next((last for first, last in inside if first <= begin < last), len(text))
        known, end = _entries(text, begin, limit)
        whole = _without_entries(text, begin, limit if end is None else end, known, secret)
        if end is None:  # what follows may be lines of another kind
            shown.append(text[place:begin] + whole)
        else:
            shown.append(text[place:begin] + "\0%d\0" % len(aside))
            aside.append(whole)
        place = limit if end is None else end


def _blocks(text: str) -> list[tuple[int, int]]:
    """Where texts of several lines, below a | or > or in quotes, begin and end, in order: what is open in one ends with
    it at the latest."""
    found: list[tuple[int, int]] = []
    begin, depth, quote, at = -1, 0, "", 0
    for line in text.splitlines(keepends=True):
        end = at + len(line)
        if begin >= 0 and line.strip() and _lead(line) <= depth:
            found.append((begin, at))
            begin = -1
        if begin < 0:
            quote = _opened(line)
            if quote or _BLOCK.search(line):
                begin, depth = at if quote else end, _depth(line)
        elif quote and _closes(line, quote):
            found.append((begin, end))
            begin = -1
        at = end
    return [*found, (begin, at)] if begin >= 0 else found


def _opened(line: str) -> str:
    """The quote of a text that goes on in the next line."""
    begin = _indent(line)
    keyed = _KEYED.match(line, begin)
    return _unclosed((keyed.group(3) or "") if keyed else line[begin:])


def _depth(line: str) -> int:
    """How deep lines are at the most that do not belong to the text which this line begins."""
    begin = _indent(line)
    return begin if _KEYED.match(line, begin) else len(line[:begin].rstrip()) - 1


def _without_entries(text: str, begin: int, end: int, known: Sequence[_Entry], secret: frozenset[str]) -> str:
    shown, at = "", begin
    named = {one.home for one in known if _bare(one.key) in _NAMES and _SOUNDS_SECRET.search(text[one.begin : one.end])}
    for one in sorted(known, key=lambda one: (one.begin, -one.end)):
        value = text[one.begin : one.end]
        told = _is_secret(one.key, secret) or (one.home in named and _bare(one.key) in _VALUES)
        if one.begin >= at and told and not _SWITCH.fullmatch(value):
            shown, at = shown + text[at : one.begin] + HIDDEN, one.end
    return shown + text[at:end]


def _bare(key: str) -> str:
    return key.strip("\"' ").lower()


def _without_values(lines: Sequence[str], secret: frozenset[str]) -> Iterator[str]:
    """The lines, with `"***"` for what secret-sounding keys have: beside them, or below."""
    below: int | None = None  # what is indented deeper than this belongs to a hidden value
    under: int | None = None  # this deep, only names are shown
    item: int | None = None  # what is indented deeper than this dash belongs to a hidden value, but for other dashes
    quote, asked = "", False  # a hidden value that has not ended; a key on a line of its own, which the value follows
    for line in lines:
        indent = _indent(line)
        if quote:
            quote = "" if _closes(line, quote) else quote
            continue
        if below is not None and (indent > below or not line.strip()):
            continue
        if item is not None and (not line.strip() or (_lead(line) > item and not _is_item(line))):
            continue
        below = item = None
        if under is not None and line.strip() and indent <= under:
            under = None
        told = _told(line, secret, asked)
        asked = any(map(_is_secret, _ASKED.findall(line)))
        if told is not None:
            before, value = told
            if not value:
                yield line
                under = indent if under is None else under
            elif _SWITCH.fullmatch(value):
                yield line
            else:
                yield before + HIDDEN
                quote = _unclosed(value)
                below = indent
            continue
        shown, value = (line, None) if under is None else _name_only(line)
        yield shown
        if value is None:
            continue
        quote = _unclosed(value)
        if _is_item(line):
            item = _lead(line)
        else:  # a value without a name goes on in lines of its own depth
            below = indent - (shown.strip() == HIDDEN)


def _told(line: str, secret: frozenset[str], asked: bool) -> tuple[str, str] | None:
    """What stands before a secret's value, and the value; None where the line tells none."""
    if asked:
        value = re.match(r"^(\s*:[ \t]*)(.*)$", line)
        return (value.group(1), value.group(2).strip()) if value else None
    for anchored in _ANCHORED.finditer(line) if secret else ():
        if anchored.group(1) in secret:
            return line[: anchored.end()] + " ", line[anchored.end() :].strip()
    begin = _indent(line)
    found = _KEYED.match(line, begin)
    if found is None or not _is_secret(found.group(1)):
        return None
    return line[:begin] + found.group(1) + found.group(2) + " ", (found.group(3) or "").strip()


def _unclosed(value: str) -> str:
    """The quote of a value that goes on in the next line."""
    value = re.sub(r"^(?:[!&]\S*[ \t]+){0,3}", "", value)
    return value[:1] if value[:1] in ('"', "'") and not _closes(value[1:], value[0]) else ""


def _lead(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_item(line: str) -> bool:
    return line.lstrip().startswith("-")


def _closes(text: str, quote: str) -> bool:
    """Whether a quoted value that is open at the beginning of `text` ends in it."""
    inside = r"(?:[^\"\\]|\\.)*\"" if quote == '"' else r"(?:[^']|'')*'(?!')"
    return re.match(inside, text) is not None


def _indent(line: str) -> int:
    found = _INDENT.match(line)
    return found.end() if found else 0


def _name_only(line: str) -> tuple[str, str | None]:
    """A line below a secret-sounding key with its value hidden, and that value; None where it has none."""
    begin = _indent(line)
    found = _BELOW.match(line, begin)
    if line.strip(" ,[]{}") == "" or found is None:
        return line, None
    start, name, value = line[:begin], found.group(1), found.group(2).strip()
    if value == "":
        return line, None
    return (start + name + " " if name else start) + HIDDEN, value


class _Entry(NamedTuple):
    """A key, or `&name` in front of a value, and where its value stands. `home` is shared by entries of a mapping."""

    key: str
    begin: int
    end: int
    home: int


class _Frame:
    """An open bracket."""

    def __init__(self, home: int) -> None:
        self.home = home
        self.last: tuple[int, int] | None = None  # the scalar just read, which may turn out to be a key
        self.waiting: list[str] = []  # keys and names whose value has not begun
        self.begun: list[tuple[str, int]] = []

    def value(self, begin: int) -> None:
        self.begun += [(key, begin) for key in self.waiting]
        self.waiting = []

    def ended(self, at: int) -> Iterator[_Entry]:
        for key, begin in self.begun:
            if at > begin:
                yield _Entry(key, begin, at, self.home)
        self.begun, self.waiting, self.last = [], [], None


def _entries(text: str, begin: int, limit: int) -> tuple[list[_Entry], int | None]:
    """The entries of the collection in brackets, of YAML or JSON, that opens at `begin`, in no order, and where it
    ends: None when it does not before `limit`. Of one that is damaged a value ends later than it should, never
    sooner."""
    found: list[_Entry] = []
    frames: list[_Frame] = []
    place, end, plain = begin, begin, False
    while place < limit:
        token = (_MORE.match(text, place, limit) if plain else None) or _TOKEN.match(text, place, limit)
        if token is None:
            break
        kind, at, place = str(token.lastgroup), token.start(str(token.lastgroup)), token.end()
        if kind == "space":
            continue
        stray = kind == "closes" and frames and token.group() != _CLOSES[text[frames[-1].home]]
        if kind in ("opens", "closes", "comma", "colon") and not stray:
            if not frames and kind != "opens":
                break
            if kind == "opens":
                if frames:
                    frames[-1].value(at)
                frames.append(_Frame(at))
            elif kind == "colon":
                found += _after_colon(frames[-1], text)
            else:
                found += frames[-1].ended(end)
                if kind == "closes":
                    frames.pop()
                    if not frames:
                        return found, place
        else:
            _scalar(frames[-1], text, kind, at, place, plain)
        plain, end = kind == "plain", place
    for frame in frames:
        found += frame.ended(limit)
    return found, None


def _after_colon(frame: _Frame, text: str) -> Iterator[_Entry]:
    """What was read last is a key. Where a comma is missing the value before it ends here too."""
    key = text[slice(*frame.last)] if frame.last else ""
    yield from frame.ended(frame.last[1] if frame.last else 0)
    frame.waiting = [key]


def _scalar(frame: _Frame, text: str, kind: str, at: int, end: int, plain: bool) -> None:
    if kind == "ask":
        return
    if kind == "mark" and text[at] in "&!":
        frame.value(at) if text[at] == "!" else None
        frame.waiting += [text[at:end]] if text[at] == "&" else []
        return
    frame.value(at)
    frame.last = (frame.last[0], end) if plain and frame.last else (at, end)
