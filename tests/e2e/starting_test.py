"""Starts in folders that are there: held by a living run, used before, moved, under nohup."""

import json
import os
import shutil
import signal
import time
import unittest

from interrupted import PREEMPTED
from program import TIMEOUT, RunCase, log_lines

NOT_FOUND, LOCKED, BAD_RECIPE = 66, 77, 78


class Starting(RunCase):
    def test_folder_of_a_living_run(self):
        run = self.folder / "run"
        process = self.start(*self.arguments(run, run__steps=100000))
        self.wait_for_steps(process, run, 1)
        self.train(run, code=LOCKED, texts=[str(run), f"pid {process.pid}", "run.output"])
        process.kill()
        process.wait()
        self.train(run)  # a dead one holds nothing

    def held(self, run, **more):
        """A run of many steps that saves every five, stopped after its third; its folder is deleted."""
        process = self.start(*self.arguments(run, run__steps=100000, checkpoint__every=5, **more))
        self.wait_for_steps(process, run, 3)
        process.send_signal(signal.SIGSTOP)
        shutil.rmtree(run)
        return process

    def assert_all_of_one_run(self, run, steps):
        """Nobody else's checkpoints are in the folder."""
        run_id = json.loads((run / "run.json").read_text())["run_id"]
        folders = sorted((run / "ckpt").iterdir())
        self.assertEqual(folders[-1].name, f"step-{steps:010}")
        for folder in folders:
            self.assertIn(f'"run_id": "{run_id}"', (folder / "MANIFEST.json").read_text())

    def test_folder_deleted_under_a_run_and_used_by_another(self):
        run = self.folder / "run"
        first = self.held(run, run__seed=1)
        self.train(run, run__steps=18, run__seed=2)
        first.send_signal(signal.SIGCONT)
        _, err = first.communicate()
        self.assertEqual(first.returncode, LOCKED, err)
        self.assertIn("another run took this folder over", err)
        self.assert_all_of_one_run(run, 18)
        self.assertEqual([path.name for path in (run / "lora").iterdir()], ["small-18.safetensors"])

    def test_a_lost_run_notes_nothing_in_the_folder_of_another(self):
        """Its steps until the next save neither, when it had gone on from a checkpoint."""
        run = self.folder / "run"
        self.train(run, run__steps=2, run__seed=1)
        process = self.held(run, run__seed=1)
        self.train(run, run__steps=18, run__seed=2)
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate()
        self.assertEqual(process.returncode, LOCKED, err)
        self.assertFalse((run / "attempts.json").exists())

    def test_folder_deleted_under_a_run_that_encodes_and_used_by_another(self):
        run, cache = self.folder / "run", self.folder / "new-cache"
        process = self.start(*self.arguments(run, cache__folder=cache, run__steps=30, run__seed=1))
        deadline = time.monotonic() + TIMEOUT
        while not any(cache.rglob("*.safetensors")):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.001)
        process.send_signal(signal.SIGSTOP)
        self.assertFalse((run / "log.jsonl").exists())
        shutil.rmtree(run)
        self.train(run, run__steps=4, run__seed=2)
        kept = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate()
        self.assertEqual(process.returncode, LOCKED, err)
        self.assertIn("another run took this folder over", err)
        self.assertEqual({path: path.read_bytes() for path in run.rglob("*") if path.is_file()}, kept)

    def test_folder_deleted_under_a_run_and_held_by_another(self):
        run = self.folder / "run"
        first = self.held(run, run__seed=1)
        second = self.start(*self.arguments(run, run__steps=100000, run__seed=2))
        self.wait_for_steps(second, run, 1)
        first.send_signal(signal.SIGCONT)
        _, err = first.communicate()
        self.assertEqual(first.returncode, LOCKED, err)
        self.assertIn(f"(pid {second.pid} on ", err)
        second.send_signal(signal.SIGTERM)
        _, err = second.communicate()
        self.assertEqual(second.returncode, PREEMPTED, err)
        step = len(log_lines(run)) + 1
        self.train(run, run__steps=step, run__seed=2, texts="going on after step")
        self.assert_all_of_one_run(run, step)

    def test_folder_deleted_under_a_run(self):
        """What was trained is saved in the folder, made again."""
        run = self.folder / "run"
        process = self.held(run)
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
        self.assertEqual(process.returncode, PREEMPTED, err)
        self.assertIn(f"{run}: was moved or deleted while this run goes on", err)
        step = max(int(path.name[5:]) for path in (run / "ckpt").iterdir())
        self.train(run, run__steps=step + 1, checkpoint__every=5, texts=f"going on after step {step}")
        self.assert_all_of_one_run(run, step + 1)

    def test_what_a_killed_run_left_half_written_is_deleted(self):
        run, cache = self.folder / "run", self.folder / "cache"
        self.train(run, run__steps=2, cache__folder=cache)
        samples = run / "samples/step-0000000002"
        names = (".run.json.tmp-4194999-0", "lora/.small-2.safetensors.tmp-4194999-7", "samples/.small-2.png.tmp-4194999-1")
        left = [*(run / name for name in names), samples / ".p00-seed1.png.tmp-4194999-3"]
        kept = [run / f"lora/.small-2.safetensors.tmp-{os.getpid()}-0", samples / f".p00-seed1.png.tmp-{os.getpid()}-3"]
        kept += [samples / "p00-seed1.png", self.folder / "elsewhere/.p00-seed1.png.tmp-4194999-3"]
        old, new = cache / "text/ab/.old.safetensors.tmp-1-0", cache / "text/ab/.new.safetensors.tmp-1-0"
        for file in (*left, *kept, old, new):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"half")
        os.utime(old, (0, 0))
        (run / "samples/step-0000000003").symlink_to(kept[-1].parent)
        self.train(run, run__steps=3, cache__folder=cache)
        self.assertEqual([path for path in (*left, old) if path.exists()], [])
        self.assertEqual([path for path in (*kept, new) if not path.exists()], [])

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

    def test_a_result_of_a_step_after_the_newest_checkpoint(self):
        """Of which only run.json knows: where that is damaged, the results still tell."""
        run = self.folder / "run"
        self.train(run, run__steps=4, checkpoint__every=2, checkpoint__keep=0)
        (run / "run.json").write_text("{")
        shutil.rmtree(run / "ckpt/step-0000000004")
        texts = ["checkpoint is of step 2, but ", "lora/small-4.safetensors is a result of step 4"]
        self.expect(0, texts, "check", *self.arguments(run, run__steps=5)[1:])
        self.train(run, run__steps=5, texts=[*texts, "going on after step 2"])
        told = self.train(run, run__steps=5)
        self.assertNotIn("is a result of step", told.err)

    def test_a_result_of_a_step_after_checkpoints_that_are_damaged(self):
        run = self.folder / "run"
        self.train(run, run__steps=4, checkpoint__every=2, checkpoint__keep=0)
        file = run / "ckpt/step-0000000004/rank-00000.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        self.train(run, run__steps=4, texts=["going on after step 2", "checkpoint is of step 2, but ",
                                             "lora/small-4.safetensors is a result of step 4"])

    def test_what_is_no_checkpoint_makes_no_folder(self):
        first, other = self.folder / "first", self.folder / "other"
        self.train(first, run__steps=1)
        for name, text in (("requird", "no such checkpoint folder"), (first / "lora", "is no checkpoint"),
                           (first, "is no checkpoint")):  # fmt: skip
            self.train(other, code=NOT_FOUND, texts=[f"--resume {name}: ", text], options=["--resume", name])
            self.assertFalse(other.exists())

    def test_another_number_of_sources_is_one_difference(self):
        """No override gives a recipe a source more: it is not offered."""
        one = f'{{folder="{self.pictures("data", 4)[0]}", resolution=[64, 64]}}'
        for name, then, now, row in (("fewer", 2, 1, "data: checkpoint 2 sources, recipe 1 source"),
                                     ("more", 1, 2, "data: checkpoint 1 source, recipe 2 sources")):  # fmt: skip
            with self.subTest(name):
                run = self.folder / name
                base = {"run__steps": 2, "data": f"[{', '.join([one] * then)}]"}
                self.train(run, **base)
                more = {**base, "data": f"[{', '.join([one] * now)}]", "run__steps": 4}
                refused = self.train(run, code=BAD_RECIPE, texts=[row, "--resume-with recipe"], **more)
                self.assertNotIn("--resume-with checkpoint", refused.err)
                self.assertNotIn("data.1", refused.err)
                texts = ["--resume-with checkpoint", f"{then} source", f"{now} source", "set them back"]
                refused = self.train(run, code=BAD_RECIPE, texts=texts, options=["--resume-with", "checkpoint"], **more)
                self.assertNotIn("there is no item", refused.err)
                arguments = self.arguments(run, **more)[1:]
                self.expect(BAD_RECIPE, [row], "check", *arguments, "--resume-with", "checkpoint")

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
