"""Secrets hidden in what leaves the host: a command line, the value of a variable, a run's configuration.

Text in, text out; it imports nothing of ours, so that the server can read the same rules from this file. A
configuration is YAML or JSON, but is not parsed as a whole: one that is damaged must not let out what one that is whole
would keep. Where it is in doubt what belongs to a secret, more is hidden.
"""

from __future__ import annotations

import re
from typing import Callable, Iterator, NamedTuple, Pattern, Sequence, Tuple

MASK, HIDDEN, GONE = "***", '"***"', "<hidden>"
LONGEST_COMMAND = 4000
Span = Tuple[int, int]

# What sounds secret: <words> stand for what they are defined as, <h> for a blank and <q> for a quote
_WORDS = {
    "h": r"[ \t]",
    "q": r"[\"']",
    "quoted": r"(?:\"(?:[^\"\\]|\\.)*\"|'[^']*')",
    "kept": "(?:true|false|null|none|~)",
}


def _spelt(form: str) -> str:
    return re.sub("<([a-z]+)>", lambda word: _WORDS.get(word[1], word[0]), form)


def _compiled(form: str, flags: int = re.IGNORECASE | re.MULTILINE) -> Pattern[str]:
    return re.compile(_spelt(form), flags)


_WORDS["strong"] = _spelt(
    r"(?:secret|passw(?:or)?d|passphrase|pwd|credential|cookie|keytab|密码|口令|密钥|令牌|(?:api|access|private|secret|wandb"
    r"|swanlab|ssh|encryption|signing|master|account|storage|deploy|license)[-_]?key)"
)
SECRET_WORD = _WORDS["secret"] = _spelt("(?:<strong>|token|auth(?:orization)?|bearer)")
_WORDS["harmless"] = (
    r"(?:pad|bos|eos|unk|mask|cls|sep|additional_special|image|prompt|end|start|stop|new|max_?new|max|min|num|total"
    r"|special)[-_]?tokens?\b"
)
# Before the word in a name stand words of their own, by a mark or by the case of letters. Of a whole name it is asked
# first how it sounds: where what should follow it does not, nothing is tried again.
_WORDS["own"] = r"(?:[\w.-]*[-_.]|[\w.-]*(?-i:[a-z0-9](?=[A-Z]))|[\w.-]*(?=[密口令]))?"
_WORDS["key"] = _spelt(
    r"(?:(?!<harmless>)(?!\w*token_?id\b)(?=<own>(?:<secret>(?:s|[-_]?(?:key|id|value|\d+))?(?![\w.-])|<strong>s?[-_.]\w)"
    r"|(?:[\w.-]*[-_.])?(?:ak|sk|pass|pw)(?![\w.-]))[\w.-]+)"
)
_WORDS["name"] = _spelt(r"[\w.-]*<secret>[\w.-]{0,60}")
_WORDS["variable"] = _spelt(r"\w*<secret>\w{0,60}")
# A whole value in quotes, which themselves stay; else up to the next blank or mark
_WORDS["value"] = (
    r"(?:(?<=\")[^\s,;&\"'})\]\\][^\"\\\n]*(?=\\?\")|(?<=')[^\s,;&\"'})\]\\][^'\n]*(?=')|[^\s,;&\"'})\]\\]+)"
)

