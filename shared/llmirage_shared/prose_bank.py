"""The words of synthetic prose: sentence patterns and their slots. Plain text, no tokens.

A pattern is a sentence without its full stop; `{slot}` is filled from the topic's list of that name, or from COMMON. The
same slot used twice with a number (`{part}`, `{part2}`) takes two different words. Every word is a common one, so that
usual vocabularies have it as one token; words that a vocabulary splits, and patterns that need them, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Topic:
    """A subject. slots: name -> its words."""

    name: str
    slots: Mapping[str, Sequence[str]]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


COMMON: Mapping[str, Sequence[str]] = {
    "measure": _words("latency performance efficiency capacity speed"),
    "pressure": _words("load traffic demand"),
    "resource": _words("memory time space bandwidth"),
    "small": _words("small short simple single"),
    "large": _words("large long complex"),
    "helpful": _words("good useful simple safe"),
    "steady": _words("stable reliable"),
    "often": _words("usually often always normally sometimes"),
    "people": _words("users developers readers administrators customers"),
    "period": _words("second minute hour day week month"),
    "number": _words("two three four five ten"),
    "change": _words("change update test fix improve"),
    "grows": _words("grows increases changes drops"),
    "better": _words("better faster easier"),
}

TOPICS: Sequence[Topic] = (
    Topic(
        "serving",
        {
            "part": _words("scheduler server router client worker engine gateway"),
            "item": _words("request message block token response prompt session"),
            "items": _words("requests messages blocks tokens responses sessions"),
            "does": _words("handles receives stores sends reads processes checks accepts"),
            "do": _words("handle receive store send read process check accept"),
            "place": _words("queue buffer cache pool"),
        },
    ),
    Topic(
        "storage",
        {
            "part": _words("database index server reader writer controller"),
            "item": _words("record page row file entry key block transaction"),
            "items": _words("records pages rows files entries keys blocks transactions"),
            "does": _words("stores reads writes updates copies loads checks returns"),
            "do": _words("store read write update copy load check return"),
            "place": _words("table log file buffer cache directory"),
        },
    ),
    Topic(
        "network",
        {
            "part": _words("client server router proxy host device service"),
            "item": _words("packet message frame request response"),
            "items": _words("packets messages frames requests responses"),
            "does": _words("sends receives accepts drops checks reads"),
            "do": _words("send receive accept drop check read"),
            "place": _words("queue buffer window cache"),
        },
    ),
    Topic(
        "software",
        {
            "part": _words("function module library class program parser compiler"),
            "item": _words("value argument object error type name string result"),
            "items": _words("values arguments objects errors types names strings results"),
            "does": _words("returns checks reads creates accepts uses handles converts"),
            "do": _words("return check read create accept use handle convert"),
            "place": _words("list stack buffer cache table"),
        },
    ),
    Topic(
        "operations",
        {
            "part": _words("team script tool service monitor manager"),
            "item": _words("task report change release build job"),
            "items": _words("tasks reports changes releases builds jobs"),
            "does": _words("checks records updates reads tests handles"),
            "do": _words("check record update read test handle"),
            "place": _words("queue list log schedule"),
        },
    ),
)

# Sentences that open a text.
OPENINGS: Sequence[str] = (
    "The {part} {does} each {item} before the {part2} can use it",
    "The {part} {does} one {item} at a time , so the order never changes",
    "Each {part} {does} its own {items} and keeps a copy in the {place}",
    "When a new {item} comes in , the {part} {does} it and then returns to the {place}",
    "In this design the {part} {does} the {items} while the {part2} waits",
    "A {small} {item} is handled at once , but a {large} one must wait in the {place}",
    "The {part} {often} {does} more than one {item} in a single step",
    "If the {part} is busy , the {part2} will {do} the {item} later",
    "Only one {part} may {do} a given {item} at any time",
    "The {part} and the {part2} share the same {place} , which keeps the {items} in order",
    "Every {item} is written to the {place} first , and the {part} {does} it after that",
    "To improve {measure} , start with the {part} and measure it under real {pressure}",
    "Most of the time is spent in the {part} , not in the {part2}",
    "A {helpful} first step is to {change} the {part} and look at the {items} again",
    "Before you change the {part} , make a copy of the {place}",
    "There are {number} ways to {do} the {items} , and each of them has a cost",
    "It depends on how many {items} the {part} has to {do} in one {period}",
    "The short answer is that the {part} should {do} the {items} and the {part2} should not",
    "You can think of the {part} as a program that {does} {items} from one {place} and never stops",
    "The problem is easier to see if we follow one {item} from the {part} to the {part2}",
)

# Sentences that follow others.
FOLLOWING: Sequence[str] = (
    # Why.
    "This matters because the {measure} of the {part} depends on the number of {items}",
    "The reason is simple : the {part} must {do} every {item} in the {place}",
    "As the number of {items} {grows} , the {measure} of the {part} {grows} with it",
    "Without this rule , the {part} could {do} the same {item} more than once",
    "It is {better} to {do} the {items} in one pass than to {do} them one by one",
    "The {place} is limited , so the {part} must choose which {items} to keep",
    "Because the {items} are independent , the {part} can {do} them in parallel",
    "That is why the {part} {does} the {items} in the order in which they appear",
    "The {part} cannot know in advance how {large} the next {item} will be",
    "A {large} {item} takes more {resource} , and the {part2} has to wait for it",
    # What to do.
    "Keep the {part} {steady} , and let the {part2} {do} the rest",
    "You can {change} the {part} without any effect on the {part2}",
    "It helps to {change} one thing at a time and to compare the results",
    "Set the size of the {place} to match the number of {items} you expect",
    "Start with a small {place} and make it larger only if the {measure} is too low",
    "We should also {change} the {part2} , since the {part} depends on it",
    "For most {people} , the best choice is to let the {part} {do} the {items}",
    "Write down what you expect before you run the test , and then compare",
    "If you are not sure , ask the {part} how many {items} are in the {place}",
    "Once that works , you can add a second {part} and share the {pressure} between them",
    # What follows, limits, numbers.
    "In practice , about {number} hundred {items} per {period} is a safe limit for one {part}",
    "In our tests the {part} was about {number} times faster with a larger {place}",
    "The cost is small : one more {item} for every {number} that the {part} {does}",
    "The result is a {steady} system with better {measure} for most {people}",
    "There is one exception : a {large} {item} may need more {resource} than the {part} has",
    "On the other hand , a large {place} makes the {part} slow to start",
    "However , this works only when the {part} and the {part2} agree on the {item}",
    "If the {place} is full , the {part} stops and reports an error",
    "When something fails , the {part} tries again after a short delay",
    "A {part} that fails does not lose its {items} , since the {place} keeps them",
    "The same idea works for any {part} that has to {do} many {items}",
    "As a result , {people} see better {measure} even when the {pressure} is high",
    "So far the {part} has been {steady} under this kind of {pressure}",
    "For example , a {part} with {number} {items} in its {place} can {do} all of them in one {period}",
    "Over a {period} , the {part} will {do} several thousand {items}",
    "Both ways are correct , but the first one uses less {resource}",
    "At the end of each {period} , the {part} {does} the {items} that are still open",
    "Note that the {place} does not need to be large for this to work",
    "In short , the {part} should {do} less work and the {part2} should {do} it earlier",
    "After the {part} {does} the last {item} , it can close the {place}",
    "The {part2} sees only the {items} that the {part} has already put in the {place}",
    "This is the usual case , and it needs no special care",
    "It may look like a small change , but {people} will see the difference",
)


def first_words() -> list[str]:
    """Every word that can begin a sentence."""
    return sorted({pattern.split()[0] for pattern in (*OPENINGS, *FOLLOWING)} | {"An"})


def words() -> list[str]:
    """Every word that can stand in a sentence."""
    found = {word for pattern in (*OPENINGS, *FOLLOWING) for word in pattern.split() if word.isalpha()} | {"an", "An"}
    for slots in (COMMON, *(topic.slots for topic in TOPICS)):
        found.update(word for choices in slots.values() for word in choices)
    return sorted(found)
