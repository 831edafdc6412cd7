"""The host backend's compiler front: a .cu file's text as C++20, and refusals in plain words.

The C++ compiler understands nearly all of a .cu file with the headers in kernels/host. `transform` changes the rest:

- ``kernel<<<grid, block, shared, stream>>>(args)`` becomes ``(::cuda_host::configure(grid, block, shared, stream),
  kernel(args))``, so that arguments are converted and template arguments deduced by the language itself;
- the body of a ``__global__`` function becomes a lambda, which the backend runs once a thread;
- ``extern __shared__ T name[];`` becomes a pointer to the block's dynamic shared memory;
- after any other ``__shared__`` variable stands a call that announces it (it is counted, and filled with ones).

Line numbers stay, so compiler errors and the messages of failed launches point into the .cu file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

INCLUDE_DIR = Path(__file__).resolve().parent.parent / "kernels" / "host"

CXX_FLAGS = [
    "-std=c++20",
    "-O2",
    "-pthread",
    "-fvisibility=hidden",  # two builds of an edited file, in one process, must share nothing
    "-fwrapv",  # a signed overflow wraps, as it does on a GPU
    "-fno-strict-aliasing",  # float* read through float4*
    "-ffp-contract=off",  # the same result on every CPU
    "-U_FORTIFY_SOURCE",  # it forbids longjmp between stacks
]


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
_PAIRS = {"(": ")", "[": "]", "{": "}"}
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


def _tokens(source: str) -> list[Token]:
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
                    state[0] = False if state[1] else True if word == "else" else bool(_condition("if", rest) is not False)
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


class _Scan:
    """A source with its tokens, the edits to make, and the words for an error."""

    def __init__(self, source: str, path: str):
        self.source, self.path = source, path
        self.tokens = _tokens(source)
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
        want, depth, saved = _PAIRS[self.text(i)], 0, []
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
        want, depth = {v: k for k, v in _PAIRS.items()}[self.text(i)], 0
        for j in range(i, -1, -1):
            if self.tokens[j].kind == "sign":
                depth += (self.text(j) == self.text(i)) - (self.text(j) == want)
                if depth == 0:
                    return j
        raise self.refuse(self.tokens[i], f"`{self.text(i)}` closes nothing")

    def statement(self, i: int) -> tuple[int, int]:
        """First token and closing `;` of the declaration that the token at `i` stands in."""
        first = i
        while first > 0 and self.text(first - 1) not in (";", "{", "}", ")") \
                and self.tokens[first - 1].directive == self.tokens[i].directive \
                and self.tokens[first - 1].kind not in ("if", "else", "endif"):
            first -= 1
        if self.tokens[i].directive:  # not the `define NAME` before it
            first = i - 1 if self.text(i - 1) in ("extern", "static") else i
        last = i
        while last < len(self.tokens) and self.text(last) != ";":
            if self.tokens[last].directive != self.tokens[i].directive:
                break
            last = self.close(last) + 1 if self.text(last) in _PAIRS else last + 1
        if self.text(last) != ";" or self.tokens[last].directive != self.tokens[i].directive:
            raise self.refuse(self.tokens[i], f"a `{self.text(i)}` declaration has to end with `;` where it begins: "
                                              "in the same macro")
        return first, last

    def in_function(self, i: int) -> bool:
        """Whether the token at `i` stands in a function's body rather than in a namespace."""
        scopes, begin = [], 0
        for j in range(i):
            text = self.text(j)
            if text == "{":
                words = self.tokens[begin:j]
                names = {t.text for t in words}
                block = "namespace" in names or (words[-1:] and words[-1].kind == "string" and "extern" in names)
                scopes.append(not block)
            elif text == "}" and scopes:
                scopes.pop()
            if text in ("{", "}", ";"):
                begin = j + 1
        return any(scopes) or bool(self.tokens[i].directive)