# Forms in which secrets are written: what stands before and stays, and the value
_PRIVATE = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_KNOWN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{12,}|sst_[0-9a-f]{12}_[\w-]{8,}|AIza[\w-]{30,}|(?:ya29|hvs|SG)\.[\w.-]{16,}"
    r"|(?:sk-|gh[opsur]_|github_pat_|glpat-|AKIA|ASIA|xox[abeprs]-|xapp-|eyJ|[rs]k_(?:live|test)_|npm_|pypi-|nvapi-|gsk_)"
    r"[A-Za-z0-9_\-.]{8,})"
)
_LOGIN = _compiled(r"((?<![\w+.-])[\w+.-]+://)(?:[^/@\s\"']+|[^/:@\s\"']{1,99}:(?!\d+/)[^@\s\"']{1,300})(?=@)")
_ARRAY = _compiled(r"((?<![\w.-])<variable>\+?=\()[^)\n]+")
_PAIR = _compiled(
    r"((?<![\w.-])(?!<harmless>)<name><q>?\s*[=:：]\s*)(?!\s|<q>?\*\*\*)"
    r"(?:(?:bearer|basic)\s+[^\s\"',;&}]+|<quoted>|[^\s,;&}]+"
    r"(?:(?:(?<=[=:：])<h>+|<h>+[=:：]<h>*)(?:<quoted>|[^\s,;&}]+))*)"  # what looks like the value may be one more name
)
_ASSIGNED = _compiled(r"((?<![\w.-])<name>(?:\+?=|<q>\]<h>*=<h>*)\$?\\?<q>?)<value>")
_COMMANDS = (
    _compiled(r"(\b(?:bearer|basic)<h>+)[\w.~+/=-]{6,}"),
    _compiled(r"([?&](?:[\w-]*sig(?:nature)?|key|code)=)[^\s&\"'\\]+"),
    _compiled(r"(https?://(?:hooks\.[\w.]+|[\w.]+/[\w./-]*hook)/)[^\s\"'?]+"),
    _compiled(r"((?<![\w-])--?(?!-|<harmless>)[\w-]*<secret>(?:<h>|\\\r?\n)+\\?<q>?)(?!-)<value>"),
    _compiled(
        r"(\blogin<h>+\S+\s+password<h>+|\blogin\(<h>*(?:\w*key<h>*=<h>*)?<q>|\bsshpass<h>+-p<h>*<q>?"
        r"|\bdocker<h>+login\b.{0,200}?<h>-p<h>+|\b(?:wandb|swanlab)<h>+login<h>+(?:--relogin<h>+)?<q>?"
        r"|\bset(?:env|<h>+-\w+)<h>+<variable><h>+<q>?|\bread<h>+(?:-\w+<h>+)*<variable><h>*<<<<h>*<q>?"
        r"|\bmysql\b[^\n|;&]{0,200}?<h>-p(?=\S))[^\s\"']+"
    ),
    _compiled(
        r"(\b(?:echo|printf)<h>+(?:-\w+<h>+)?)[^\s|;&][^\n|;&]{0,400}?"
        r"(?=<h>{0,9}\|<h>*(?:docker|podman|helm|gh|huggingface-cli)\b[^\n|;&]{0,99}\blogin\b)"
    ),
    _compiled(r"((?<![\w-])(?:-u[ \t=]*|--(?:proxy-)?user[ \t=]+)<q>?[^\s:\"'=-][^\s:\"']*:)[^\s\"']+", re.MULTILINE),
)
# Prose names a secret and then tells it; what follows is one where it is in quotes or looks like no word of a language
_WORDS["told"] = (
    r"(?:(?<=[\"'])[^\s,:;\]}\"'][^\"'\\\n]+(?=\\?[\"'])|(?!\d{1,5}(?!\w)|<|\*)(?:(?![\"',;)\]}\\])[!-~]){4,})"
)
_PROSE = (
    _compiled(
        r"(\b(?:passw(?:or)?d|passphrase|secret|credential|token|(?:api|access|private)[ _-]?key)s?\b"
        r"(?:<h>+[\w'-]+){0,6}?<h>+(?:is|was|are|be)[ \t:]+\\?<q>?)"
        r"(?=(?<=<q>)|[^\s\"',;)\]}\\]*(?:\d|(?-i:[a-z][A-Z])|[^\w\s.,;:!?()\"'\\-]))<told>"
    ),
    _compiled(r"((?:密码|口令|密钥|令牌)[^\x00-\x7f：]{0,12}?(?:是|为|：)<h>*\\?<q>?)<told>"),
)
_ITEMS = (
    _compiled(
        r"(<q>--?[\w-]*<secret><q>\s*,\s*|[\[,]\s*--?[\w-]*<secret>\s*,\s*"
        r"|^<h>*-<h>+<q>?--?[\w-]*<secret><q>?<h>*\n<h>*-<h>+)(?:<quoted>|[^\s,\]]+)"
    ),
    _compiled(r"(\b(?:name|key)<q>?\s*:\s*<q>?<name><q>?\s*(?:,\s*)?<q>?value<q>?\s*:\s*)(?:<quoted>|[^\s,}]+)"),
    _compiled(
        r"(\bvalue<q>?<h>*:<h>*)(?:<quoted>|[^\s,}]+)(?=\s*(?:,\s*)?<q>?(?:name|key)<q>?\s*:\s*<q>?[\w.-]*<secret>)"
    ),
)
_LEFT = _compiled(r"((?<![\w.-])<key><q>?<h>*[:=]<h>*)(?![\\\"'\[{\s]|\*\*\*|<hidden>|<kept>\b)[^\s\"',;\]}]+")
_COMMENT = _compiled(r"(?:^|(?<=\s))#.*$")
_NOTED = _compiled(r"((?<![\w.-])<key>\s*[:：]\s*)(?!\s|<q>?\*\*\*|<kept>\b).+$")  # in a comment, with what follows
_OPTION = _compiled(r"^--?[\w-]*<secret>$", re.IGNORECASE)
_SETTING = _compiled(r"^(<name>=).*$", re.IGNORECASE | re.DOTALL)


