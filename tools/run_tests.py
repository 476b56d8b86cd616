#!/usr/bin/env python3
"""Builds the tests, runs them through Meson and counts single cases; called by tools/test, which sets up first.

Meson's own summary is not used for the count: it merges a GoogleTest program's old XML when the program dies before
writing a new one. Here old results are removed first, and a program that ends badly or leaves no result is a failure.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

from levels import LEVELS

ROOT = pathlib.Path(__file__).resolve().parent.parent
WHOLE = "whole"  # the suite of what takes long, and of the whole form of tests that are cut short otherwise
# --sanitize: what is built (a Meson alias) and run, and how. "short": every reader of strangers' files, checkpoints and
# the recompute engine. "all" is a second full build. "thread": tests without LibTorch that use threads.
SANITIZE_KINDS = {"short": ("sanitize", "sanitized"), "all": ("sanitize", "all"), "thread": ("thread", "threaded")}
THREADED_TESTS = {"base", "text", "run_guard"}
# Not under "all": measures bytes or time, defines the calls that the sanitizers take over, or is Python alone.
UNSANITIZED_SUITES = {"lint", "bench", "memory", "faults", "e2e", "gpu_check"}
SANITIZED_TESTS = {"base", "recipe", "safetensors", "weights", "adapter", "checkpoint", "text", "data", "kernels", "metrics",
                   "run_guard", "sdk", "double_backward", "fuzz_corpus"}
SLOW_COMPILE_SECONDS = 25


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="tools/test",
        description="Builds and runs the tests. The last line is \"N passed, N failed\".",
        epilog="Examples: tools/test --suite parity    tools/test --filter Safetensors    tools/test --list")
    parser.add_argument("--suite", action="append", default=[], metavar="NAME", help="only this suite (repeatable)")
    parser.add_argument("--filter", metavar="NAME", help="only tests whose name, or cases whose Suite.Case name, contains NAME")
    parser.add_argument("--list", action="store_true", help="print suites, tests and cases; build and run nothing")
    parser.add_argument("--sanitize", nargs="?", const="short", choices=SANITIZE_KINDS, metavar="KIND",
                        help="run tests under the address and undefined-behaviour sanitizers, built in build/sanitize: "
                             "those of parsers and recompute engine, or with KIND \"all\" every test in this process; "
                             "KIND \"thread\": the thread sanitizer, tests without LibTorch")
    parser.add_argument("--whole", action="store_true", help="also the suite \"whole\", left out by default: what takes long, and "
                                                             "the whole form of tests that are a share of it otherwise")
    parser.add_argument("--share", type=share, metavar="K/N", help="of the whole equivalence matrix (--suite matrix) only the "
                                                                   "K-th of N shares")
    parser.add_argument("--level", choices=LEVELS, help="as on a processor of this level (x86-64-v3: AVX2)")
    return parser.parse_args()


def share(text):
    """K/N, 1 <= K <= N, as TRAINER_TEST_SHARE has it."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text} is no share; write for example 3/16")
    return text


def suites_of(test):
    return {suite.split(":")[-1] for suite in test["suite"]}


def is_gtest(test):
    return test.get("protocol") == "gtest"


def load_tests(build):
    """The tests Meson knows. Each gets "name", "suite", "cmd", "env" and "protocol" from Meson."""
    text = subprocess.run(["meson", "introspect", "--tests", str(build)], check=True, capture_output=True, text=True)
    return json.loads(text.stdout)


def quick_of(tests):
    """Without the suite "whole", unless nothing else is there: a suite of it alone was asked for by its name."""
    return [test for test in tests if WHOLE not in suites_of(test)] or tests


def choose_suites(tests, arguments):
    """The tests of the wanted suites, or an exit with the known names when a suite does not exist."""
    known = set().union(*map(suites_of, tests)) if tests else set()
    unknown = set(arguments.suite) - known
    if unknown:
        print(f"tools/test: no suite {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}", file=sys.stderr)
        sys.exit(2)
    if arguments.suite:
        members = [[test for test in tests if name in suites_of(test)] for name in arguments.suite]
        chosen = [quick_of(some) if not arguments.whole else some for some in members]
        return [test for test in tests if any(test in some for some in chosen)]
    chosen = tests if arguments.whole else quick_of(tests)
    if arguments.sanitize == "all":
        return [test for test in chosen if not suites_of(test) & UNSANITIZED_SUITES]
    wanted = {None: None, "short": SANITIZED_TESTS, "thread": THREADED_TESTS}[arguments.sanitize]
    return [test for test in chosen if wanted is None or test["name"] in wanted]


