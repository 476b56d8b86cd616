"""What a recompute leaves out is tested again in the step that a checkpoint is made of, before the checkpoint, whatever
asked for it.

TRAINER_WAKING is the folder of an adapter that reads from step TRAINER_TEST_WAKE_AT on what nothing read before, so that
gradients are silently wrong from there.
"""

import os
import re
import signal
import unittest

from interrupted import PREEMPTED
from program import RunCase, log_lines

FAILED = 1
FOUND = ["is read now, but nothing read it when this was tested", "frozen_linear", "elide = false"]


class Waking(RunCase):
    def arguments(self, run, *pairs, **more):
        return super().arguments(run, "adapter.kind=waking", *pairs, **more)

    def awake_at(self, step):
        return {"TRAINER_PLUGIN_PATH": os.environ["TRAINER_WAKING"], "TRAINER_TEST_WAKE_AT": str(step)}

    def saved(self, run):
        return sorted(path.name for path in run.glob("ckpt/step-*"))

    def stopped(self, run, at, env, number=signal.SIGTERM):
        """(exit code, messages) of a run that gets a signal after step `at`."""
        process = self.start(*self.arguments(run, run__steps=100000), env=env)
        self.wait_for_steps(process, run, at)
        process.send_signal(number)
        _, err = process.communicate()
        return process.returncode, err

    def test_nothing_is_saved_of_a_step_that_fails_the_test(self):
        for wakes in (3, 4):
            with self.subTest(wakes=wakes):
                run = self.folder / f"wakes-{wakes}"
                arguments = self.arguments(run, run__steps=9, checkpoint__every=4)
                self.expect(FAILED, FOUND, *arguments, env=self.awake_at(wakes))
                self.assertEqual(len(log_lines(run)), 3, "found in the step that would have been saved")
                self.assertEqual(self.saved(run), [])

    def test_what_was_saved_before_stays(self):
        run = self.folder / "run"
        arguments = self.arguments(run, run__steps=9, checkpoint__every=4)
        self.expect(FAILED, FOUND, *arguments, env=self.awake_at(6))
        self.assertEqual(self.saved(run), ["step-0000000004"])
        self.assertEqual(len(log_lines(run)), 7)

    def test_the_last_step_is_tested(self):
        run = self.folder / "run"
        self.expect(FAILED, FOUND, *self.arguments(run, run__steps=6), env=self.awake_at(5))
        self.assertEqual(self.saved(run), [])
        self.assertFalse(list(run.glob("lora/*")))

    def test_a_signal_saves_no_untested_step(self):
        run = self.folder / "run"
        code, err = self.stopped(run, 4, self.awake_at(3))
        self.assertEqual(code, FAILED, err)
        for text in FOUND:
            self.assertIn(text, err)
        self.assertEqual(self.saved(run), [])

    def test_a_signal_saves_a_tested_step(self):
        run, env = self.folder / "run", self.awake_at(1 << 40)
        code, err = self.stopped(run, 4, env)
        self.assertEqual(code, PREEMPTED, err)
        step = int(re.search(r"stopped by signal 15 after step (\d+); saved", err)[1])
        self.assertEqual(self.saved(run), [f"step-{step:010}"])
        self.assertEqual(len(log_lines(run)), step)
        whole = self.folder / "whole"
        for folder in (run, whole):
            self.expect(0, [], *self.arguments(folder, run__steps=step + 2), env=env)
        exports = [next(folder.glob("lora/*")).read_bytes() for folder in (run, whole)]
        self.assertEqual(exports[0], exports[1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
