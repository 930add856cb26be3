"""Train the tokenizer that ships with llmirage and write shared/llmirage_shared/data/merges.txt.

    python tools/build_tokenizer.py            download what is missing, train, check, write
    python tools/build_tokenizer.py --check    only check the shipped file against held-out text

The text comes from the Debian 12 packages of SOURCES, each at one version and under a free licence; nothing of it is
shipped, only which character pairs are frequent. Needs `apt-get` and `dpkg-deb` on Debian 12
and about 1 GB of disk; takes a few minutes. The same packages give the same file: files are read in a fixed order, and
counting pairs does not depend on the number of threads. One file in 25 is held out of training, to check the targets on.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import html
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import trainers

from llmirage_shared import synthetic_text, tokenizer_loader
from llmirage_shared.prompt_encoder import SPECIAL_TOKENS
from llmirage_shared.tokenizer_loader import embedded
from llmirage_shared.tokens import Tokenizer, byte_alphabet

VOCABULARY = 32_000
LONGEST_TOKEN_CHARACTERS = 24
LONGEST_TEXT_CHARACTERS = 60_000  # of one file among many, so that no single one weighs too much
MERGES_FILE = Path(__file__).parents[1] / "shared/llmirage_shared/data/merges.txt"

# Targets on held-out text, in characters per token.
TARGETS = {"english": 4.0, "code": 3.0, "chinese": 1.2}
MOST_FILE_BYTES = 2_000_000
MOST_EMOJI_TOKENS = 2
COMMON_EMOJI = "😀😂🤣😊😍😘😎🤔😭😡👍👎👏🙏💪🔥🎉✅❌⭐🚀💡📌📎🐛"


def read_plain(raw: bytes) -> str:
    return raw.decode("utf-8", "ignore")


def read_html(raw: bytes) -> str:
    """The text of a page: markup out, white space as a reader sees it, preformatted blocks as they are."""
    page = re.sub(r"(?is)<(script|style|head)\b.*?</\1>", "", read_plain(raw))
    out = []
    for i, part in enumerate(re.split(r"(?is)<pre\b[^>]*>(.*?)</pre>", page)):
        if i % 2 == 0:
            part = re.sub(r"\s+", " ", part)
            part = re.sub(
                r"(?i)</?(p|div|li|ul|ol|tr|h[1-6]|br|table|dt|dd|dl|section|title|item|steps)\b[^>]*>", "\n", part
            )
        part = html.unescape(re.sub(r"<[^>]*>", "", part))
        out.append(part if i % 2 else re.sub(r" *\n[ \n]*", "\n", part))
    return "".join(out)


def read_roff(raw: bytes) -> str:
    """A manual page: requests and font changes out, their arguments kept."""
    text = re.sub(r"(?m)^[.'][ \t]*\\\".*$", "", read_plain(raw))
    text = re.sub(r"(?m)^[.'][ \t]*[A-Za-z]{1,3}\b ?", "", text)
    return re.sub(r"\\f(?:[A-Z]|\([A-Z]{2})|\\&", "", text).replace("\\-", "-")


def read_wordnet(raw: bytes) -> str:
    """The definitions and example sentences of a WordNet data file."""
    return "\n".join(line.partition("| ")[2].strip() for line in read_plain(raw).splitlines() if "| " in line)


def read_r_data(raw: bytes) -> str:
    """The strings of an R lazy-load database: (length, zlib stream) entries of serialised character vectors."""
    lines: list[str] = []
    while len(raw) > 4:
        stream = zlib.decompressobj()
        data = stream.decompress(raw[4:])
        raw = stream.unused_data
        at = 0
        # A CHARSXP: flags 00 04 00 09 (UTF-8 or ASCII), then its length, then its bytes.
        for match in re.finditer(rb"\x00[\x04\x00]?[\x00-\xff]?\x00?\x09(?=[\x00-\xff]{4})", data):
            length = int.from_bytes(data[match.end() : match.end() + 4], "big")
            if match.start() >= at and 0 <= length < 500:
                at = match.end() + 4 + length
                lines.append(read_plain(data[match.end() + 4 : at]))
    return "\n".join(lines)


def read_emoji(raw: bytes) -> str:
    """Each emoji that is one character, many times over, since the list names it only once."""
    found = re.findall(r"(?m)^([0-9A-F]{4,5})(?: FE0F)? +; fully-qualified", read_plain(raw))
    return "\n".join(chr(int(code, 16)) for code in found) + "\n" + "\n".join([COMMON_EMOJI.replace("", " ")] * 3)


Reader = Callable[[bytes], str]


@dataclass(frozen=True)
class Source:
    """Files of one Debian package. most_characters: how much of them is read; weight: how often."""

    category: str
    package: str
    version: str
    licence: str
    files: str
    read: Reader
    most_characters: int
    weight: int = 1


def _handbook(category: str, language: str, most_characters: int) -> Source:
    files = f"usr/share/doc/debian-handbook/html/{language}/*.html"
    return Source(category, "debian-handbook", "11.20220922", "GPL-2+ or CC-BY-SA-3.0", files, read_html, most_characters)


DOC = "usr/share/doc"
SOURCES = (
    # English: novels, definitions, manuals.
    Source("english", "r-cran-janeaustenr", "1.0.0-1", "public domain texts", "**/data/Rdata.rdb", read_r_data, 4_000_000),
    Source("english", "wordnet-base", "1:3.0-37", "WordNet 3.0", "**/data.*", read_wordnet, 5_000_000),
    Source("english", "dict-jargon", "4.4.7-3.1", "public domain", "**/*.dz", read_plain, 1_500_000),
    Source("english", "anarchism", "15.3-3", "GPL-2, GFDL", f"{DOC}/**/*.html", read_html, 3_000_000),
    Source("english", "sqlite3-doc", "3.40.1-2+deb12u2", "public domain", f"{DOC}/**/*.html", read_html, 3_000_000),
    Source("english", "postgresql-doc-15", "15.20-0+deb12u1", "PostgreSQL", f"{DOC}/**/*.html", read_html, 3_000_000),
    Source("english", "python-django-doc", "3:3.2.25-0+deb12u7", "BSD-3", f"{DOC}/**/*.html", read_html, 3_000_000),
    Source("english", "python3.11-doc", "3.11.2-6+deb12u9", "PSF", f"{DOC}/**/*.html", read_html, 5_000_000),
    Source("english", "apache2-doc", "2.4.71-1~deb12u1", "Apache-2.0", "**/en/**/*.html", read_html, 2_000_000),
    Source("english", "nodejs-doc", "18.20.4+dfsg-1~deb12u3", "MIT", f"{DOC}/**/*.html", read_html, 1_500_000),
    Source("english", "linux-doc-6.1", "6.1.192-2", "GPL-2", f"{DOC}/**/*.rst.gz", read_plain, 3_000_000),
    Source("english", "gnome-user-docs", "43.0-2", "CC-BY-SA-3.0", "**/help/C/**/*.page", read_html, 1_500_000),
    Source("english", "debian-reference-en", "2.100", "GPL-2+", "**/*.html", read_html, 1_000_000),
    Source("english", "git-doc", "1:2.39.5-0+deb12u3", "GPL-2", f"{DOC}/**/*.html", read_html, 1_500_000),
    Source("english", "manpages-dev", "6.03-2", "GPL-2+, BSD, public domain", "**/*.gz", read_roff, 1_000_000),
    _handbook("english", "en-US", 2_000_000),
    # Code.
    Source("code", "libpython3.11-stdlib", "3.11.2-6+deb12u9", "PSF", "**/*.py", read_plain, 7_000_000),
    Source("code", "golang-1.19-src", "1.19.8-2", "BSD-3", "**/*.go", read_plain, 5_000_000),
    Source("code", "node-lodash", "4.17.21+dfsg+~cs8.31.198.20210220-9+deb12u1", "MIT", "**/*.js", read_plain, 2_500_000),
    Source("code", "node-typescript", "4.8.4+ds1-2", "Apache-2.0", "**/lib/lib.*.d.ts", read_plain, 1_500_000),
    Source("code", "linux-libc-dev", "6.1.192-2", "GPL-2 with syscall note", "**/*.h", read_plain, 2_000_000),
    Source("code", "python-django-doc", "3:3.2.25-0+deb12u7", "BSD-3", f"{DOC}/**/ref/**/*.html", read_plain, 700_000),
    # Chinese.
    Source("chinese", "libreoffice-help-zh-cn", "4:7.4.7-1+deb12u14", "MPL-2.0", "**/text/**/*.html", read_html, 2_000_000),
    Source("chinese", "debian-reference-zh-cn", "2.100", "GPL-2+", "**/*.html", read_html, 700_000),
    Source("chinese", "manpages-zh", "1.6.4.0-1", "GFDL-1.2+, GPL-2+", "**/zh_CN/**/*.gz", read_roff, 1_500_000),
    Source("chinese", "gnome-user-docs", "43.0-2", "CC-BY-SA-3.0", "**/help/zh_CN/**/*.page", read_html, 700_000),
    _handbook("chinese", "zh-CN", 700_000),
    # Other languages, one book in each.
    *(_handbook("other", language, 500_000) for language in ("de-DE", "es-ES", "fr-FR", "ja-JP", "ko-KR", "pt-BR", "ru-RU")),
    Source("emoji", "unicode-data", "15.0.0-1", "Unicode", "**/emoji-test.txt", read_emoji, 100_000, weight=60),
)


def fetch(source: Source, work: Path) -> Path:
    """The unpacked package. Raises SystemExit when apt cannot give exactly that version."""
    unpacked = work / f"{source.package}_{source.version.replace(':', '%3a')}"
    if not unpacked.exists():
        wanted = f"{source.package}={source.version}"
        print(f"downloading {wanted}", file=sys.stderr)
        before = set(work.glob("*.deb"))
        if subprocess.run(["apt-get", "download", "-q", wanted], cwd=work, stdout=subprocess.DEVNULL).returncode:
            raise SystemExit(f"apt-get cannot download {wanted}; versions that left the mirrors are on snapshot.debian.org")
        (archive,) = set(work.glob("*.deb")) - before
        part = work / f"{unpacked.name}.part"
        subprocess.run(["dpkg-deb", "-x", archive, part], check=True)
        part.rename(unpacked)
        archive.unlink()
    return unpacked


def texts(source: Source, work: Path, held_out: bool) -> Iterator[str]:
    """The source's files, in an order that their names decide, up to its share."""
    root = fetch(source, work)

    def digest(path: Path) -> str:
        return hashlib.sha256(str(path.relative_to(root)).encode()).hexdigest()

    left = source.most_characters
    paths = sorted((path for path in root.glob(source.files) if path.is_file() and not path.is_symlink()), key=digest)
    for path in paths:
        if left <= 0:
            return
        among_many = len(paths) > 5
        if held_out != (among_many and int(digest(path), 16) % 25 == 0):
            continue
        raw = path.read_bytes()
        text = source.read(gzip.decompress(raw) if path.suffix in (".gz", ".dz") else raw)
        text = text[: min(left, LONGEST_TEXT_CHARACTERS) if among_many else left]
        left -= len(text)
        for _ in range(source.weight):
            yield text