def _kernel(scan: _Scan, i: int) -> None:
    """Rewrites the __global__ function whose keyword is token `i`; a declaration only loses the keyword."""
    word = scan.tokens[i]
    bound, name = "0", ""
    j = i + 1
    while j < len(scan.tokens):
        if scan.tokens[j].directive != word.directive:
            j = len(scan.tokens)
        elif scan.text(j) == ";":
            break
        elif scan.text(j) == "{":
            break
        elif scan.text(j) == "(":
            end = scan.close(j)
            before = scan.text(j - 1)
            if before == "__launch_bounds__":
                stop = j + 1
                while stop < end and scan.text(stop) != ",":
                    stop = scan.close(stop) + 1 if scan.text(stop) in _PAIRS else stop + 1
                bound = re.sub(r"\s+", " ", scan.source[scan.tokens[j].end:scan.tokens[stop].start])
            elif not name and before not in ("__attribute__", "__align__", "alignas", "__maxnreg__", "__cluster_dims__"):
                name = before
            j = end + 1
        else:
            j += 1
    if j >= len(scan.tokens) or not name:
        raise scan.refuse(word, "`__global__` stands in a macro without the kernel's body; the host backend has to see "
                                "both together. Write `__global__ void name(...) { ... }` in full")
    scan.replace(word.start, word.end, " " * len(word.text))
    if scan.text(j) == "{":
        end = scan.close(j)
        scan.kernels.append((j, end))
        at = scan.tokens[j].end
        scan.replace(at, at, f' static ::cuda_host::KernelInfo cuda_host_kernel{{"{name}", static_cast<int>({bound}), 0}}; '
                             "::cuda_host::run(cuda_host_kernel, [=]() mutable {")
        scan.replace(scan.tokens[end].start, scan.tokens[end].start, "}); ")


def _callee(scan: _Scan, i: int) -> int:
    """The first token of the kernel expression that ends just before token `i`: `a::k<int, f<2>()>`, `table[v]`, ..."""
    j = i - 1
    while True:
        if scan.text(j) == ">":
            depth = 0
            while j >= 0:
                if scan.text(j) in (")", "]", "}"):
                    j = scan.open(j)
                elif scan.text(j) in (";", "{"):
                    raise scan.refuse(scan.tokens[i], "no kernel found before `<<<`")
                depth += (scan.text(j) == ">") - (scan.text(j) == "<")
                if depth == 0:
                    break
                j -= 1
            j -= 1
        elif scan.text(j) in (")", "]"):
            j = scan.open(j)
            if j == 0 or not (scan.tokens[j - 1].kind == "name" or scan.text(j - 1) in (")", "]", ">")) \
                    or scan.text(j - 1) in ("return", "else", "do"):
                return j
            j -= 1
        elif j >= 0 and scan.tokens[j].kind == "name":
            if scan.text(j - 1) == "template":
                j -= 1
            if scan.text(j - 1) not in ("::", ".", "->"):
                return j
            if scan.text(j - 1) == "::" and not (scan.tokens[j - 2].kind == "name" and j >= 2
                                                 and scan.text(j - 2) not in ("return", "else", "do")
                                                 or scan.text(j - 2) == ">"):
                return j - 1
            j -= 2
        else:
            raise scan.refuse(scan.tokens[i], "no kernel found before `<<<`")


def _adjacent(scan: _Scan, i: int, sign: str) -> bool:
    """Whether three `sign` tokens stand together from token `i` on."""
    run = scan.tokens[i:i + 3]
    return len(run) == 3 and all(t.text == sign and t.start == run[0].start + k for k, t in enumerate(run))


def _launch(scan: _Scan, i: int) -> None:
    """Rewrites the launch whose `<<<` begins at token `i`."""
    for begin, end in scan.kernels:
        if begin < i < end:
            raise scan.refuse(scan.tokens[i], "a kernel launches a kernel; the host backend has no dynamic parallelism")
    first = _callee(scan, i)
    j, commas = i + 3, 0
    while not (_adjacent(scan, j, ">") and scan.text(j + 3) == "("):
        if j >= len(scan.tokens) or scan.text(j) == ";":
            raise scan.refuse(scan.tokens[i], "`<<<` without `>>>(`")
        commas += scan.text(j) == ","
        j = scan.close(j) + 1 if scan.text(j) in _PAIRS else j + 1
    opening, closing = scan.tokens[i].start, scan.tokens[j + 2].end
    arguments = scan.source[scan.tokens[i + 3].start:scan.tokens[j].start]
    one_line = re.sub(r"/\*.*?\*/|//[^\n]*|\\\n|\n", " ", arguments, flags=re.DOTALL).strip()
    lines = re.findall(r"\\?\n", scan.source[opening:closing])
    scan.replace(scan.tokens[first].start, scan.tokens[first].start, f"(::cuda_host::configure({one_line}), ")
    scan.replace(opening, closing, "".join(lines))
    end = scan.close(j + 3)
    scan.replace(scan.tokens[end].end, scan.tokens[end].end, ")")


