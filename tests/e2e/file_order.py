"""Whether a program made its files durable in the right order, from what strace saw of it. The rules are those of
docs/reliability.md:

* what gets a new name by rename, a file or a folder with all in it, was written and synced before;
* the folder that the name is in is synced before anything else is renamed or deleted, and before the program ends;
* so are the names of folders that were made on the way to it;
* of checkpoints only what lies in .tmp-... or .trash-... is deleted.
"""

import collections
import os
import re

WRITES = {"write", "pwrite64", "writev", "pwritev", "ftruncate"}
SYNCS = {"fsync", "fdatasync"}
RENAMES = {"rename", "renameat", "renameat2"}
DELETES = {"unlink", "unlinkat", "rmdir"}
MAKES = {"mkdir", "mkdirat"}
CALLS = WRITES | SYNCS | RENAMES | DELETES | MAKES | {"openat"}

COMPLETE = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+)")
BEGUN = re.compile(r"(\d+) +(\w+)\((.*) <unfinished \.\.\.>$")
ENDED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>[^=]*= (-?\d+)")
OPERAND = re.compile(r'(?:\d+|AT_FDCWD)<([^>]*)>|"([^"]*)"')


def command(trace):
    """strace and its options; the program and its arguments follow."""
    return ["strace", "-f", "-y", "--seccomp-bpf", "-s", "0", "-e", "trace=" + ",".join(sorted(CALLS)), "-o", str(trace)]


def named(text):
    """The paths that a call names, each joined with the open folder before it."""
    folder, paths = "", []
    for found in OPERAND.finditer(text):
        if found[1] is not None:
            folder = found[1]
        else:
            paths.append(os.path.normpath(os.path.join(folder, found[2])))
    return paths


def events(lines):
    """(thread, call, its text, None at its begin or its result at its end): threads overlap."""
    open_calls = {}
    for line in lines:
        if begun := BEGUN.match(line):
            open_calls[begun[1]] = begun[3]
            yield begun[1], begun[2], begun[3], None
        elif ended := ENDED.match(line):
            yield ended[1], ended[2], open_calls.pop(ended[1]), int(ended[3])
        elif complete := COMPLETE.match(line):
            yield complete[1], complete[2], complete[3], None
            yield complete[1], complete[2], complete[3], int(complete[4])


class FileOrder:
    """What is durable below `root` after the calls so far; `problems` says which of them broke a rule."""

    def __init__(self, root):
        self.root = str(root)
        self.changes = collections.Counter()  # of a file's data, or of a folder's names
        self.durable = collections.Counter()  # how many of them a sync that succeeded came after
        self.syncing = {}  # by thread: the changes when its sync began
        self.made = {}  # folder: the change of its parent that gave it its name
        self.waiting = {}  # folder: the rename into it that waits for its sync
        self.problems, self.renamed = [], []

    def check(self, lines):
        for thread, call, text, result in events(lines):
            if call in SYNCS | WRITES:
                path = OPERAND.search(text)[1]
                if self.inside(path):
                    (self.sync if call in SYNCS else self.write)(thread, path, result)
                continue
            paths = named(text)
            if not paths or not self.inside(paths[-1]):
                continue
            if result is None:
                self.before(call, paths)
            elif result >= 0:
                self.after(call, text, paths)
        self.require_synced("the end")
        return self.problems

    def inside(self, path):
        return path == self.root or path.startswith(self.root + "/")

    def write(self, _thread, path, _result):
        self.changes[path] += 1  # at its begin and at its end: a sync between them came too early

    def sync(self, thread, path, result):
        if result is None:
            self.syncing[thread] = self.changes[path]
        elif result == 0:
            self.durable[path] = max(self.durable[path], self.syncing[thread])
            if self.is_durable(path):
                self.waiting.pop(path, None)

    def is_durable(self, path):
        return self.durable[path] >= self.changes[path]

    def before(self, call, paths):
        if call in RENAMES:
            what = f"{paths[0]} -> {paths[1]}"
            self.require_synced(what)
            below = paths[0] + "/"
            for path in [path for path in self.changes if path == paths[0] or path.startswith(below)]:
                if not self.is_durable(path):
                    self.problems.append(f"{what}: {path} is not synced")
            for folder, change in self.made.items():
                if paths[1].startswith(folder + "/") and self.durable[os.path.dirname(folder)] < change:
                    self.problems.append(f"{what}: the name of {folder} is not synced")
        elif call in DELETES and "/ckpt/" in paths[0]:
            self.require_synced(f"deleting {paths[0]}")
            if not paths[0].split("/ckpt/")[-1].startswith((".tmp-", ".trash-")):
                self.problems.append(f"deleting {paths[0]}: a checkpoint that has its name")

    def after(self, call, text, paths):
        for path in paths:
            if call != "openat" or "O_CREAT" in text:
                self.changes[os.path.dirname(path)] += 1
        if call in MAKES:
            self.made[paths[0]] = self.changes[os.path.dirname(paths[0])]
        elif call in RENAMES:
            self.move(*paths)
            self.waiting[os.path.dirname(paths[1])] = f"{paths[0]} -> {paths[1]}"
            self.renamed.append(paths[1])

    def move(self, old, new):
        """What is known of a file or folder goes with its name."""
        for known in (self.changes, self.durable, self.made):
            for path in [path for path in known if path == old or path.startswith(old + "/")]:
                known[new + path[len(old) :]] = known.pop(path)

    def require_synced(self, before):
        for folder, rename in self.waiting.items():
            self.problems.append(f"{before}: {folder} is not synced after {rename}")