def masked(text: str) -> str:
    """`text` without logins in addresses, `token=...` pairs, tokens of known shape, and passwords told in a sentence
    that look like no word."""
    text = _KNOWN.sub(MASK, _LOGIN.sub(rf"\1{MASK}", _PRIVATE.sub(MASK, text)))
    return _without(text, [_ARRAY, _PAIR, *_COMMANDS, *_PROSE])


def masked_command(arguments: Sequence[str]) -> str:
    """A command line fit to be shown."""
    shown, hide = [], False
    for argument in arguments:
        shown.append(MASK if hide else masked(_SETTING.sub(rf"\1{MASK}", argument)))
        hide = bool(_OPTION.match(argument))
    return masked(" ".join(shown))[:LONGEST_COMMAND]


def masked_config(text: str) -> str:
    """A YAML or JSON file with secrets hidden: values of keys that sound so, whatever stands below such a key, and what
    comments, commands and addresses hold. Tokenizer settings such as pad_token stay.

    It can still be read as what it was: a bare *** would be an alias in YAML.
    """
    text = _ESCAPE.sub(_plain, text.replace("\0", ""))
    text = "\n".join(_PRIVATE.sub(GONE, text).splitlines()) + "\n"
    text = _ASKED.sub(lambda found: "".join(found.groups()) if _is_secret(found[2]) else found[0], text)
    aliased = set(_ALIASED.findall(text))
    text = _ANCHOR.sub(lambda found: "&\0" + found[1] if found[1] in aliased else found[0], text)
    text = _without(_replaced(text, _hidden(text)).replace("\0", ""), _ITEMS, HIDDEN)
    text = _COMMENT.sub(lambda comment: masked(_without(comment[0], [_NOTED])), text)
    text = _without(text, [_ARRAY, _ASSIGNED, *_COMMANDS, *_PROSE, _LOGIN])
    return _without(_KNOWN.sub(GONE, text), [_LEFT], GONE)


def _without(text: str, forms: Sequence[Pattern[str]], shown: str = MASK) -> str:
    for form in forms:
        text = form.sub(rf"\1{shown}", text)
    return text


# How YAML and JSON write values
_WORDS["marks"] = r"(?:[!&]\S*[ \t]+){0,3}"
_WORDS["text"] = r"(?:\"(?:[^\"\\]|\\.)*(?:\"|\\?\Z)|'(?:[^']|'')*(?:'|\Z))"
_WORDS["word"] = r"(?:[^\s,\[\]{}:]|:(?![\s,\[\]{}]|\Z))"
_SOUNDS_SECRET = _compiled("<secret>")
_IS_SECRET = _compiled(r"&\0.*|(?:[!&]\S*\s+)*<q>?<key><q>?")
_SWITCH = _compiled(r"<kept>\s*,?")
_ESCAPE = re.compile(r"\\(?:\\|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2}))")
_ASKED = _compiled(r"^((?:<h>|-<h>)*)\?<h>+(\S.*?)<h>*\n<h>*(:)(?=\s)")
_ALIASED = _compiled(r"(?<![\w.-])<key><q>?\s*:\s*\*([^\s,\[\]{}]+)")
_ANCHOR = re.compile(r"&([^\s,\[\]{}]+)")
_ANCHORED = _compiled(r"[^\[{]*&\0\S*<h>*")
_INDENT = re.compile(r"^(?:\s|[-?:](?:\s|$))+")
_KEYED = _compiled(r"(<marks>(?:<quoted>|[^\s\"'#](?:.*?\S)??))<h>*:(?:<h>+|$)", 0)
_NAMED = _compiled(r"(?:(?:<quoted>|[^\s\"'#:][^:#]*):(?=\s|$))?", 0)
_TEXT = _compiled("<marks><text>", re.DOTALL)
_BLOCK = re.compile(r"(?:^|\s)[|>][-+\d]{0,2}(?:\s+#.*)?\s*$")
_FLOW = _compiled(
    r"<h>*(?:[-?:]<h>+){0,9}(?:<marks>(?:<quoted><h>*:<h>*|[^\s\"'#\[{][^\n#]*?:<h>+))?<marks>(?=[\[{])", 0
)
_TOKEN = _compiled(
    r"(?P<space>\s+|(?:(?<=\s)|(?<![\s\S]))#[^\n]*|\?(?=\s))|(?P<opens>[\[{])|(?P<closes>[\]}])|(?P<comma>,)"
    r"|(?P<string><text>)|(?P<anchor>&[^\s,\[\]{}]*)|(?P<tag>![^\s,\[\]{}]*)|(?P<plain><word>+)|(?P<colon>:)",
    re.DOTALL,
)
_MORE = _compiled(r"\s*(?P<plain><word>+)")  # of a plain value: within it quotes and marks mean nothing
_OPENS = {"]": "[", "}": "{"}
_NAMES, _VALUES = ("name", "key", "env", "variable"), ("value", "default", "content")


