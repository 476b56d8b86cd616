"""The two sides of tools/bench: a process each, which answers a line with a line, and what is made of their answers."""
import collections
import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading

from levels import LEVELS  # of tools/, where whoever imports this is

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# What ours asks of glibc by itself (framework/base/heap.cpp): freed blocks of up to 32 MiB stay with the process.
KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
KEPT_LINES = 40  # of what a side says on stderr


class Stopped(Exception):
    """A side ended before it was asked to; with the end of what it said on stderr."""


class Side:
    def __init__(self, command, options, more=()):
        env = dict(os.environ, HF_HUB_OFFLINE="1", **LEVELS.get(options.level, {}), **dict(more))
        if not options.defaults:
            env.update(OMP_NUM_THREADS=str(options.threads), MKL_NUM_THREADS=str(options.threads), GOMP_SPINCOUNT="0",
                       **KEEP_FREED_MEMORY)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, errors="replace", env=env)
        self.said = collections.deque(maxlen=KEPT_LINES)
        self.listener = threading.Thread(target=self.listen, daemon=True)
        self.listener.start()
        self.parameters = int(self.answer("ready")[1])

    def listen(self):
        for line in self.process.stderr:
            sys.stderr.write(line)
            self.said.append(line)

    def stopped(self, why=""):
        code = self.process.wait()
        self.listener.join(timeout=10)  # a child of it may hold the pipe
        return Stopped(f"{self.process.args[0]} {why}stopped with exit code {code}\n{''.join(self.said)}".rstrip())

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            raise self.stopped()
        return line.rstrip("\n")

    def answer(self, first=None):
        line = self.line().split()
        if not line or (first and line[0] != first):
            self.process.kill()
            raise self.stopped(f"said {line} and ")
        return line

    def tell(self, what):
        try:
            self.process.stdin.write(what + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # its end is seen when the answer is read

    def ask(self, what):
        self.tell(what)
        return [float(number) for number in self.answer()]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def start(options, settings, ours="step_worker", python="python_worker.py", only=None):
    """Both sides, or the one that is asked for, each in a process of its own."""
    text, sides = json.dumps(settings), {}
    if only != "python":
        if not (options.build / "tests/bench" / ours).exists():
            sys.exit(f"{options.build}/tests/bench/{ours} is not built: run `tools/build release` first")
        path = {"LD_LIBRARY_PATH": options.library_path} if options.library_path else {}
        sides["ours"] = Side([str(options.build / "tests/bench" / ours), text], options, path)
    if options.python and only != "ours":
        sides["python"] = Side([options.python, str(ROOT / "tests/bench" / python), text], options)
    return sides


def alternate(options, sides, question):
    """Rows of numbers of each side, one a pair."""
    rows = {name: [] for name in sides}
    for pair in range(options.warmup + options.pairs):
        for name in sorted(sides, reverse=pair % 2 == 1):
            numbers = sides[name].ask(question)
            if pair >= options.warmup:
                rows[name].append(numbers)
    return rows


def threads_of(options):
    return os.cpu_count() if options.defaults else options.threads


def compared(options, rows):
    """Medians of each side, and of the ratios of the first to the second, pair by pair; rows begin with seconds and CPU
    seconds."""
    result = {"pairs": options.pairs}
    for name, numbers in rows.items():
        result[name] = {"seconds": statistics.median(r[0] for r in numbers),
                        "cpu_seconds": statistics.median(r[1] for r in numbers),
                        "busy": statistics.median(r[1] / r[0] for r in numbers) / threads_of(options)}
    if len(rows) == 2:
        first, second = rows
        for key, column in (("ratio", 0), ("cpu_ratio", 1)):
            ratios = [a[column] / b[column] for a, b in zip(rows[first], rows[second])]
            low, middle, high = statistics.quantiles(ratios, n=4)
            result[key] = {"median": middle, "quartiles": [low, high]}
        result["valid"] = min(result[first]["busy"], result[second]["busy"]) >= 0.9
    return result