def _dynamic_shared(scan: _Scan, first: int, last: int) -> None:
    """Rewrites `extern __shared__ T name[];`, tokens `first` to `last`, as a pointer."""
    words, j, keyword = [], first, next(t for t in scan.tokens[first:] if t.text == "__shared__")
    while j < last and scan.text(j) != "[":
        if scan.text(j) in ("__align__", "alignas"):
            j = scan.close(j + 1)
        elif scan.text(j) not in ("extern", "__shared__"):
            words.append(scan.tokens[j])
        j += 1
    if scan.text(j) != "[" or scan.text(j + 1) != "]" or len(words) < 2:
        raise scan.refuse(keyword, "dynamic shared memory has to be declared as `extern __shared__ T name[];`")
    if not scan.in_function(first):
        raise scan.refuse(keyword, "`extern __shared__` outside a function; declare it inside the kernel")
    kind = " ".join(t.text for t in words[:-1])
    rest = "".join(t.text for t in scan.tokens[j + 2:last])
    pointer = f"{kind} (*){rest}" if rest else f"{kind}*"
    name = f"(*const {words[-1].text}){rest}" if rest else f"* const {words[-1].text}"
    start, end = scan.tokens[first].start, scan.tokens[last].end
    lines = "".join(re.findall(r"\\?\n", scan.source[start:end]))
    scan.replace(start, end, f"{kind} {name} = ({pointer})::cuda_host::dynamic_shared();{lines}")


def _static_shared(scan: _Scan, i: int, last: int) -> None:
    """Announces the variables of the `__shared__` declaration at token `i` after its `;`, token `last`."""
    if not scan.in_function(i):
        raise scan.refuse(scan.tokens[i], "`__shared__` outside a function; declare it inside the kernel")
    names, name, dimensions, angle, j = [], "", False, 0, i + 1
    while j <= last:
        text = scan.text(j)
        if text in ("=", "{") and name and (text == "=" or scan.text(j - 1) == name or dimensions):
            if not _is_type_body(scan, i, j):
                raise scan.refuse(scan.tokens[i], f"`{name}` is __shared__ and has an initializer, which CUDA forbids; "
                                                  "assign to it in the kernel, then __syncthreads()")
        angle += (text == "<") - (text == ">")
        if text in (",", ";") and angle == 0:
            names.append(name)
            name, dimensions = "", False
        elif text in _PAIRS:
            dimensions = dimensions or text == "["
            j = scan.close(j)
        elif scan.tokens[j].kind == "name" and not dimensions:
            name = text
        j += 1
    calls = "".join(f" ::cuda_host::announce({name});" for name in names)
    scan.replace(scan.tokens[last].end, scan.tokens[last].end, calls)


def _is_type_body(scan: _Scan, i: int, j: int) -> bool:
    """Whether the `{` at token `j` opens the members of a struct or union named in the declaration at `i`."""
    return scan.text(j) == "{" and any(scan.text(k) in ("struct", "union", "class") for k in range(i, j))


def transform(source: str, path: str) -> str:
    """The text of a .cu file as C++20 for the host backend; its lines keep their numbers, under the name `path`.

    Raises HostBackendError, naming the line and the construct, for what only the source shows to be unsupported.
    """
    scan = _Scan(source, path)
    tokens = scan.tokens
    for i, token in enumerate(tokens):
        if token.text == "__global__":
            _kernel(scan, i)
    for i, token in enumerate(tokens):
        if token.text == "<" and _adjacent(scan, i, "<") and scan.text(i - 1) != "operator":
            _launch(scan, i)
        elif token.text == "__shared__":
            first, last = scan.statement(i)
            if any(t.text == "extern" for t in tokens[first:last]):
                _dynamic_shared(scan, first, last)
            else:
                _static_shared(scan, i, last)
        elif token.text == "__noinline__" and scan.text(i - 1) != "(":
            scan.replace(token.start, token.end, "__attribute__((noinline))")
        elif token.text in ("__asm__", "__asm"):
            scan.replace(token.start, token.end, "asm")
    pieces, at = [], 0
    for start, end, text in sorted(scan.edits, key=lambda edit: edit[:2]):
        pieces += [source[at:start], text]
        at = end
    name = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'#include "cuda_host.h"\n#line 1 "{name}"\n' + "".join(pieces) + source[at:]


