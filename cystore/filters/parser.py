"""Parses SQL92 expressions as RocketMQ's SelectorParser does, with one difference: text after a complete expression is
an error."""

from __future__ import annotations

import re
from typing import Any

import lark

from cystore.errors import FilterError
from cystore.filters import nodes
from cystore.filters.nodes import DEPTH_MAX, Node, wrong

# RocketMQ's tokens and rules (SelectorParser.jj). NOT binds closer than a comparison: NOT a = 1 is (NOT a) = 1.
GRAMMAR = r"""
start: either
?either: both | either _OR both -> joined_or
?both: equality | both _AND equality -> joined_and
?equality: comparison
    | equality "=" comparison -> equal
    | equality "<>" comparison -> not_equal
    | equality _IS NULL -> is_null
    | equality _IS _NOT NULL -> is_not_null
?comparison: unary
    | comparison ORDER unary -> ordered
    | comparison _BETWEEN unary _AND unary -> between
    | comparison _NOT _BETWEEN unary _AND unary -> not_between
    | comparison _IN "(" TEXT ("," TEXT)* ")" -> within
    | comparison _NOT _IN "(" TEXT ("," TEXT)* ")" -> not_within
?unary: primary
    | "+" unary -> plus
    | _MINUS unary -> negative
    | _NOT unary -> negation
?primary: TEXT -> text
    | WHOLE -> whole
    | REAL -> real
    | (TRUE | FALSE | NULL) -> constant
    | NAME -> name
    | "(" either ")"

_MINUS: "-" | "\ue000"
ORDER: />=|<=|>|<(?!>)/
_NOT.2: /[Nn][Oo][Tt](?![A-Za-z0-9_$])/
_AND.2: /[Aa][Nn][Dd](?![A-Za-z0-9_$])/
_OR.2: /[Oo][Rr](?![A-Za-z0-9_$])/
_BETWEEN.2: /[Bb][Ee][Tt][Ww][Ee][Ee][Nn](?![A-Za-z0-9_$])/
_IN.2: /[Ii][Nn](?![A-Za-z0-9_$])/
_IS.2: /[Ii][Ss](?![A-Za-z0-9_$])/
TRUE.2: /[Tt][Rr][Uu][Ee](?![A-Za-z0-9_$])/
FALSE.2: /[Ff][Aa][Ll][Ss][Ee](?![A-Za-z0-9_$])/
NULL.2: /[Nn][Uu][Ll][Ll](?![A-Za-z0-9_$])/
REAL.2: /[0-9]+\.[0-9]*([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
WHOLE.1: /0|[1-9][0-9]*[lL]?/
NAME.1: /[A-Za-z_$][A-Za-z0-9_$]*/
TEXT.1: /'(''|[^'])*'/
COMMENT.3: /--[^\n\r]*[\n\r]|\/\*[^*]*\*(\*|[^*\/][^*]*\*)*\//
BLANK.1: /[ \t\n\r\f]+/
%ignore COMMENT
%ignore BLANK
"""


class _Build(lark.Transformer):
    """Makes nodes while the parser reads. No method calls itself, however deep the parentheses are."""

    def start(self, parts: list[Node]) -> Node:
        return nodes.truth(parts[0])

    def joined_or(self, parts: list[Node]) -> Node:
        return nodes.joined("or", *parts)

    def joined_and(self, parts: list[Node]) -> Node:
        return nodes.joined("and", *parts)

    def equal(self, parts: list[Node]) -> Node:
        return nodes.equal(*parts)

    def not_equal(self, parts: list[Node]) -> Node:
        return nodes.Not(parts[0].position, nodes.equal(*parts))

    def is_null(self, parts: list[Any]) -> Node:
        null = nodes.Constant(parts[1].start_pos, "null")
        return nodes.Comparison(parts[0].position, "=", parts[0], null)

    def is_not_null(self, parts: list[Any]) -> Node:
        return nodes.Not(parts[0].position, self.is_null(parts))

    def ordered(self, parts: list[Any]) -> Node:
        return nodes.ordered(str(parts[1]), parts[0], parts[2])

    def between(self, parts: list[Node]) -> Node:
        return nodes.between(*parts, is_not=False)

    def not_between(self, parts: list[Node]) -> Node:
        return nodes.between(*parts, is_not=True)

    def within(self, parts: list[Any]) -> Node:
        return nodes.within(parts[0], [_unquoted(text) for text in parts[1:]], is_not=False)

    def not_within(self, parts: list[Any]) -> Node:
        return nodes.within(parts[0], [_unquoted(text) for text in parts[1:]], is_not=True)

    def plus(self, parts: list[Node]) -> Node:
        return parts[0]

    def negative(self, parts: list[Node]) -> Node:
        return nodes.Negative(parts[0].position, parts[0])

    def negation(self, parts: list[Node]) -> Node:
        return nodes.Not(parts[0].position, nodes.truth(parts[0]))

    def text(self, parts: list[lark.Token]) -> Node:
        return nodes.Constant(_at(parts[0]), "text", _unquoted(parts[0]))

    def whole(self, parts: list[lark.Token]) -> Node:
        return nodes.whole_number(str(parts[0]), _at(parts[0]))

    def real(self, parts: list[lark.Token]) -> Node:
        return nodes.real_number(str(parts[0]), _at(parts[0]))

    def constant(self, parts: list[lark.Token]) -> Node:
        return nodes.Constant(_at(parts[0]), str(parts[0]).lower())

    def name(self, parts: list[lark.Token]) -> Node:
        return nodes.Property(_at(parts[0]), str(parts[0]))


