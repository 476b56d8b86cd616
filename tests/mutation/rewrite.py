"""Turns a source into one with mutants in it: what refuses, refuses no more when its mutant is chosen.

Every place that refuses something becomes several mutants: its condition always false, its condition turned round, and
each part of a condition of several parts left out; a refusal without a condition of its own is left out.
"""

import pathlib
import re

SWITCH = """#ifndef TRAINER_MUTANTS_SWITCH  // several sources may be compiled together
#define TRAINER_MUTANTS_SWITCH
#include <cstdlib>
namespace { [[maybe_unused]] bool mutant(int number) {
  static const char* chosen = std::getenv("TRAINER_MUTANT");
  return chosen != nullptr && std::atoi(chosen) == number;
} }
#endif
"""
DECLARATION = re.compile(r"(?:const )?(?:auto|[\w:]+(?:<[^;=]*>)?)[*&]* \w+ = ")


def closing(text, at):
    """Index of the bracket that closes the one at `at`; strings and characters are skipped."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    depth, i = [], at
    while i < len(text):
        c = text[i]
        if c in "\"'" and not (c == "'" and text[i - 1].isdigit()):  # not a digit separator
            i += 1
            while text[i] != c:
                i += 2 if text[i] == "\\" else 1
        elif c in pairs:
            depth.append(pairs[c])
        elif depth and c == depth[-1]:
            depth.pop()
            if not depth:
                return i
        i += 1
    raise ValueError(f"no end of the bracket at {at}")


def conditions(text):
    """(begin, end) of the inside of every `if (...)`, and where what it guards begins."""
    for match in re.finditer(r"\bif (?:constexpr )?\(", text):
        begin = match.end()
        end = closing(text, begin - 1)
        body = end + 1
        while text[body] in " \n{":
            body += 1
        yield begin, end, body


def parts(text, begin, end):
    """The operands of a condition joined by || or && at its top, with the operator; none for a single one."""
    pieces, operators, start, i = [], set(), begin, begin
    while i < end:
        if text[i] in "([{":
            i = closing(text, i)
        elif text[i] in "\"'":
            quote, i = text[i], i + 1
            while text[i] != quote:
                i += 2 if text[i] == "\\" else 1
        elif text[i:i + 2] in ("||", "&&"):
            pieces.append((start, i))
            operators.add(text[i:i + 2])
            start, i = i + 2, i + 1
        i += 1
    pieces.append((start, end))
    return (pieces, operators.pop()) if len(operators) == 1 else ([], "")


def outermost(text, begin, end, character):
    """Index of the character outside of brackets and quotes, or None."""
    i = begin
    while i < end:
        if text[i] in "([{":
            i = closing(text, i)
        elif text[i] in "\"'":
            quote, i = text[i], i + 1
            while text[i] != quote:
                i += 2 if text[i] == "\\" else 1
        elif text[i] == character:
            return i
        i += 1
    return None


class Mutants:
    """Rewrites sources below `root`; `names[number]` says what mutant `number` is. `refusals` matches what refuses,
    `decisions` are beginnings of conditions that decide what is refused though the refusal does not stand behind them.
    """

    def __init__(self, root, refusals, decisions=()):
        self.root, self.refusals, self.decisions = root, refusals, tuple(decisions)
        self.names = {}

    def new(self, source, text, at, what):
        number = len(self.names) + 1
        self.names[number] = f"{source}:{text.count(chr(10), 0, at) + 1}: {what}"
        return f"mutant({number})"

    def rewrite(self, source):
        text = (self.root / source).read_text()
        guarded, changes = {}, {}  # what a condition guards -> the condition; (begin, end) -> new text
        for begin, end, body in conditions(text):
            guarded[body] = (begin, end)
            if self.decisions and text.startswith(self.decisions, begin):
                changes[begin, end] = self.condition(source, text, begin, end)
        for match in self.refusals.finditer(text):
            line = text[text.rfind("\n", 0, match.start()) + 1:match.start()]
            before = text[:match.start()].rstrip()
            opener = before[before.rfind("\n") + 1:]
            if re.search(r"\b(void|auto|Value|Error) $|//", line) or re.search(r"\b(fail|reject)\b.*\{$", opener):
                continue  # a function that refuses, not a use of it
            never_returns = text.rfind("[[noreturn]]", 0, match.start())
            inside = text[never_returns:match.start()] if never_returns >= 0 else ""
            if inside.count("{") > inside.count("}") and match.start() not in guarded:
                continue  # its last statement: without it the compiler may do anything
            if before[-1] not in ";{})" and not before.endswith("else"):
                continue  # within an expression
            alone = before.endswith("{") and "}" in text[match.start():text.index("\n", match.start())]
            if match.start() not in guarded and (match[0].startswith("return") or opener.endswith(") {") or alone or
                                                 re.search(r"\bcatch \(", opener)):
                continue  # the last statement of a function or of a handler
            if match.start() in guarded and DECLARATION.match(text, guarded[match.start()][0]) and \
                    outermost(text, *guarded[match.start()], ";") is None:
                del guarded[match.start()]  # what the condition declares is used behind it
            if match.start() in guarded:
                begin, end = guarded[match.start()]
                changes[begin, end] = self.condition(source, text, begin, end)
            else:
                off = self.new(source, text, match.start(), f"left out: {shown(text[match.start():match.start() + 70])}")
                changes[match.start(), match.start()] = f"if (!{off}) "
        for (begin, end), new in sorted(changes.items(), reverse=True):
            text = text[:begin] + new + text[end:]
        return SWITCH + f'#line 1 "{source}"\n' + text

    def condition(self, source, text, begin, end):
        """The condition with its mutants in it, each off unless chosen."""
        declared = ""  # if (declaration; condition)
        semicolon = outermost(text, begin, end, ";")
        if semicolon is not None:
            declared, begin = text[begin:semicolon + 1] + " ", semicolon + 1
        never = self.new(source, text, begin, f"never: {shown(text[begin:end])}")
        turned = self.new(source, text, begin, f"turned round: {shown(text[begin:end])}")
        pieces, operator = parts(text, begin, end)
        whole = text[begin:end]
        if pieces:
            switched = []
            for first, last in pieces:
                without = self.new(source, text, first, f"without: {shown(text[first:last])}")
                neutral = f"!{without} &&" if operator == "||" else f"{without} ||"
                switched.append(f"({neutral} ({text[first:last]}))")
            whole = f" {operator} ".join(switched)
        return f"{declared}!{never} && {turned} != static_cast<bool>({whole})"


def shown(text):
    return re.sub(r"\s+", " ", text).strip()[:100]