# Why a CUDA name is refused, and what to do; the first pattern that matches whole counts.
REFUSED = [
    (r"__global__", "kernels have to stand in the .cu file itself; a header's text is not transformed"),
    (r"asm|__asm__", "inline PTX runs only on a GPU; keep it inside #ifdef __CUDA_ARCH__, with plain C++ in the #else"),
    (r"__managed__|cuda(Malloc|Free|Host|Memcpy).*|cudaGetSymbol.*",
     "a .cu file gets pointers from PyTorch, which owns and copies all memory; constants may be initialised in place"),
    (r"cudaStream.*|cudaEvent.*|cudaGraph.*", "streams, events and graphs are PyTorch's; the host backend runs in order"),
    (r"cudaLaunch.*", "launch with <<<grid, block, shared, stream>>>"),
    (r"__cluster_dims__|__block_size__", "thread block clusters exist only on a GPU"),
    (r"cudaOccupancy.*|cudaFuncGet.*", "the answer depends on registers, which the host does not count"),
    (r"cudaGetDeviceProperties|cudaDeviceProp", "ask cudaDeviceGetAttribute for what a launcher needs"),
    (r"cudaTexture.*|cudaSurface.*|tex[123]D.*|surf[123]D.*", "textures and surfaces exist only on a GPU"),
    (r"__(shfl|ballot|any|all)(_\w+)?", "CUDA removed it; use the function with _sync and a mask"),
    (r"cooperative_groups.*|cg", "no cooperative groups: use __syncthreads, __syncwarp and the __shfl_*_sync functions"),
    (r"clock64|globaltimer|__nanosleep|__trap|__brkpt", "it has no meaning off a GPU"),
    (r"__\w+_r[zud]", "the host rounds to nearest only"),
    (r"__constant__", "a __constant__ variable needs its value where it is declared, known when compiling"),
    (r"__shared__", "`extern __shared__` has to stand in the .cu file itself; a header's text is not transformed"),
    (r"cudaFuncSetAttribute", "pass the kernel itself, not cast to a pointer to void"),
    (r".*/.*|.*\.h|.*\.cuh|.*\.hpp", "the host backend has no such header"),
]
_LOCATION = r"^(?P<file>[^\n:]+):(?P<line>\d+):\d+: (?:fatal )?error: "
_COMPLAINTS = [
    re.compile(_LOCATION + r"attempt to use poisoned [\"‘'](?P<name>\w+)", re.M),  # g++
    re.compile(_LOCATION + r"attempt to use a poisoned identifier\n[^\n]*\n(?P<caret> *)\^", re.M),  # clang
    re.compile(_LOCATION + r"[‘'](?:::)?(?P<name>(?:__|cuda|h2|cooperative_groups|cg|wmma|atomic)\w*)[’'] "
               r"(?:was not declared|has not been declared|does not name a type|is not a member)", re.M),
    re.compile(_LOCATION + r"(?:use of undeclared identifier|unknown type name|there are no arguments to) "
               r"[‘'](?P<name>(?:__|cuda|h2|cooperative_groups|cg|wmma|atomic)\w*)", re.M),
    re.compile(_LOCATION + r"(?P<name>[\w./]+): No such file", re.M),
    re.compile(_LOCATION + r"'(?P<name>[\w./]+)' file not found", re.M),
    re.compile(_LOCATION + r"(?:#error )?\"(?P<words>the host backend [^\"]*)\"", re.M),
    re.compile(_LOCATION + r"(?:#error )?(?P<words>the host backend [^\n]*)", re.M),
]


def explain(compiler_output: str) -> str:
    """What the host backend refuses in a compiler's (g++'s or clang's) output, one line each, as ``gelu.cu:41: ...``.

    Output that names nothing refused comes back as it is.
    """
    found: dict[tuple[str, int, str], None] = {}
    for pattern in _COMPLAINTS:
        for match in pattern.finditer(compiler_output):
            groups = match.groupdict()
            place = (groups["file"], int(groups["line"]))
            if groups.get("words"):
                found[(*place, groups["words"])] = None
                continue
            name = groups.get("name")
            if name is None:  # clang names it by a caret under the source line
                source = compiler_output[:match.end()].splitlines()[-2]
                name = re.match(r"\w*", source[len(groups["caret"]):]).group()
            why = next((why for names, why in REFUSED if re.fullmatch(names, name)),
                       "not a CUDA name, or one that the host backend lacks")
            found[(*place, f"`{name}` is not supported by the host backend: {why}")] = None
    if not found:
        return compiler_output
    return "\n".join(f"{file}:{line}: {words}" for file, line, words in sorted(found))
