"""kill -9 at random moments, again and again: the final files are those of an undisturbed run, byte for byte. Quick: every
kind of run, with fewer kills."""

import hashlib
import json
import random
import re
import shutil
import signal
import time
import unittest

from interrupted import MIXED, InterruptedCase
from program import TIMEOUT, WHOLE

KILLS, IN_A_SAVE = (10, 2) if WHOLE else (3, 1)  # how many; of them in a save at least, for certain
ALONE = {"train__batch_size": 1, "train__micro_batch_size": 1}
ACCUMULATED = {"train__batch_size": 3, "train__micro_batch_size": 1}
TENSORS = "rank-00000.safetensors"


def digest(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def checkpoints(run):
    """{step: digest of its tensors} of what is there under its final name."""
    return {int(path.parent.name[5:]): digest(path) for path in run.glob(f"ckpt/step-*/{TENSORS}")}


def last_step(run):
    """Of the last whole row: the one after it may be half there while it is written, or after a kill."""
    return json.loads((run / "log.jsonl").read_bytes().split(b"\n")[-2])["step"]


def half_made(run):
    """What a save, a rotation, an export or a note leaves that does not get to its end."""
    return [path.name for path in run.rglob(".t*") if path.name.startswith((".tmp-", ".trash-"))] + [
        path.name for path in run.rglob(".*.tmp-*")
    ]


class Kills(InterruptedCase):
    steps = 60 if WHOLE else 40

    def setUp(self):
        super().setUp()
        self.at, self.in_a_save = [], 0
        self.unrecoverable = self.lost = self.damaged = 0
        seed = random.randrange(1 << 30)
        print(f"seed {seed}", end=" ", flush=True)
        self.chance = random.Random(seed)

    def assert_same_after_kills(self, **more):
        more = {"checkpoint__every": 4, "validation__fraction": 0.1, "validation__every": 12, "validation__timesteps": 1,
                **more}  # fmt: skip
        if "recipe" not in more:  # that one has no prompts
            more |= {"sample__prompts": '["a"]', "sample__every": 20, "sample__steps": 1, "sample__seeds": "[0]"}
        expected = self.undisturbed(**more)
        results = []
        for attempt in range(5 * KILLS):
            run = self.folder / f"run-{len(results)}"
            if len(self.at) >= KILLS and self.in_a_save >= IN_A_SAVE:
                break
            if not self.kill(run, **more):
                results.append(self.result(run))
        self.train(run, run__steps=self.steps, **more)
        results.append(self.result(run))
        differing = sum(result != expected for result in results)
        print(f"{len(self.at)} kills, after steps {sorted(self.at)}, {self.in_a_save} with a file half-made; "
              f"{self.unrecoverable} unrecoverable, {self.lost} committed steps lost, {self.damaged} damaged accepted, "
              f"final bytes differ in {differing} of {len(results)} runs", end=" ", flush=True)  # fmt: skip
        self.assertEqual([self.unrecoverable, self.lost, self.damaged], [0, 0, 0])
        for result in results:
            self.assertEqual(result, expected)
        self.assertEqual(half_made(run), [])
        self.assertGreaterEqual(self.in_a_save, IN_A_SAVE)
        self.assertGreaterEqual(len(set(self.at)), (KILLS + 1) // 2, "kills at the same few moments")

    def undisturbed(self, **more):
        """What a run without kills leaves; notes its checkpoints and how long a step takes with all that goes with it."""
        run = self.folder / "reference"
        process = self.start(*self.arguments(run, run__steps=self.steps, checkpoint__keep=0, **more))
        self.wait_for_steps(process, run, 1)
        begun = time.monotonic()
        _, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 0, err)
        self.seconds_a_step = (time.monotonic() - begun) / self.steps
        self.states = checkpoints(run)
        expected = self.result(run)
        shutil.rmtree(run)
        return expected

    def kill(self, run, **more):
        """Starts the run and kills it at a random moment of what it still has to do; False when it came to its end."""
        before = (run / "log.jsonl").read_bytes() if run.exists() else b""
        there = checkpoints(run)
        if len(self.at) > 2 and len(set(self.at[-3:])) == 1:  # chance, as in a long save; it would refuse a sixth
            (run / "attempts.json").unlink(missing_ok=True)
        process = self.start(*self.arguments(run, run__steps=self.steps, **more))
        if self.wait_for_own_row(process, run, before):
            begun, first = time.monotonic(), last_step(run)
            # So that the kills that are left spread over what is left of the run, on the average.
            share = min(1, 2 / (max(0, KILLS - len(self.at)) + 1))
            time.sleep(self.chance.uniform(0, share * (self.steps - max(there, default=0)) * self.seconds_a_step))
            if len(self.at) % 3 == 2 or len(self.at) >= KILLS:
                self.wait_for_save(process, run)
            process.kill()
            ran = time.monotonic() - begun
        out, err = process.communicate()
        self.judge_start(out + err, there)
        if process.returncode != -signal.SIGKILL:
            self.assertEqual(process.returncode, 0, err)
            return False
        self.at.append(last_step(run))
        self.in_a_save += bool(half_made(run))
        if self.at[-1] - first >= 4:  # the machine may be slower or faster than it was
            self.seconds_a_step = ran / (self.at[-1] - first)
        return True

    def wait_for_own_row(self, process, run, before):
        """Whether this process has written a row: from then on the log is no beginning of what another one left."""
        deadline = time.monotonic() + TIMEOUT
        while process.poll() is None:
            log = (run / "log.jsonl").read_bytes() if (run / "log.jsonl").exists() else b""
            if b"\n" in log and not before.startswith(log):
                return True
            self.assertLess(time.monotonic(), deadline, "no progress")
            time.sleep(0.005)
        return False

    def wait_for_save(self, process, run):
        while process.poll() is None and not any(path.name.startswith(".tmp-") for path in (run / "ckpt").iterdir()):
            time.sleep(0.0005)

    def judge_start(self, text, there):
        """Whether it went on from the newest checkpoint there was, and that was what an undisturbed run had then."""
        found = re.search(r"going on after step (\d+)", text)
        step = int(found[1]) if found else 0
        self.unrecoverable += bool(there and not found)
        self.lost += bool(found and step < max(there))
        self.damaged += bool(found and there.get(step) != self.states[step])

    def test_lora(self):
        self.assert_same_after_kills(**ALONE)

    def test_lora_accumulated_with_everything_on(self):
        self.assert_same_after_kills(**{**MIXED, **ACCUMULATED})

    def test_all_parameters(self):
        self.assert_same_after_kills(recipe=self.full_recipe(), checkpoint__every=6, **ALONE)

    def test_all_parameters_accumulated(self):
        self.assert_same_after_kills(recipe=self.full_recipe(), checkpoint__every=6, **ACCUMULATED)


if __name__ == "__main__":
    unittest.main(verbosity=2)
