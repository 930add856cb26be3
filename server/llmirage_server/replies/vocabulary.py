"""Words and marks that rules look for in requests: common verbs, words that say nothing, code and quotations."""

from __future__ import annotations

import re

_MARKED = r"```(?:\w*\n)?(.*?)```(?!\w)|(?<!`)`([^`\n]+)`(?!`)"
QUOTED = re.compile(_MARKED + r"|\"([^\"\n]*)\"|“([^”\n]*)”|«([^»\n]*)»|「([^」\n]*)」|"
                    r"(?<!\w)['‘]([^'’\n]+)['’](?!\w)", re.DOTALL)  # fmt: skip
CODE = re.compile(_MARKED, re.DOTALL)


def inside(match: re.Match[str]) -> str:
    """Return the text in the quotation marks that QUOTED matches."""
    return next(group for group in match.groups() if group is not None)


def word_set(words: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(words.split())


# Words that say nothing of what a tool does.
EMPTY_WORDS = word_set(
    "a about all also am an and any are as at be been but by can could did do does each every first for from function "
    "given had has have he hello her here hey hi him his how i if in into is it its just know let like may me might "
    "must my need no nor not now of ok okay on one or our over please return returns shall she should so some tell "
    "than thank thanks that the their them then there these they this those to tool using want was we were what when "
    "where which who whom whose why will with would yes you your"
)
# Verbs that tools of every kind have in their names.
COMMON_VERBS = word_set(
    "add apply ask book build call change check close compute create delete display download edit execute extract fetch "
    "find generate get give insert list load look lookup make move open perform play post print provide put query read "
    "remove reply retrieve run save search see send set show start stop submit update upload use view write"
)
HIDDEN = "\x00"  # stands for each character of a tool's name in the text of its arguments