def _plain(escape: re.Match[str]) -> str:
    """A letter, digit or mark of a name that was written as an escape needs none, and may only hide a name."""
    code = int(next(filter(None, escape.groups()), "0"), 16)
    letter = chr(code) if 0x20 < code < 0x110000 else ""
    return letter if letter.isalnum() or letter in tuple("-_.:=/@+&?#：") else escape[0]


def _is_secret(key: str) -> bool:
    """Whether a key sounds so, or a part of what may be one in a damaged file; or the name of a value used as one."""
    return any(_IS_SECRET.fullmatch(part) for part in [key, *key.split()])


def _replaced(text: str, spans: Sequence[Span]) -> str:
    shown, at = [], 0
    for begin, end in sorted(spans):
        if begin >= at:
            shown += [text[at:begin], HIDDEN]
        at = max(at, end)
    return "".join(shown) + text[at:]


def _hidden(text: str) -> list[Span]:
    """Where values of secrets stand, beside their keys or below them. They may overlap."""
    found: list[Span] = []
    lines = [span for span in _lines(text, found) if text[slice(*span)].strip()]
    under, number = -1, 0  # deeper than this, all values are hidden
    while number < len(lines):
        begin, end = lines[number]
        line, number = text[begin:end], number + 1
        under = under if _indent(line) > under else -1
        at, depth, deep = _value(line, under >= 0)
        if at == len(line):
            under = depth if under < 0 else under
        elif at >= 0:
            quoted = _TEXT.match(text, begin + at)
            end = max(end, min(quoted.end(), len(text) - 1) if quoted else 0)
            while number < len(lines) and (lines[number][0] < end or deep(text[slice(*lines[number])]) > depth):
                end = max(end, lines[number][1])
                number += 1
            found.append((begin + at, end))
    return found


def _value(line: str, below: bool) -> tuple[int, int, Callable[[str], int]]:
    """Where in a line a value begins that is to be hidden, -1 for none, and how deep lines are at the most that do not
    go on with it. Below the key of a secret all values are hidden."""
    indent = _indent(line)
    keyed = _KEYED.match(line, indent)
    told = _ANCHORED.match(line) or (keyed if keyed and _is_secret(keyed[1]) else None)
    if told:
        value = line[told.end() :]
        return (-1 if _SWITCH.fullmatch(value.strip()) else told.end() + _lead(value)), indent, _indent
    if not below or not line.strip(" ,[]{}\n"):
        return -1, indent, _indent
    named = _NAMED.match(line, indent)
    at = named.end() if named else indent
    item, nameless = line.lstrip().startswith("-"), at == indent
    at += _lead(line[at:])
    depth, deep = (_lead(line), _lead) if item else (indent - nameless, _indent)
    return (at if at < len(line) else -1), depth, deep


def _lead(line: str) -> int:
    return len(line) - len(line.lstrip())


def _indent(line: str) -> int:
    return len(line) - len(_INDENT.sub("", line, 1))


