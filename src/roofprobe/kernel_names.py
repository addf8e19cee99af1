"""Names of kernels: CUPTI and ncu give symbols, people read what the compiler made them from."""

import re
from typing import Final

_ANONYMOUS: Final = re.compile(r"\(anonymous namespace\)|<unnamed>")
_OPEN: Final = "<([{"
_CLOSE: Final = ">)]}"


def demangled(symbol: str) -> str:
    """A symbol as in the source; as it is where it is no C++ symbol.

    PyTorch's demangler, which also spelled the names in a record.
    """
    import torch

    # Private, and in every PyTorch since 1.0; a name as the compiler spells it is no loss of truth.
    demangle = getattr(torch._C, "_demangle", None)
    return str(demangle(symbol)) if demangle is not None and symbol.startswith("_Z") else symbol


def brief(name: str) -> str:
    """A kernel's name from its function on, without the parameters: what tells kernels apart.

    ``void at::native::reduce_kernel<512, 1>(float*)`` is ``reduce_kernel<512, 1>``.

    Args:
        name: Demangled; one without a function name stays as it is.
    """
    function = function_name(name)
    if function is None:
        return name
    found = name[name.index(function) :]
    depth = 0
    for index, letter in enumerate(found):
        if letter == "(" and depth == 0:
            return found[:index].rstrip()
        depth += (letter in _OPEN) - (letter in _CLOSE and found[index - 1] != "-")
    return found


def function_name(name: str) -> str | None:
    """A kernel's name without namespaces, template arguments, result and parameters.

    ``void at::native::reduce_kernel<512, 1>(float*)`` is ``reduce_kernel``. ncu's filter takes
    kernels by these.

    Args:
        name: Demangled.

    Returns:
        None where there is none, as in a symbol that could not be demangled, or in the words for
        what the driver does.
    """
    bare = []
    depth = 0
    previous = ""
    for letter in _ANONYMOUS.sub("", name):
        if letter == "(" and depth == 0:
            break  # the parameters
        if letter in _OPEN:
            depth += 1
        elif letter in _CLOSE and not (letter == ">" and previous == "-"):
            depth -= 1
        elif depth == 0:
            bare.append(letter)
        previous = letter
    text = "".join(bare)
    if "(" not in name and " " in name:
        return None  # words: only a function with parameters has a result in front
    last = text.rpartition(" ")[2].rpartition("::")[2]
    return last if re.fullmatch(r"[A-Za-z_]\w*", last) and not last.startswith("_Z") else None
