"""The order in which a real run makes its files durable, as strace sees it: data before the name, the name before what
follows. And that the check refuses a run that does not."""

import re
import shutil
import subprocess
import unittest

import file_order
from file_order import FileOrder
from program import PROGRAM, RunCase, main

GOOD = """
7 mkdir("/r/ckpt", 0777) = 0
7 fsync(4</r>) = 0
7 mkdir("/r/ckpt/.tmp-1-a-1", 0777) = 0
7 fsync(4</r/ckpt>) = 0
7 openat(AT_FDCWD</home>, "/r/ckpt/.tmp-1-a-1/.x.tmp", O_WRONLY|O_CREAT|O_EXCL|O_CLOEXEC, 0666) = 4</r/ckpt/.tmp-1-a-1/.x.tmp>
7 write(4</r/ckpt/.tmp-1-a-1/.x.tmp>, ""..., 70) = 70
7 fdatasync(4</r/ckpt/.tmp-1-a-1/.x.tmp>) = 0
8 write(2</r/log.jsonl>, ""..., 3) = 3
7 rename("/r/ckpt/.tmp-1-a-1/.x.tmp", "/r/ckpt/.tmp-1-a-1/x") = 0
7 fsync(4</r/ckpt/.tmp-1-a-1>) = 0
7 renameat2(AT_FDCWD</home>, "/r/ckpt/.tmp-1-a-1", AT_FDCWD</home>, "/r/ckpt/step-1", RENAME_NOREPLACE) = 0
7 fsync(4</r/ckpt>) = 0
7 rename("/r/ckpt/step-0", "/r/ckpt/.trash-step-0") = 0
7 fsync(4</r/ckpt>) = 0
7 unlinkat(4</r/ckpt/.trash-step-0>, "x", 0) = 0
7 unlinkat(AT_FDCWD</home>, "/r/ckpt/.trash-step-0", AT_REMOVEDIR) = 0
""".strip().splitlines()
SYNC = "7 fdatasync(4</r/ckpt/.tmp-1-a-1/.x.tmp>) = 0"
COMMIT = GOOD.index("7 fsync(4</r/ckpt>) = 0", 8)


def without(number):
    return GOOD[:number] + GOOD[number + 1 :]


def instead_of(line, *others):
    at = GOOD.index(line)
    return GOOD[:at] + list(others) + GOOD[at + 1 :]


class Checker(unittest.TestCase):
    """On traces written by hand."""

    def assert_refused(self, trace, problem):
        problems = FileOrder("/r").check(trace)
        self.assertTrue([text for text in problems if problem in text], f"{problem}: {problems}")

    def test_the_right_order_is_accepted(self):
        order = FileOrder("/r")
        self.assertEqual(order.check(GOOD), [])
        self.assertEqual(order.renamed, ["/r/ckpt/.tmp-1-a-1/x", "/r/ckpt/step-1", "/r/ckpt/.trash-step-0"])

    def test_a_missing_sync_is_refused(self):
        syncs = [number for number, line in enumerate(GOOD) if "sync(" in line]
        self.assertEqual(len(syncs), 6)
        for number in syncs:
            self.assertNotEqual(FileOrder("/r").check(without(number)), [], GOOD[number])
        self.assert_refused(without(GOOD.index(SYNC)), ".x.tmp is not synced")
        self.assert_refused(without(COMMIT), ".trash-step-0: /r/ckpt is not synced after /r/ckpt/.tmp-1-a-1 -> /r/ckpt/step-1")
        self.assert_refused(GOOD[:COMMIT], "the end: /r/ckpt is not synced after /r/ckpt/.tmp-1-a-1 -> /r/ckpt/step-1")
        self.assert_refused(without(1), "the name of /r/ckpt is not synced")

    def test_a_sync_that_failed_or_came_too_early_is_none(self):
        write = '7 write(4</r/ckpt/.tmp-1-a-1/.x.tmp>, ""..., 70) = 70'
        self.assert_refused(instead_of(SYNC, SYNC.replace("= 0", "= -1 EIO (Input/output error)")), "is not synced")
        self.assert_refused(instead_of(SYNC, SYNC, write), "is not synced")
        self.assert_refused(instead_of(SYNC, SYNC, write.replace("write", "ftruncate")), "is not synced")

    def test_calls_of_several_threads(self):
        begun = SYNC.replace(") = 0", " <unfinished ...>")
        ended = "7 <... fdatasync resumed>)             = 0"
        write = '9 write(4</r/ckpt/.tmp-1-a-1/.x.tmp>, ""..., 1'
        good = instead_of(SYNC, begun, "9 fsync(5</elsewhere>) = 0", ended)
        self.assertEqual(FileOrder("/r").check(good), [])
        self.assert_refused(instead_of(SYNC, begun), "is not synced")
        self.assert_refused(instead_of(SYNC, begun, write + ") = 1", ended), "is not synced")
        self.assert_refused(instead_of(SYNC, write + " <unfinished ...>", SYNC, "9 <... write resumed>) = 1"), "is not synced")

    def test_a_checkpoint_is_deleted_only_out_of_sight(self):
        self.assert_refused(['7 unlink("/r/ckpt/step-1/x") = 0'], "a checkpoint that has its name")
        trash = [line for line in GOOD if ".trash-" in line]
        self.assert_refused(trash, "deleting /r/ckpt/.trash-step-0/x: /r/ckpt is not synced")