def _at(token: lark.Token) -> int:
    return token.start_pos or 0


def _unquoted(token: str) -> str:
    return token[1:-1].replace("''", "'")


# The parts that may contain a minus: texts and comments. Each one goes on to the end if it is not ended, so that no
# character is looked at twice.
_TEXT, _COMMENT = r"'(?:''|[^'])*'?", r"/\*(?:[^*]|\*(?!/))*(?:\*/)?"
_MINUS = "\ue000"  # stands for a minus where no comment can begin; an expression has it only in texts
_PARTS = re.compile(rf"{_TEXT}|{_COMMENT}|--[^\n\r]*(?:[\n\r]|\Z)|{_MINUS}")
_PARTS_OF_LAST_LINE = re.compile(rf"{_TEXT}|{_COMMENT}|[-{_MINUS}]")
_NEXT = re.compile(
    rf"(?P<nests>{_MINUS}|-(?!-)|[Nn][Oo][Tt](?![A-Za-z0-9_$]))"
    rf"|(?P<between>[ \t\n\r\f+(]+|--[^\n\r]*[\n\r]|{_COMMENT})"
    rf"|{_TEXT}|[A-Za-z0-9_$.]+|.",
    re.DOTALL,
)


def _prepared(expression: str) -> str:
    """The expression for the grammar, character by character, in linear time. `--` begins a comment only if the line
    has an end (SelectorParser.jj). Each other one is two signs, but a lexer would look for that end at each of them.
    Raises FilterError."""

    for part in _PARTS.finditer(expression):
        if part[0] == _MINUS:
            raise wrong(f"{nodes.shown(expression[part.start() :])!r} cannot be read", part.start())
        if part[0].startswith("--") and part[0][-1] not in "\n\r":
            return expression[: part.start()] + _last_line(expression, part.start())
    return expression


def _last_line(expression: str, begin: int) -> str:
    """The expression from `begin` on, behind which no line ends, with a mark for each minus."""
    pieces: list[str] = []
    at = begin
    for part in _PARTS_OF_LAST_LINE.finditer(expression, begin):
        if part[0] == _MINUS:
            raise wrong(f"{nodes.shown(expression[part.start() :])!r} cannot be read", part.start())
        if part[0] == "-":
            pieces += expression[at : part.start()], _MINUS
            at = part.end()
    return "".join([*pieces, expression[at:]])


def _check_depth(expression: str) -> None:
    """Raises FilterError if more than DEPTH_MAX signs and NOTs stand before one part: each is a part of its own."""
    depth = 0
    for part in _NEXT.finditer(expression):
        if part["nests"]:
            depth += 1
        elif not part["between"]:
            if depth > DEPTH_MAX:
                raise wrong(f"nested more than {DEPTH_MAX} deep", part.start())
            depth = 0


_parser = lark.Lark(GRAMMAR, parser="lalr", lexer="basic", transformer=_Build())


def parse(expression: str) -> Node:
    """The expression's outermost part. Raises FilterError."""
    prepared = _prepared(expression)
    _check_depth(prepared)
    try:
        parsed = _parser.parse(prepared)
    except lark.exceptions.VisitError as error:
        if isinstance(error.orig_exc, FilterError):
            raise error.orig_exc from None
        raise
    except lark.exceptions.UnexpectedToken as error:
        if error.token.type == "$END":
            raise wrong("the expression ends too early", len(expression)) from None
        at = _at(error.token)
        raise wrong(f"{nodes.shown(expression[at:])!r} is not expected", at) from None
    except lark.exceptions.UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
        raise wrong(f"{nodes.shown(expression[at:])!r} cannot be read", at) from None
    assert isinstance(parsed, Node)
    return parsed
