"""What a run leaves beside its checkpoints when it is stopped, killed or repeated: exports and pictures."""

import signal
import time
import unittest

from interrupted import PREEMPTED, STEPS, InterruptedCase
from program import log_lines


class Results(InterruptedCase):
    def measured(self, run):
        """Steps with a validation loss."""
        return [line["step"] for line in log_lines(run) if "validation_loss" in line]

    def test_signal_while_drawing(self):
        run = self.folder / "run"
        samples = {"sample__prompts": '["a"]', "sample__before": "false", "sample__every": 2}
        long = {"sample__steps": 1000, "sample__size": "[256, 256]", "run__steps": 100}
        process = self.start(*self.arguments(run, **samples, **long))
        self.wait_for_steps(process, run, 2)
        time.sleep(0.5)  # in the middle of one picture
        process.send_signal(signal.SIGINT)
        asked = time.monotonic()
        _, err = process.communicate()
        self.assertLess(time.monotonic() - asked, 5, "seconds until the state was saved")
        self.assertEqual(process.returncode, PREEMPTED, err)
        self.assertIn("samples at step 2: stopped", err)
        self.train(run, **samples, sample__steps=2, run__steps=6, texts="going on after step ")
        for step in (2, 6):  # the ones that were not drawn, too
            self.assertTrue((run / f"samples/small-{step}.png").exists(), step)

    def test_signal_while_drawing_after_the_last_step(self):
        run = self.folder / "run"
        base = {"sample__prompts": '["a"]', "sample__before": "false", "run__steps": 2}
        process = self.start(*self.arguments(run, **base, sample__steps=1000, sample__size="[256, 256]"))
        self.wait_for_steps(process, run, 2)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
        self.assertEqual(process.returncode, PREEMPTED, err)
        self.assertIn("run the same command again for what is missing", err)
        self.assertFalse((run / "samples/small-2.png").exists())
        self.train(run, **base, sample__steps=2)
        self.assertTrue((run / "samples/small-2.png").exists())

    def test_signal_in_the_last_validation(self):
        run = self.folder / "run"
        base = {"validation__fraction": 0.3, "validation__timesteps": 100, "run__steps": 2}
        process = self.start(*self.arguments(run, **base))
        self.wait_for_steps(process, run, 3)  # and the row of the validation before the first step
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
        self.assertEqual(process.returncode, PREEMPTED, err)
        self.assertIn("run the same command again for what is missing", err)
        self.assertEqual(self.measured(run), [0])
        self.train(run, **base)
        self.assertEqual(self.measured(run), [0, 2])

    def test_what_a_stop_left_out_is_made_up(self):
        run = self.folder / "run"
        often = {"checkpoint__every": 1, "sample__prompts": '["a"]', "sample__every": 1, "sample__steps": 1}
        step = 0
        while step < 5:
            step = self.interrupt(run, signal.SIGTERM, step + 1, **often)
            self.assertLess(step, STEPS)
        self.train(run, run__steps=STEPS, **often)
        for what in ("lora/small-{}.safetensors", "samples/small-{}.png"):
            self.assertEqual([n for n in range(1, STEPS + 1) if not (run / what.format(n)).exists()], [], what)

    def test_damaged_results_of_a_finished_run(self):
        run = self.folder / "run"
        base = {"sample__prompts": '["a"]', "sample__steps": 2, "run__steps": 2}
        self.train(run, **base)
        lora, picture = run / "lora/small-2.safetensors", next(run.glob("samples/step-0000000002/*.png"))
        whole = lora.read_bytes(), picture.read_bytes()
        lora.write_bytes(whole[0][:3000])
        picture.write_bytes(whole[1][:100])
        before = next(run.glob("samples/step-0000000000/*.png"))
        before.write_bytes(before.read_bytes()[:100])
        self.train(run, texts=["the samples of step 2 cannot be used", "the samples of step 0 cannot"], **base)
        self.assertEqual((lora.read_bytes(), picture.read_bytes()), whole)

    def test_pictures_of_other_prompts_stay(self):
        run = self.folder / "run"
        more = {"sample__every": 2, "sample__steps": 1, "run__steps": 2, "sample__before": "false", "checkpoint__every": 1}
        self.train(run, **more, sample__prompts='["a"]')
        picture = next(run.glob("samples/step-0000000002/*.png"))
        first = picture.read_bytes()
        self.train(run, **{**more, "run__steps": 3}, sample__prompts='["b"]')
        self.assertEqual(picture.read_bytes(), first)

    def test_a_grid_that_was_not_written_is_made_up(self):
        run = self.folder / "run"
        more = {"sample__every": 2, "sample__steps": 1, "sample__prompts": '["a"]', "checkpoint__every": 2}
        self.train(run, **more, run__steps=2)
        grid = run / "samples/small-2.png"
        grid.unlink()
        self.train(run, **more, run__steps=3)
        self.assertTrue(grid.exists())


if __name__ == "__main__":
    unittest.main()