class RealRun(RunCase):
    def setUp(self):
        super().setUp()
        if not shutil.which("strace"):
            self.skipTest("strace is not installed")
        probe = subprocess.run([*file_order.command("/dev/null"), "true"], capture_output=True, text=True)
        if probe.returncode:
            self.skipTest(f"strace may not trace here: {probe.stderr.strip()}")

    def traced(self, run, *pairs, **more):
        trace = self.folder / "trace"
        strace, *options = file_order.command(trace)
        self.expect(0, [], *options, PROGRAM, *self.arguments(run, *pairs, **more), program=strace)
        return trace.read_text(errors="replace").splitlines()

    def test_checkpoints_exports_notes_and_pictures(self):
        run = self.folder / "run"
        more = {"checkpoint__every": 1, "checkpoint__keep": 2, "sample__prompts": '["a"]', "sample__every": 2,
                "sample__steps": 1}  # fmt: skip
        for first, last in ((0, 4), (4, 6)):  # a new run, and one that goes on
            trace = self.traced(run, run__steps=last, **more)
            order = FileOrder(self.folder)  # what the run's own name is in, too
            self.assertEqual(order.check(trace), [])
            steps = range(first + 1, last + 1)
            for name in [f"ckpt/step-{step:010}" for step in steps] + [f"lora/small-{step}.safetensors" for step in steps]:
                self.assertIn(str(run / name), order.renamed)
            self.assertGreaterEqual(order.renamed.count(str(run / "run.json")), len(steps))
            self.assertEqual(len([name for name in order.renamed if "/.trash-" in name]), len(steps) - (2 if first == 0 else 0))
            self.assertTrue([name for name in order.renamed if name.startswith(f"{run}/samples/")])
            self.assert_each_sync_is_needed(run, trace)
            print(f"{len(order.renamed)} renames, each in its order", end=" ", flush=True)

    def assert_each_sync_is_needed(self, run, trace):
        """Without it the same trace is refused: so each was looked at. Apart from syncs of names at the start, which are
        for what a run that was killed may have left."""
        trace = [line for line in trace if str(self.folder) in line or "resumed>" in line]
        needed = 0
        for number, line in enumerate(trace):
            if not re.match(r"\d+ +f(data)?sync\(.*\) += 0", line):
                continue
            if FileOrder(self.folder).check(trace[:number] + trace[number + 1 :]):
                needed += 1
            else:
                self.assertRegex(line, rf" fsync\(\d+<({self.folder}|{run}|{run}/ckpt)>\)")
        self.assertGreater(needed, 20)


if __name__ == "__main__":
    main()
