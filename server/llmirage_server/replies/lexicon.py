"""Words: those that say nothing of what a tool does, and what people say when they want what a tool's name speaks of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_WORD = re.compile(r"[^\W\d_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


EMPTY = word_set(
    "a an and any are as at be by can could current currently do does did for from given has have he hey hi how i if in "
    "into is "
    "it its just let me more most my new no not now of off on or our out over please provide return returns s she should "
    "so some "
    "t than that the their them then there these they this those to today tool tools tomorrow up used using value want "
    "was we "
    "were what when where which who whose why will with would you your yours function based one two three all about also "
    "m re ve "
    "ll don d am given specified between per via etc e g such whether each every other useful helps assistant "
    "ai model "
    "information info data details result results output input need needs like good best thing things mcp api server"
)  # fmt: skip
_SAID_AS: Mapping[str, str] = {
    "weather": "tiempo clima temps météo wetter meteo tempo 天气 天気 temperature forecast rain raining rainy sunny snow "
               "snowing wind windy umbrella hot cold warm humidity "
               "degrees jacket",
    "forecast": "weather rain sunny temperature umbrella",
    "temperature": "weather hot cold warm degrees",
    "time": "clock hour oclock timezone",
    "clock": "time hour",
    "news": "headlines headline",
    "web": "online internet google",
    "email": "mail inbox emails",
    "mail": "email inbox",
    "message": "text sms dm slack chat",
    "sms": "text message",
    "slack": "channel message",
    "stock": "share shares ticker trading stocks nasdaq",
    "quote": "stock share price",
    "price": "cost costs much expensive",
    "exchange": "convert currency euros dollars eur usd yen pounds",
    "currency": "convert exchange euros dollars eur usd gbp yen pounds",
    "unit": "convert miles kilometers celsius fahrenheit pounds kilograms feet meters",
    "convert": "conversion",
    "translate": "translation french german spanish italian japanese chinese portuguese",
    "translation": "translate",
    "flight": "fly flights plane airline airfare",
    "hotel": "hotels room stay accommodation",
    "restaurant": "eat dinner lunch food restaurants table",
    "capital": "capital",
    "population": "people inhabitants",
    "file": "document readme path",
    "directory": "folder files directories folders",
    "folder": "directory files",
    "files": "folder directory file",
    "execute": "command",
    "python": "code script plot",
    "code": "codebase repository source program script",
    "reminder": "remind remember",
    "alarm": "wake",
    "todo": "task todos tasks",
    "task": "todo todos tasks",
    "database": "sql table tables rows records customers orders employees sales",
    "sql": "database query table tables rows records customers orders employees sales select",
    "query": "database records rows tables",
    "transaction": "spend spent paid payment bought purchases",
    "calendar": "meeting meetings appointment event events schedule agenda",
    "event": "meeting appointment calendar lunch",
    "meeting": "call appointment calendar event",
    "appointment": "meeting doctor dentist",
    "contact": "phone number address",
    "order": "package delivery shipment orders",
    "shipping": "package delivery shipment",
    "tracking": "package delivery shipment",
    "direction": "route drive driving navigate way",
    "route": "directions drive driving",
    "map": "directions distance route far",
    "distance": "far",
    "image": "picture photo drawing draw illustration painting",
    "movie": "film films movies watch",
    "music": "song play songs track",
    "play": "song music track listen",
    "light": "lights lamp lamps",
    "url": "website page site link webpage",
    "webpage": "website page site url link",
    "page": "website url site link",
    "fetch": "url",
    "scrape": "website page site url",
    "issue": "bug ticket issues",
    "ticket": "issue bug",
    "pull": "pr",
    "recipe": "cook dish meal recipes",
    "joke": "jokes funny",
    "random": "dice roll pick",
    "dice": "roll dice",
    "grep": "usages occurrences references defined todo codebase pattern",
    "knowledge": "policy documentation docs handbook manual",
    "document": "documents docs documentation pdf",
    "policy": "policies allowed",
    "summarize": "summary summarise summarize",
    # what desks and specialists are there for
    "billing": "invoice charge charged bill payment paid refund subscription card",
    "refund": "money refunds return returned reimburse reimbursed refunded",
    "support": "error crash crashes broken bug problem login password help working issue",
    "technical": "error crash crashes broken bug problem login password working install",
    "sales": "buy purchase pricing plan plans upgrade quote demo discount cost",
    "history": "war president century king queen revolution ancient empire historical year battle",
    "math": "solve equation algebra calculus sum plus minus times divided integral derivative",
    "science": "physics chemistry biology atom molecule energy planet",
    "travel": "trip flight hotel vacation holiday",
    "booking": "reservation flight hotel seat room",
    "seat": "seats window aisle",
    "legal": "contract law lawyer liability",
    "faq": "policy baggage bag wifi allowed",
    "hr": "vacation payroll leave salary",
    "research": "find who latest gdp news search look investigate",
    "spanish": "español espanol hola",
    "french": "français bonjour",
    "german": "deutsch",
}  # fmt: skip


def stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word[: -len(ending)]
    if word.endswith("s") and len(word) == 4 and not word.endswith("ss"):
        return word[:-1]
    return word


def split_words(text: str) -> list[str]:
    """The words of a text or a name, in lower case: getWeather, get-weather, mcp__get_weather."""
    return [word.lower() for word in _WORD.findall(_CAMEL.sub(" ", text))]


def meaning(words: Iterable[str]) -> set[str]:
    """The stems of those words that carry meaning."""
    return {stem(word) for word in words if word not in EMPTY and len(word) > 1}


def said_as(stems: Iterable[str]) -> set[str]:
    """The stems, and all that people may say for them."""
    return {said for word in stems for said in (word, *_STEMS.get(word, ()))}


_STEMS = {stem(key): {stem(word) for word in words.split()} for key, words in _SAID_AS.items()}

# Words that are frequent in one language and rare or absent in English.
_LANGUAGES: Mapping[str, tuple[str, frozenset[str]]] = {
    "spanish": ("¿¡ñ", word_set("hola cómo estás está qué por para gracias buenos días quiero puedes necesito ayuda "
                                "dónde usted muy el los las una")),
    "french": ("çœ", word_set("bonjour comment vous merci je suis est-ce où salut aide voulez veux le les des une avec "
                              "pour quel quelle")),
    "german": ("ß", word_set("hallo wie geht ich bin ist danke bitte und nicht der das können möchte guten tag hilfe wo")),
    "italian": ("", word_set("ciao come stai grazie buongiorno sono vorrei dove perché aiuto il gli che")),
    "portuguese": ("ãõ", word_set("olá obrigado você como está bom dia preciso ajuda onde não uma")),
}  # fmt: skip
_SCRIPTS = (("japanese", re.compile(r"[぀-ヿ]")), ("korean", re.compile(r"[가-힣]")), ("chinese", re.compile(r"[一-鿿]")),
            ("russian", re.compile(r"[а-яА-Я]{3}")), ("arabic", re.compile(r"[؀-ۿ]{2}")))  # fmt: skip


def language_of(text: str) -> str | None:
    """The language a text is in, if it is one of a few and not English."""
    for name, script in _SCRIPTS:
        if script.search(text):
            return name
    words = re.findall(r"[^\W\d_]+", text.lower())
    counts = {
        name: 2 * any(letter in text for letter in letters) + sum([word in known for word in words])
        for name, (letters, known) in _LANGUAGES.items()
    }
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] >= min(2, max(1, len(words))) else None
