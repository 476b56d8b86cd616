"""What the tests of interrupted runs share: a run that is stopped or killed on the way, and its result against that of
an undisturbed one."""

import hashlib
import re
import signal
import time

from program import QUICKSTART, RunCase, log_lines

PREEMPTED = 75
STEPS = 16
# Every piece of state at once: accumulation, dropped captions, average.
MIXED = {"train__batch_size": 4, "train__micro_batch_size": 2, "train__caption_dropout": 0.3, "train__ema__decay": 0.9}


class InterruptedCase(RunCase):
    steps = STEPS

    def full_recipe(self):
        """The quickstart without [adapter]: all parameters are trained."""
        text = re.sub(r"\[adapter\]\n(?:[^\[].*\n|\n)*", "", QUICKSTART.read_text())
        text = text.replace('"quickstart/', f'"{QUICKSTART.parent}/quickstart/')
        text = re.sub(r"prompts = \[\n(?:  .*\n)*\]", "prompts = []", text)
        return self.write("full.toml", text)

    def result(self, run):
        """Every export and picture, the last checkpoint, and what was logged."""
        files = [path for folder in ("lora", "model", "samples") for path in run.glob(f"{folder}/**/*") if path.is_file()]
        files.append(run / f"ckpt/step-{self.steps:010}/rank-00000.safetensors")
        self.assertTrue([path for path in files if path.name.endswith(f"-{self.steps}.safetensors")], files)
        return (
            {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
            [
                line if "validation_loss" in line else (line["step"], line["loss"], line["loss_smoothed"])
                for line in log_lines(run)
            ],
        )

    def reference(self, **more):
        self.train(self.folder / "reference", run__steps=self.steps, **more)
        return self.result(self.folder / "reference")

    def interrupt(self, run, number, at, **more):
        process = self.start(*self.arguments(run, run__steps=self.steps, **more))
        self.wait_for_steps(process, run, at)
        process.send_signal(number)
        asked = time.monotonic()
        out, err = process.communicate()
        self.assertLess(time.monotonic() - asked, 5, "seconds until the state was saved")
        self.assertEqual(process.returncode, PREEMPTED, err)
        match = re.search(rf"stopped by signal {number} after step (\d+); saved (\S+)", err)
        self.assertTrue(match, err)
        self.assertIn("run the same command again to go on from there", err)
        self.assertEqual(match[2], str(run / f"ckpt/step-{int(match[1]):010}"))
        self.assertTrue((run / f"ckpt/step-{int(match[1]):010}/MANIFEST.json").exists())
        return int(match[1])

    def assert_same_after_signals(self, **more):
        expected = self.reference(**more)
        run = self.folder / "run"
        first = self.interrupt(run, signal.SIGINT, 2, **more)
        second = self.interrupt(run, signal.SIGTERM, first + 2, **more)
        self.assertGreater(second, first)
        self.train(run, texts=f"going on after step {second}", run__steps=self.steps, **more)
        self.assertEqual(self.result(run), expected)