def _lines(text: str, found: list[Span]) -> Iterator[Span]:
    """Where each line begins and ends; one with a collection in brackets where that ends, whose secrets are `found`."""
    begin = inside = unclosed = 0
    while begin < len(text):
        end = text.index("\n", begin)
        first, last = _several(text, begin, end) if begin >= inside else (begin, inside)
        flow = _FLOW.match(text, begin) if begin >= unclosed else None
        if flow:
            limit = last if first <= begin and flow.end() < last else len(text)
            tokens, closed = _tokens(text, flow.end(), limit)
            found += _in_brackets(text, tokens)
            unclosed = closed or limit
            end = text.index("\n", closed - 1) if closed else end
        yield begin, end
        inside, begin = max(inside, last), end + 1


def _several(text: str, begin: int, end: int) -> Span:
    """Where a text of several lines begins and ends that a line opens, below a | or > or in quotes. What is open in it
    ends with it."""
    line = text[begin:end]
    indent = _indent(line)
    keyed = _KEYED.match(line, indent)
    quoted = _TEXT.match(text, begin + (keyed.end() if keyed else indent))
    quoted = quoted if quoted and quoted.end() > end else None
    if not quoted and not _BLOCK.search(line):
        return end, 0
    depth = indent if keyed else len(line[:indent].rstrip()) - 1
    first, last = (begin, quoted.end()) if quoted else (end, len(text))
    while end + 1 < last:
        place, end = end + 1, text.index("\n", end + 1)
        if text[place:end].strip() and _lead(text[place:end]) <= depth:
            return first, place
    return first, last


class _Token(NamedTuple):
    kind: str
    begin: int
    end: int
    home: int  # where the bracket opens in which it stands


def _tokens(text: str, begin: int, limit: int) -> tuple[list[_Token], int | None]:
    """What a collection in brackets, of YAML or JSON, that opens at `begin` consists of, and where it ends: None when
    it does not before `limit`. A bracket that closes none of its kind is text."""
    tokens = [_Token("", begin, begin, -1)]
    homes, place = [-1], begin
    while place < limit:
        more = _MORE.match(text, place, limit) if tokens[-1].kind == "plain" else None
        found = more or _TOKEN.match(text, place, limit)
        if found is None:
            break
        kind, place = str(found.lastgroup), found.end()
        if kind == "closes" and _OPENS[found[0]] != text[homes[-1]]:
            kind = "string"
        if more:
            tokens[-1] = tokens[-1]._replace(end=place)
        elif kind != "space":
            tokens.append(_Token(kind, found.start(), place, homes[-1]))
        if kind == "opens":
            homes.append(found.start())
        elif kind == "closes":
            homes.pop()
            if len(homes) == 1:
                return tokens, place
    limit = begin + len(text[begin:limit].rstrip())
    return [*tokens, _Token("", limit, limit, -1)], None


def _in_brackets(text: str, tokens: list[_Token]) -> Iterator[Span]:
    """Where values of secrets stand. Of a damaged collection one ends later than it should, never sooner."""
    keys = {
        number: text[before.begin : before.end]
        for number, (before, token) in enumerate(zip(tokens, tokens[1:]), 1)
        if token.kind == "colon" and before.kind in ("plain", "string")
    }
    names = (number for number, key in keys.items() if _bare(key) in _NAMES)
    named = {tokens[number].home for number in names if _SOUNDS_SECRET.search(text, *_span(tokens, number, 9))}
    at = 0
    for number, token in enumerate(tokens):
        key = text[token.begin : token.end] if token.kind == "anchor" else keys.get(number, "")
        if token.begin >= at and (_is_secret(key) or (token.home in named and _bare(key) in _VALUES)):
            begin, end = _span(tokens, number, len(tokens))
            if begin < end and not _SWITCH.fullmatch(text, begin, end):
                yield begin, end
                at = end


def _bare(key: str) -> str:
    return key.strip("\"' ").lower()


def _span(tokens: Sequence[_Token], number: int, most: int) -> Span:
    """Where the value stands that follows a token, or as much of it as so many further tokens are."""
    first = last = number + 1
    while tokens[first].kind == "anchor":
        first += 1
    for last in range(first, min(first + most, len(tokens))):
        if tokens[last].kind in ("comma", "closes") and tokens[last].home == tokens[number].home:
            return tokens[first].begin, tokens[last - 1].end
    return tokens[first].begin, tokens[last].end
