"""No message of the pages stays English for a Chinese reader."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po
from django.conf import settings

ROOT = Path(settings.BASE_DIR)
CATALOG = ROOT / "dashboard" / "locale" / "zh_Hans" / "LC_MESSAGES" / "django.po"
TEMPLATE_MESSAGE = re.compile(r"""{%\s*translate\s+(?P<quote>['"])(?P<text>.+?)(?P=quote)""")
CODE_MESSAGE = re.compile(r"""(?<![\w.])(?:_|gettext|gettext_lazy)\(\s*(?P<parts>(?:"(?:[^"\\]|\\.)*"\s*)+)[,)]""")
SAME_IN_BOTH = {
    "MFU",
    "HFU",
    "CANN",
    "QKV",
    "API",
    "Loss",
    "Rank",
    "Ranks",
    "Agent",
    "Agents",
    "Dump",
    "Dumps",
    "Kernels",
    "Kernel",
    "Rank %(rank)s",
    "rank %(rank)s",
}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    with CATALOG.open("rb") as file:
        return read_po(file, locale="zh_Hans")


def lead(message_id: str | tuple[str, ...] | list[str]) -> str:
    return message_id if isinstance(message_id, str) else message_id[0]


def test_every_message_is_translated_and_none_is_fuzzy(catalog):
    for message in catalog:
        if not message.id:
            continue
        texts = [message.string] if isinstance(message.string, str) else list(message.string)
        assert texts and all(texts), lead(message.id)
        assert not message.fuzzy, lead(message.id)


def test_translations_keep_the_placeholders(catalog):
    names = re.compile(r"%\(\w+\)[sd]|%[sd]")
    for message in catalog:
        texts = [message.string] if isinstance(message.string, str) else list(message.string)
        for text in texts:
            if message.id:
                assert sorted(names.findall(text)) == sorted(names.findall(lead(message.id))), lead(message.id)


def test_chinese_is_chinese(catalog):
    for message in catalog:
        text = message.string if isinstance(message.string, str) else message.string[0]
        if message.id and lead(message.id) not in SAME_IN_BOTH and re.search(r"[a-z]{4}", lead(message.id)):
            assert re.search(r"[\u3000-\u9fff\uff00-\uffef]", text), lead(message.id)


def test_the_catalog_knows_every_message_of_templates_and_code(catalog):
    known = {lead(message.id) for message in catalog if message.id}
    found = set()
    for path in (ROOT / "templates").rglob("*.html"):
        found |= {match["text"] for match in TEMPLATE_MESSAGE.finditer(path.read_text(encoding="utf-8"))}
    for path in (ROOT / "dashboard").rglob("*.py"):
        if "migrations" in path.parts:
            continue
        for match in CODE_MESSAGE.finditer(path.read_text(encoding="utf-8")):
            found.add("".join(re.findall(r'"((?:[^"\\]|\\.)*)"', match["parts"])).replace('\\"', '"'))
    assert found - known == set()


def test_template_blocks_are_known_too(catalog):
    known = {lead(message.id).strip() for message in catalog if message.id}
    block = re.compile(r"{%\s*blocktranslate[^%]*%}(.*?)(?:{%\s*plural\s*%}.*?)?{%\s*endblocktranslate\s*%}", re.S)
    for path in (ROOT / "templates").rglob("*.html"):
        for match in block.finditer(path.read_text(encoding="utf-8")):
            text = re.sub(r"{{\s*(\w+)\s*}}", r"%(\1)s", match[1].replace("%", "%%")).strip()
            assert text in known or text.replace("%%", "%") in known, f"{path.name}: {text}"