def list_cases(test, build):
    """The names Suite.Case of a GoogleTest program; none for other tests or one that does not start."""
    if not is_gtest(test) or not pathlib.Path(test["cmd"][0]).exists():
        return []
    environment = {**os.environ, **test["env"]}
    output = subprocess.run(test["cmd"] + ["--gtest_list_tests"], cwd=test["workdir"] or build, env=environment,
                            capture_output=True, text=True).stdout
    cases, suite = [], ""
    for line in output.splitlines():
        name = line.split("#")[0].rstrip()
        if name.endswith(".") and not name.startswith(" "):
            suite = name
        elif name.startswith("  ") and suite:
            cases.append(suite + name.strip())
    return cases


def apply_filter(tests, build, name):
    """Keeps tests whose own name contains `name` (whole), and GoogleTest programs with a case that does.

    Returns (tests, GTEST_FILTER or None). The filter is set only when no whole test matched, since it would
    also narrow those.
    """
    whole = [test for test in tests if name in test["name"]]
    if whole:
        return whole, None
    return [test for test in tests if any(name in case for case in list_cases(test, build))], f"*{name}*"


def result_file(test, build):
    """Where Meson makes a GoogleTest program write its XML."""
    return pathlib.Path(test["workdir"] or build) / f"{test['name']}.xml"


def remove_old_results(tests, build):
    for old in [*(build / "meson-logs").glob("testlog*"), *(result_file(test, build) for test in tests if is_gtest(test))]:
        old.unlink(missing_ok=True)


class Counts:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.times = []     # (seconds, name)
        self.failures = []  # names
        self.reasons = []   # of what was skipped: "name: why"

    def add(self, state, name, seconds):
        setattr(self, state, getattr(self, state) + 1)
        self.times.append((seconds, name))
        if state == "failed":
            self.failures.append(name)


def count_gtest(counts, test, program, file):
    """Adds the cases of one GoogleTest program; one failure of the program itself when its result is bad and no case's."""
    cases = []
    if file.exists():
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            if case.get("status") == "notrun":  # disabled or filtered out
                continue
            bad = case.find("failure") is not None or case.find("error") is not None
            mark = case.find("skipped")
            skipped = mark is not None or case.get("result") == "skipped"
            if skipped and not bad:
                why = (mark.get("message") or "").strip().splitlines() if mark is not None else []
                counts.reasons.append(f"{test['name']}: {case.get('classname')}.{case.get('name')}: {why[-1] if why else 'no reason given'}")
            state = "failed" if bad else "skipped" if skipped else "passed"
            cases.append((state, f"{test['name']}: {case.get('classname')}.{case.get('name')}", float(case.get("time", 0))))
    for case in cases:
        counts.add(*case)
    fine = program["result"] in ("OK", "SKIP", "EXPECTEDFAIL")
    if not fine and all(state != "failed" for state, _, _ in cases):
        counts.add("failed", f"{test['name']}: the program ended badly ({program['result']}), or left no results", program["duration"])
    elif fine and not cases:
        counts.add("failed", f"{test['name']}: ran no test case", program["duration"])


