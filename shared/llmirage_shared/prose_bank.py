"""The words of synthetic prose: sentence patterns and what may fill them. Plain text, no tokens.

A pattern is a sentence without its full stop; `{slot}` is filled from the topic's list of that name, or from COMMON. The
same slot used twice with a number (`{part}`, `{part2}`) takes two different words. Every word is a common one, so that
usual vocabularies have it as one token; where one has not, the words and patterns that need it are left out.
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
    "measure": _words("latency throughput memory bandwidth performance efficiency capacity cost accuracy"),
    "small": _words("small short simple single local new"),
    "large": _words("large long complex slow full busy"),
    "good": _words("clear simple stable correct safe useful reliable"),
    "often": _words("usually often always normally sometimes"),
    "reason": _words("load time size order traffic demand"),
    "people": _words("users developers readers engineers teams"),
    "period": _words("second minute hour day week month"),
    "number": _words("two three four five ten twenty"),
    "change": _words("change update check test fix improve review"),
    "grows": _words("grows increases changes drops falls"),
    "better": _words("better faster smaller easier cheaper"),
}

TOPICS: Sequence[Topic] = (
    Topic(
        "serving",
        {
            "part": _words("scheduler server router client worker engine cache gateway"),
            "item": _words("request message block token batch response prompt session"),
            "items": _words("requests messages blocks tokens batches responses sessions"),
            "does": _words("handles receives stores sends reads processes checks accepts"),
            "do": _words("handle receive store send read process check accept"),
            "place": _words("queue buffer cache pool memory batch"),
        },
    ),
    Topic(
        "storage",
        {
            "part": _words("database index table cache disk server reader writer"),
            "item": _words("record page row file entry key block transaction"),
            "items": _words("records pages rows files entries keys blocks transactions"),
            "does": _words("stores reads writes updates copies loads checks returns"),
            "do": _words("store read write update copy load check return"),
            "place": _words("table log file index buffer directory"),
        },
    ),
    Topic(
        "network",
        {
            "part": _words("client server router proxy host device service interface"),
            "item": _words("packet connection message address frame request response"),
            "items": _words("packets connections messages addresses frames requests responses"),
            "does": _words("sends receives opens closes accepts routes drops checks"),
            "do": _words("send receive open close accept route drop check"),
            "place": _words("network queue buffer window channel link"),
        },
    ),
    Topic(
        "software",
        {
            "part": _words("function module library class program parser compiler test"),
            "item": _words("value argument object error type name string result"),
            "items": _words("values arguments objects errors types names strings results"),
            "does": _words("returns checks reads creates accepts uses handles converts"),
            "do": _words("return check read create accept use handle convert"),
            "place": _words("list stack module interface configuration code"),
        },
    ),
    Topic(
        "operations",
        {
            "part": _words("team service script job system tool process monitor"),
            "item": _words("task alert report change release build job log"),
            "items": _words("tasks alerts reports changes releases builds jobs logs"),
            "does": _words("reviews starts checks runs tests records reports updates"),
            "do": _words("review start check run test record report update"),
            "place": _words("schedule list plan report log system"),
        },
    ),
)

# Sentences that can open a text.
OPENINGS: Sequence[str] = (
    "The {part} {does} each {item} before the {part2} can use it",
    "The {part} {does} one {item} at a time , so the order never changes",
    "Each {part} {does} its own {items} and keeps a copy in the {place}",
    "When a new {item} arrives , the {part} {does} it and then returns to the {place}",
    "In this design the {part} {does} the {items} while the {part2} waits",
    "A {small} {item} is handled at once , but a {large} one must wait in the {place}",
    "The {part} {often} {does} more than one {item} in a single step",
    "If the {part} is busy , the {part2} will {do} the {item} later",
    "Only one {part} may {do} a given {item} at any time",
    "The {part} and the {part2} share the same {place} , which keeps the {items} in order",
    "Every {item} is written to the {place} first , and the {part} {does} it after that",
    "After the {part} {does} the last {item} , it can close the {place}",
    "To improve {measure} , start with the {part} and measure it under real {reason}",
    "Most of the time is spent in the {part} , not in the {part2}",
    "A {good} first step is to {change} the {part} and look at the {items} again",
    "Before you {change} the {part} , make a copy of the {place}",
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
    "That is why the {part} {does} the {items} in the order in which they arrive",
    # What to do.
    "Keep the {part} {good} , and let the {part2} {do} the rest",
    "You can {change} the {part} without any effect on the {part2}",
    "It helps to {change} one thing at a time and to compare the results",
    "Set the size of the {place} to match the number of {items} you expect",
    "Try a {small} {place} first and make it larger only if {measure} does not suffer",
    "We should also {change} the {part2} , since the {part} depends on it",
    "For {people} , the {good} choice is to let the {part} {do} the {items} for them",
    # What follows, limits, numbers.
    "In practice , about {number} {items} per {period} is a safe limit for one {part}",
    "In our tests the {part} was about {number} times faster with a {large} {place}",
    "The cost is {small} : one more {item} for every {number} that the {part} {does}",
    "The result is a {good} system with {better} {measure} for most {people}",
    "There is one exception : a {large} {item} may need more {reason} than the {part} has",
    "On the other hand , a {large} {place} makes the {part} slow to start",
    "However , this works only when the {part} and the {part2} agree on the {item}",
    "If the {place} is full , the {part} stops and reports an error",
    "When something fails , the {part} tries again after a {small} delay",
    "A {part} that fails does not lose its {items} , since the {place} keeps them",
    "The same idea works for any {part} that has to {do} many {items}",
    "As a result , {people} see {better} {measure} even when the {reason} is high",
    "So far the {part} has been {good} under this kind of {reason}",
    "For example , a {part} with {number} {items} in its {place} can {do} all of them in one {period}",
    "Over a {period} , the {part} will {do} several million {items}",
    "Both ways are correct , but the first one uses less {reason}",
    "At the end of each {period} , the {part} {does} the {items} that are still open",
    "Note that the {place} does not need to be {large} for this to work",
    "In short , the {part} should {do} less work and the {part2} should {do} it earlier",
)
