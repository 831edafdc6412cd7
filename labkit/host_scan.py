"""A small scanner for .cu files: tokens, brackets, scopes, declarations: all that host.py knows of C++.

It sees what the host compiler sees: no comments, nothing under ``#ifdef __CUDACC__`` or ``__CUDA_ARCH__``.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class HostBackendError(RuntimeError):
    """The host backend cannot run this source; says where and why: ``gelu.cu:41: ...``."""


class Token(NamedTuple):
    kind: str  # name, number, string, sign; if, else, endif (conditionals whose condition is not known here)
    text: str
    start: int
    directive: int  # 0, or the number of the preprocessor directive it stands in

    @property
    def end(self) -> int:
        return self.start + len(self.text)


_TOKEN = re.compile(
    r"""(?P<space>\s+|\\\n)
      | (?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)
      | (?P<string>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"
                  |(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"|(?:u8|[uUL])?'(?:\\.|[^'\\\n])+')
      | (?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<sign>::|->|.)""",
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(?P<word>\w*)(?P<rest>(?:/\*.*?\*/|\\\n|[^\n])*)", re.DOTALL)
PAIRS = {"(": ")", "[": "]", "{": "}"}
_UNDEFINED = ("__CUDACC__", "__CUDA_ARCH__")


def _condition(word: str, rest: str) -> bool | None:
    """The truth of an #if, #ifdef, #ifndef or #elif, or None where only the compiler knows."""
    rest = re.sub(r"/\*.*?\*/|//.*|\\\n", " ", rest, flags=re.DOTALL).strip()
    if word in ("ifdef", "ifndef"):
        rest = f"defined({rest})" if word == "ifdef" else f"!defined({rest})"
    if re.fullmatch(r"[01]", rest):
        return rest == "1"
    first = re.match(r"(!?)\s*defined\s*\(?\s*(\w+)\s*\)?\s*(&&.*|)$", rest)
    if not first or "||" in rest:
        return None
    negated, name, more = first.groups()
    if name in _UNDEFINED:
        value = bool(negated)
    elif name == "CUDA_HOST_BACKEND":
        value = not negated
    else:
        return None
    return None if value and more else value


def tokens_of(source: str) -> list[Token]:
    """The tokens that the host compiler can come to see: no comments, nothing under ``#ifdef __CUDACC__``."""
    found: list[Token] = []
    # One entry an open conditional: [this branch's truth or None, whether a branch before it was known true].
    open_ifs: list[list] = []
    at, directive, directive_end = 0, 0, -1
    line_start = True
    while at < len(source):
        if line_start and at >= directive_end and (match := _DIRECTIVE.match(source, at)):
            word, rest = match["word"], match["rest"]
            if word in ("if", "ifdef", "ifndef"):
                open_ifs.append([_condition(word, rest), False])
                if open_ifs[-1][0] is None:
                    found.append(Token("if", "", at, 0))
                at = match.end()
            elif word in ("elif", "else") and open_ifs:
                state = open_ifs[-1]
                state[1] = state[1] or state[0] is True
                if state[0] is None:
                    found.append(Token("else", "", at, 0))
                    state[0] = None
                else:
                    state[0] = not state[1] and (word == "else" or _condition("if", rest) is not False)
                at = match.end()
            elif word == "endif" and open_ifs:
                if open_ifs.pop()[0] is None:
                    found.append(Token("endif", "", at, 0))
                at = match.end()
            elif word == "define":
                directive += 1
                directive_end = match.end()
                at = match.start("word")
            else:
                at = match.end()
            line_start = False
            continue
        match = _TOKEN.match(source, at)
        kind = match.lastgroup if match.lastgroup != "mark" else "string"
        dead = any(state[0] is False for state in open_ifs)
        if kind not in ("space", "comment") and not dead:
            found.append(Token(kind, match.group(), at, directive if at < directive_end else 0))
        at = match.end()
        if kind == "space":
            line_start = "\n" in match.group() and source[match.start()] != "\\"
            if line_start:
                at = source.rindex("\n", match.start(), match.end()) + 1
        elif kind != "comment":
            line_start = False
    return found


class Scan:
    """A source with its tokens, the edits to make, and the words for an error."""

    def __init__(self, source: str, path: str):
        self.source, self.path = source, path
        self.tokens = tokens_of(source)
        self.edits: list[tuple[int, int, str]] = []
        self.kernels: list[tuple[int, int]] = []  # token ranges of kernel bodies

    def refuse(self, token: Token, why: str) -> HostBackendError:
        line = self.source.count("\n", 0, token.start) + 1
        return HostBackendError(f"{self.path}:{line}: {why}")

    def replace(self, start: int, end: int, text: str) -> None:
        self.edits.append((start, end, text))

    def text(self, i: int) -> str:
        return self.tokens[i].text if 0 <= i < len(self.tokens) else ""

    def close(self, i: int) -> int:
        """The index of the bracket that closes the one at `i`; both branches of an #if may hold it."""
        want, depth, saved = PAIRS[self.text(i)], 0, []
        for j in range(i, len(self.tokens)):
            token = self.tokens[j]
            if token.directive != self.tokens[i].directive and self.tokens[i].directive:
                break
            if token.kind == "if":
                saved.append(depth)
            elif token.kind == "else" and saved:
                depth = saved[-1]
            elif token.kind == "endif" and saved:
                saved.pop()
            elif token.kind == "sign" and token.directive == self.tokens[i].directive:
                depth += (token.text == self.text(i)) - (token.text == want)
                if depth == 0:
                    return j
        raise self.refuse(self.tokens[i], f"`{self.text(i)}` is never closed")

    def open(self, i: int) -> int:
        """The index of the bracket that the one at `i` closes."""
        want, depth = {v: k for k, v in PAIRS.items()}[self.text(i)], 0
        for j in range(i, -1, -1):
            if self.tokens[j].kind == "sign":
                depth += (self.text(j) == self.text(i)) - (self.text(j) == want)
                if depth == 0:
                    return j
        raise self.refuse(self.tokens[i], f"`{self.text(i)}` closes nothing")

    def statement(self, i: int) -> tuple[int, int]:
        """First token and closing `;` of the declaration that the token at `i` stands in."""
        first = last = i
        while True:
            before = first - 1
            if self.text(before) == ")" and self.text(self.open(before) - 1) in ("__align__", "alignas"):
                before = self.open(before) - 1
            if (
                self.text(before) not in ("extern", "static", "volatile", "const", "__align__", "alignas")
                or self.tokens[before].directive != self.tokens[i].directive
            ):
                break
            first = before
        while last < len(self.tokens) and self.text(last) != ";":
            if self.tokens[last].directive != self.tokens[i].directive:
                break
            last = self.close(last) + 1 if self.text(last) in PAIRS else last + 1
        if self.text(last) != ";" or self.tokens[last].directive != self.tokens[i].directive:
            raise self.refuse(
                self.tokens[i],
                f"a `{self.text(i)}` declaration has to end with `;` where it begins: in the same macro",
            )
        return first, last

    def in_function(self, i: int) -> bool:
        """Whether the token at `i` stands in a function's body rather than in a namespace."""
        scopes, begin = [], 0
        for j in range(i):
            text = self.text(j)
            if text == "{":
                words = self.tokens[begin:j]
                names = {t.text for t in words}
                block = "namespace" in names or (
                    words[-1:] and words[-1].kind == "string" and "extern" in names
                )
                scopes.append(not block)
            elif text == "}" and scopes:
                scopes.pop()
            if text in ("{", "}", ";"):
                begin = j + 1
        return any(scopes) or bool(self.tokens[i].directive)
