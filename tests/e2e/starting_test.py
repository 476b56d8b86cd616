"""Starts in folders that are there: held by a living run, used before, moved, under nohup."""

import json
import signal
import unittest

from interrupted import PREEMPTED
from program import RunCase, log_lines

NOT_FOUND, LOCKED = 66, 77


class Starting(RunCase):
    def test_folder_of_a_living_run(self):
        run = self.folder / "run"
        process = self.start(*self.arguments(run, run__steps=100000))
        self.wait_for_steps(process, run, 1)
        self.train(run, code=LOCKED, texts=[str(run), f"pid {process.pid}", "run.output"])
        process.kill()
        process.wait()
        self.train(run)  # a dead one holds nothing

    def test_required_without_checkpoint(self):
        self.train(self.folder / "run", code=NOT_FOUND, texts=["--resume required"], options=["--resume", "required"])

    def test_never_in_a_used_folder(self):
        run = self.folder / "run"
        self.train(run, run__steps=2, options=["--resume", "never"])
        log = (run / "log.jsonl").read_bytes()
        self.train(
            run, run__steps=4, code=LOCKED, texts=["--resume never", "run.output"], options=["--resume", "never"]
        )
        self.assertEqual((run / "log.jsonl").read_bytes(), log)

    def test_named_checkpoint(self):
        run = self.folder / "run"
        self.train(run, run__steps=4, checkpoint__every=2, checkpoint__keep=0)
        self.train(
            self.folder / "other",
            run__steps=4,
            options=["--resume", run / "ckpt/step-0000000002"],
            texts="going on after step 2",
        )
        self.assertEqual(
            (run / "lora/small-4.safetensors").read_bytes(),
            (self.folder / "other/lora/small-4.safetensors").read_bytes(),
        )

    def test_rotation_keeps_the_newest(self):
        run = self.folder / "run"
        self.train(run, run__steps=5, checkpoint__every=1, checkpoint__keep=2)
        self.assertEqual(sorted(path.name for path in (run / "ckpt").iterdir()), ["step-0000000004", "step-0000000005"])

    def test_a_moved_run_with_a_damaged_newest_checkpoint(self):
        first, run = self.folder / "first", self.folder / "run"
        self.train(first, run__steps=4, checkpoint__every=2)
        first.rename(run)
        (run / "ckpt/step-0000000004/MANIFEST.json").write_text("{}")
        self.train(run, run__steps=4, code=LOCKED, texts="--resume never", options=["--resume", "never"])
        self.train(run, run__steps=4, texts="going on after step 2")
        self.assertNotIn(str(self.folder), json.dumps(json.loads((run / "run.json").read_text())["newest_checkpoint"]))

    def test_a_moved_run_that_was_stopped_after_it_set_its_newest_checkpoint_aside(self):
        """Its run.json, of an earlier version, names the old place."""
        first, run = self.folder / "first", self.folder / "run"
        self.train(first, run__steps=4, checkpoint__every=2)
        note = json.loads((first / "run.json").read_text())
        note["newest_checkpoint"]["folder"] = str(first / "ckpt/step-0000000004")
        (first / "run.json").write_text(json.dumps(note))
        first.rename(run)
        (run / "ckpt/step-0000000004").rename(run / "ckpt/step-0000000004.bad-CKPT_HASH")
        self.train(run, run__steps=4, texts="going on after step 2")

    def test_nohup(self):
        """As started by nohup: the end of the terminal does not stop it, a request to stop does."""
        run = self.folder / "run"
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            process = self.start(*self.arguments(run, run__steps=100000))
        finally:
            signal.signal(signal.SIGHUP, before)
        self.wait_for_steps(process, run, 1)
        process.send_signal(signal.SIGHUP)
        self.wait_for_steps(process, run, len(log_lines(run)) + 3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        self.assertEqual(process.returncode, PREEMPTED, err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