def train(work: Path) -> list[tuple[str, str]]:
    """The merges, best first. Raises SystemExit when a source has no such files."""
    backend = tokenizer_loader.embedded_backend([])
    corpus = []
    for source in SOURCES:
        part = list(texts(source, work, held_out=False))
        print(
            f"{source.category:8} {source.package:24} {len(part):6} files {sum(map(len, part)):10,} characters",
            file=sys.stderr,
        )
        if not part:
            raise SystemExit(f"{source.package} {source.version}: no file matches {source.files}")
        corpus += part
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL_TOKENS),
        initial_alphabet=byte_alphabet(),
        max_token_length=LONGEST_TOKEN_CHARACTERS,
        show_progress=False,
    )
    backend.train_from_iterator(corpus, trainer)
    return [(left, right) for left, right in json.loads(backend.to_str())["model"]["merges"]]


def check(tokenizer: Tokenizer, work: Path) -> list[str]:
    """What falls short of the targets, one line each."""
    faults = []
    for category, least in TARGETS.items():
        characters = tokens = 0
        for source in SOURCES:
            if source.category == category:
                for text in texts(source, work, held_out=True):
                    ids = tokenizer.encode(text)
                    if tokenizer.decode(ids) != text:
                        faults.append(f"a text of {source.package} does not survive encoding and decoding")
                    characters, tokens = characters + len(text), tokens + len(ids)
        rate = characters / max(tokens, 1)
        print(f"{category}: {rate:.2f} characters per token on {characters:,} held-out characters (target {least})")
        if rate < least:
            faults.append(f"{category}: {rate:.2f} characters per token, fewer than {least}")
    emoji = max(len(tokenizer.encode(character)) for character in COMMON_EMOJI)
    print(f"common emoji: at most {emoji} tokens each (target {MOST_EMOJI_TOKENS})")
    if emoji > MOST_EMOJI_TOKENS:
        faults.append(f"a common emoji takes {emoji} tokens, more than {MOST_EMOJI_TOKENS}")
    words = [*synthetic_text.bank_first_words(), *(" " + word for word in synthetic_text.bank_words())]
    split = [word for word in words if len(tokenizer.encode(word)) != 1]
    print(f"words of the prose bank that are more than one token: {', '.join(split) or 'none'}")
    if split:
        faults.append(f"{len(split)} words of the prose bank are more than one token")
    print(f"file: {MERGES_FILE.stat().st_size:,} bytes, {tokenizer.vocab_size:,} tokens")
    if MERGES_FILE.stat().st_size >= MOST_FILE_BYTES:
        faults.append(f"the file is not under {MOST_FILE_BYTES:,} bytes")
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description="Train or check the embedded tokenizer.")
    parser.add_argument("--check", action="store_true", help="check the shipped file, do not train")
    parser.add_argument("--work", type=Path, default=Path("build/tokenizer"), help="where packages are unpacked")
    arguments = parser.parse_args()
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    if not arguments.check:
        merges = train(work)
        MERGES_FILE.write_text("".join(f"{left} {right}\n" for left, right in merges), "utf-8", newline="\n")
    print(f"sha256 {hashlib.sha256(MERGES_FILE.read_bytes()).hexdigest()}")
    faults = check(embedded(), work)
    for fault in faults:
        print(f"fault: {fault}", file=sys.stderr)
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