def count(tests, build):
    """Reads Meson's log and the XML files. A test without a line in the log did not run: a failure."""
    log = build / "meson-logs" / "testlog.json"
    programs = {}
    for line in log.read_text().splitlines() if log.exists() else []:
        program = json.loads(line)
        programs[program["name"].split(" / ")[-1].split(":")[-1]] = program
    counts = Counts()
    for test in tests:
        program = programs.get(test["name"])
        if program is None:
            counts.add("failed", f"{test['name']}: did not run", 0.0)
        elif is_gtest(test):
            count_gtest(counts, test, program, result_file(test, build))
        else:
            state = {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped"}.get(program["result"], "failed")
            skipped = re.findall(r"^SKIPPED (.*)$", program.get("stdout") or "", re.M)
            counts.reasons += [f"{test['name']}: {line}" for line in skipped]
            counts.add(state, test["name"], program["duration"])
            if state == "passed":  # its other cases ran
                counts.skipped += len(skipped)
            elif state == "skipped" and not skipped:
                counts.reasons.append(f"{test['name']}: no reason given")
    return counts


def report_slow_compiles(build):
    """Warns of compile units over the limit, by the last entry for each in ninja's log (the build's time erodes unseen)."""
    last = {}
    log = build / ".ninja_log"
    for line in log.read_text().splitlines()[1:] if log.exists() else []:
        begin, end, _, output, _ = line.split("\t")
        last[output] = (int(end) - int(begin)) / 1000
    for output, seconds in sorted(last.items(), key=lambda item: -item[1]):
        if output.endswith(".o") and seconds > SLOW_COMPILE_SECONDS:
            print(f"warning: compiling {output} took {seconds:.0f} s (limit {SLOW_COMPILE_SECONDS} s): lighter includes, or split it")


def build_all(kind, target):
    if subprocess.run([str(ROOT / "tools" / "build"), kind, target]).returncode != 0:
        print("0 passed, 1 failed")
        sys.exit(1)


def run(tests, build, case_filter, arguments):
    sanitize = arguments.sanitize
    environment = {**os.environ, **LEVELS.get(arguments.level, {})}
    if arguments.share:
        environment["TRAINER_TEST_SHARE"] = arguments.share
    environment.pop("GTEST_FILTER", None)
    if case_filter:
        environment["GTEST_FILTER"] = case_filter
    if sanitize:  # by itself UBSan prints and goes on
        environment.setdefault("UBSAN_OPTIONS", "print_stacktrace=1:halt_on_error=1")
        environment.setdefault("ASAN_OPTIONS", "allocator_may_return_null=1")  # tests ask for more than there is
        environment.setdefault("TSAN_OPTIONS", "halt_on_error=1:second_deadlock_stack=1")
    remove_old_results(tests, build)
    # One more than processors: some tests mostly wait. One by one where a page takes over times that tests measure.
    processes = 1 if os.environ.get("TRAINER_TEST_ACCEPT") == "1" else len(os.sched_getaffinity(0)) + 1
    command = ["meson", "test", "-C", str(build), "--no-rebuild", "--print-errorlogs", "-t", "5" if sanitize else "1",
               "--num-processes", str(processes)]
    return subprocess.run(command + [test["name"] for test in tests], env=environment, stdin=subprocess.DEVNULL).returncode


def main():
    arguments = parse_arguments()
    kind, target = SANITIZE_KINDS[arguments.sanitize] if arguments.sanitize else ("release", "all")
    build = ROOT / "build" / kind
    build_all(kind, "build.ninja" if arguments.list else target)  # a list needs the configuration alone
    tests = choose_suites(load_tests(build), arguments)
    case_filter = None
    if arguments.filter:
        tests, case_filter = apply_filter(tests, build, arguments.filter)
    if arguments.list:
        for test in tests:
            unbuilt = "" if pathlib.Path(test["cmd"][0]).exists() else "  (not built yet: its cases are not known)"
            print(f"{test['name']}  [{', '.join(sorted(suites_of(test)))}]{unbuilt}")
            for case in list_cases(test, build):
                if not case_filter or arguments.filter in case:
                    print(f"  {case}")
        return 0
    if not tests:
        print("tools/test: no test matches", file=sys.stderr)
        print("0 passed, 1 failed")
        return 1
    status = run(tests, build, case_filter, arguments)
    counts = count(tests, build)
    if status != 0 and counts.failed == 0:
        counts.add("failed", f"meson test (exit {status})", 0.0)
    print("\nslowest:")
    for seconds, name in sorted(counts.times, reverse=True)[:10]:
        print(f"  {seconds:7.2f} s  {name}")
    report_slow_compiles(build)
    for name in counts.failures:
        print(f"FAILED {name}")
    for reason in counts.reasons:
        print(f"SKIPPED {reason}")
    if counts.skipped:
        print(f"{counts.skipped} skipped")
    print(f"{counts.passed} passed, {counts.failed} failed")
    return 0 if counts.failed == 0 else 1


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    try:
        sys.exit(main())
    except BrokenPipeError:  # as by `tools/test --list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
