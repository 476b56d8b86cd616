#!/usr/bin/env python3
"""Turns a CUDA kernel's source into C++ for cuda_on_cpu.hpp: translate.py IN.cu OUT.cpp. A launch
`kernel<<<grid, threads, 0, stream>>>(arguments)` becomes a call of on_cpu::run; nothing else is changed."""
import pathlib
import re
import sys


def end_of(text, begin):
    """The place behind the bracket that closes the one at `begin`."""
    depth = 0
    for i in range(begin, len(text)):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth == 0:
            return i + 1
    sys.exit("a bracket is not closed")


def parts_of(text):
    """Split at commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def translated(text):
    # The kernel's name, with template arguments without spaces in brackets, up to the launch.
    launch = re.compile(r"(\w+(?:<[^<>;(){}]*>)?)<<<")
    while match := launch.search(text):
        close = text.index(">>>(", match.end())
        grid, threads = parts_of(text[match.end():close])[:2]
        end = end_of(text, close + 3)
        call = f"on_cpu::run({grid}, {threads}, [&] {{ {match[1]}{text[close + 3:end]}; }})"
        text = text[:match.start()] + call + text[end:]
    return text


source, target = map(pathlib.Path, sys.argv[1:])
target.write_text('#include "cuda_on_cpu.hpp"\n' + translated(source.read_text()))
