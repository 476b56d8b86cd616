"""Training from outside: what a run leaves behind and says, and that the options of data and training have effect."""

import array
import json
import math
import os
import pathlib
import pty
import re
import select
import shlex
import subprocess
import unittest

from interrupted import InterruptedCase
from program import MODEL, PICTURES, PROGRAM, QUICKSTART, TIMEOUT, RunCase, environment, log_lines, read_header, settings

NON_FINITE = 76


class Outputs(RunCase):
    def test_quickstart_leaves_what_it_says(self):
        run = self.folder / "run"
        arguments = [
            "run",
            QUICKSTART,
            *settings(
                'sample.prompts=["a fox", "a rocket"]',
                run__output=run,
                run__steps=4,
                checkpoint__every=2,
                sample__steps=2,
                sample__every=3,
            ),
        ]
        process = self.start(*arguments)
        out, err = process.stdout.read(), process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0, err)
        self.assertLess(usage.ru_maxrss * 1024, 1e9, "peak RSS")

        files = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file() and "cache" not in path.parts}
        ours = {name for name in files if not name.startswith("tb/")}
        steps = {
            f"samples/step-{step:010}/p{prompt:02}-seed{seed}.png"
            for step in (0, 3, 4)
            for prompt in (0, 1)
            for seed in (0, 1)
        }
        self.assertEqual(
            ours,
            {
                ".lock",
                ".note-room.bin",  # for run.json on a full disk
                "run.json",
                "recipe.toml",
                "log.jsonl",
                "lora/quickstart-2.safetensors",
                "lora/quickstart-4.safetensors",
                *(
                    f"ckpt/step-{step:010}/{name}"
                    for step in (2, 4)
                    for name in ("MANIFEST.json", "state.json", "rank-00000.safetensors")
                ),
                *(f"samples/quickstart-{step}.png" for step in (0, 3, 4)),
                *(f"samples/step-{step:010}/samples.json" for step in (0, 3, 4)),
                *steps,
            },
        )
        self.assertEqual(len(files - ours), 1, "one TensorBoard file")
        for name in ours:
            if name.endswith(".png"):
                self.assertEqual((run / name).read_bytes()[:8], b"\x89PNG\r\n\x1a\n", name)
        told = re.findall(rf"{run}\S*", out)
        self.assertEqual(len(told), 5, out)
        for path in told:
            self.assertTrue(os.path.exists(path), path)
        self.assertRegex(out, r"loss +\d\.\d{4} \(step 1\) -> \d\.\d{4}, both smoothed")
        self.assert_logged(run, 4)
        self.assert_portable(run / "lora/quickstart-4.safetensors")

    def assert_logged(self, run, steps):
        lines = log_lines(run)
        self.assertEqual([line["step"] for line in lines], list(range(1, steps + 1)))
        fields = ["step", "loss", "loss_smoothed", "lr", "grad_norm", "seconds", "memory", "bytes"]
        self.assertEqual(list(lines[0]), fields)
        numbers = ["step", "kept", "first_step", "later_steps", "cache", "load", "validate", "sample", "save"]
        for line in lines:
            self.assertEqual([(device, list(bytes)) for device, bytes in line["bytes"].items()], [("cpu", numbers)])
        first, last = (lines[i]["bytes"]["cpu"] for i in (0, -1))
        self.assertEqual((first["first_step"], first["later_steps"]), (first["step"], 0))
        self.assertEqual(last["first_step"], first["step"])
        self.assertEqual(last["later_steps"], max(line["bytes"]["cpu"]["step"] for line in lines[1:]))
        self.assertGreater(last["later_steps"], last["load"])
        self.assertTrue(0 < last["kept"] < last["step"], last)
        for line in lines:
            self.assertGreater(line["loss"], 0)
            self.assertEqual(line["lr"], 1e-3)

    def assert_portable(self, lora):
        """The form most programs read: A and B pairs only, and nothing personal."""
        header, _ = read_header(lora)
        metadata = header.pop("__metadata__")
        config = json.loads(metadata.pop("lora_adapter_metadata"))
        self.assertEqual((config["transformer.r"], config["transformer.lora_alpha"]), (16, 16))
        self.assertEqual(metadata, {"format": "pt", "software": "trainer", "step": "4"})
        self.assertEqual(len(header), 32)
        for name in header:
            self.assertRegex(name, r"^transformer\..+\.lora_[AB]\.weight$")
        self.assertNotIn(b"/home", lora.read_bytes()[:20000])

    def test_written_recipe_is_complete_and_runs_again(self):
        run, again, moved = self.folder / "run", self.folder / "again", self.folder / "moved.toml"
        self.train(run, 'adapter.targets=["*.to_q", "*.to_k"]', run__steps=3)
        text = (run / "recipe.toml").read_text()
        for section in (
            "run",
            "model",
            "text_encoder",
            "autoencoder",
            "train",
            "adapter",
            "objective",
            "optimizer",
            "memory",
            "placement",
            "sample",
            "checkpoint",
            "cache",
            "metrics",
        ):
            self.assertIn(f"[{section}]\n", text)
        self.assertNotIn("extends", text)
        moved.write_text(text)
        self.train(again, recipe=moved)
        self.assertEqual(
            (run / "lora/small-3.safetensors").read_bytes(), (again / "lora/small-3.safetensors").read_bytes()
        )
        written = (again / "recipe.toml").read_text()
        self.assertEqual(written.replace(str(again), str(run)), text)

    def test_second_time_does_nothing(self):
        run = self.folder / "run"
        samples = {"sample__prompts": '["a fox"]', "sample__steps": 1, "sample__seeds": "[1]"}
        self.train(run, run__steps=3, **samples)
        files = [path for path in run.rglob("*") if path.is_file() and path.name != ".lock"]
        before = {path: path.read_bytes() for path in files}
        times = {path: path.stat().st_mtime_ns for path in files if path.name not in ("recipe.toml", "log.jsonl")}
        result = self.train(
            run, run__steps=3, texts=["nothing to train: step 3 of 3 is done", "raise run.steps"], **samples
        )
        self.assertIn(str(run / "samples/small-3.png"), result.out)
        self.assertIn(str(run / "lora/small-3.safetensors"), result.out)
        self.assertNotIn("samples after", result.err)
        self.assertEqual({path: path.read_bytes() for path in files}, before)
        self.assertEqual({path: path.stat().st_mtime_ns for path in times}, times)

    def test_fewer_steps_than_are_done_are_told(self):
        run = self.folder / "run"
        self.train(run, run__steps=3)
        result = self.train(run, run__steps=2)
        self.assertRegex(result.err, "warning .*step 3 is done, and run.steps asks for 2 only")

    def test_second_time_makes_what_is_missing(self):
        run = self.folder / "run"
        samples = {"sample__prompts": '["a fox"]', "sample__steps": 1, "sample__seeds": "[1]"}
        self.train(run, run__steps=3, **samples)
        lora, picture = run / "lora/small-3.safetensors", run / "samples/step-0000000003/p00-seed1.png"
        before = lora.read_bytes(), picture.read_bytes()
        lora.unlink()
        picture.unlink()
        self.train(run, run__steps=3, **samples)
        self.assertEqual((lora.read_bytes(), picture.read_bytes()), before)
        other = self.train(run, run__steps=3, **{**samples, "sample__prompts": '["a rocket"]'})
        self.assertIn("samples after", other.err)
        self.assertNotEqual(picture.read_bytes(), before[1])
        self.assertEqual(len(log_lines(run)), 3)

    def test_json(self):
        run = self.folder / "run"
        result = self.train(run, options=["--json"], run__steps=2)
        report = json.loads(result.out)
        self.assertEqual(report["steps"], 2)
        self.assertEqual(report["lora"], str(run / "lora/small-2.safetensors"))
        self.assertEqual(report["checkpoint"], str(run / "ckpt/step-0000000002"))
        self.assertLess(report["peak_memory"], 1e9)

    def test_quiet(self):
        result = self.train(self.folder / "run", options=["--quiet"], run__steps=2, cache__folder=self.folder / "fresh")
        self.assertEqual(result.err, "")
        self.assertIn("LoRA", result.out)


class AllParameters(InterruptedCase):
    def test_says_how_to_draw_with_the_result(self):
        told = self.train(self.folder / "run", recipe=self.full_recipe(), run__steps=1, optimizer__lr=0.01).out
        command = shlex.split(re.search("draw with it: trainer (.*)", told)[1])
        command[-1] = "a fox"  # in place of the dots
        pictures = []
        for more in ([], ["--set", f"model.path={MODEL / 'transformer'}"]):  # the later --set wins
            picture = self.folder / f"{len(more)}.png"
            self.expect(0, str(picture), *command, *more, *settings(sample__steps=1), "--output", picture)
            pictures.append(picture.read_bytes())
        self.assertNotEqual(*pictures)


class Console(RunCase):
    def test_plain_lines_without_a_terminal(self):
        err = self.train(self.folder / "run", run__steps=3).err
        self.assertNotIn("\r", err)
        self.assertNotIn("\x1b", err)
        self.assertRegex(
            err, r"(?m)^step 3/3 100%  loss \d+\.\d{4}  smooth \d+\.\d{4}  lr 1\.00e-03  [\d.]+ s/step  RSS "
        )

    def test_bar_on_a_terminal(self):
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [PROGRAM, *map(str, self.arguments(self.folder / "run", run__steps=8))],
            stderr=theirs,
            stdout=subprocess.DEVNULL,
            env=environment({"TERM": "xterm", "COLUMNS": None}),
        )
        self.addCleanup(self.stop, process)
        os.close(theirs)
        seen = b""
        while select.select([ours], [], [], TIMEOUT)[0]:
            try:
                seen += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
        os.close(ours)
        self.assertEqual(process.wait(), 0)
        text = seen.decode()
        bars = re.findall(r"\r\x1b\[Kstep +(\d+)/8 +\d+% \[([#-]+)\]", text)
        self.assertGreaterEqual(len(bars), 2, text)
        self.assertEqual(bars[-1][0], "8")
        self.assertNotIn("-", bars[-1][1])
        for line in re.split(r"[\r\n]", text):
            if "step " in line:
                self.assertLessEqual(len(line.replace("\x1b[K", "")), 80, line)


class Options(RunCase):
    def loss(self, *pairs, **more):
        """The losses of a run of 3 steps."""
        self.count = getattr(self, "count", 0) + 1
        run = self.folder / f"run-{self.count}"
        self.train(run, *pairs, **{"run__steps": 3, **more})
        return [line["loss"] for line in log_lines(run)]

    def test_equal_seeds_give_equal_runs(self):
        first = self.loss()
        self.assertEqual(first, self.loss())
        self.assertNotEqual(first, self.loss(run__seed=8))

    def test_checkpointing_changes_nothing(self):
        self.assertEqual(self.loss(), self.loss(memory__strategies="[]"))

    def test_caption_dropout(self):
        self.assertNotEqual(self.loss(), self.loss(train__caption_dropout=1.0))

    def test_average_is_exported_and_training_stays(self):
        plain, average = self.folder / "run-1/lora/small-3.safetensors", self.folder / "run-2/lora/small-3.safetensors"
        self.assertEqual(self.loss(), self.loss(train__ema__decay=0.9))
        self.assertEqual(read_header(plain)[0], read_header(average)[0])
        self.assertNotEqual(plain.read_bytes(), average.read_bytes())

    def test_plain_training_with_schedule(self):
        self.loss("optimizer.schedule.kind=cosine", "optimizer.schedule.warmup_steps=2", run__steps=4)
        rates = [line["lr"] for line in log_lines(self.folder / "run-1")]
        self.assertEqual(rates[1], 1e-3)
        self.assertLess(rates[0], rates[1])
        self.assertLess(rates[3], rates[2])

    def test_two_sources_with_trigger_repeats_and_metadata(self):
        first, names = self.pictures("first", 3)
        second = self.folder / "second"
        second.mkdir()
        with open(second / "metadata.jsonl", "w") as lines:
            for name in ("fox.png", "key.png"):
                (second / name).write_bytes((PICTURES / name).read_bytes())
                lines.write(json.dumps({"file_name": name, "text": f"a {pathlib.Path(name).stem}"}) + "\n")
        data = (
            f'data=[{{folder="{first}", resolution=[64, 64], repeats=3}}, '
            f'{{folder="{second}", resolution=64, trigger="cyanotype"}}]'
        )
        run = self.folder / "run"
        result = self.train(
            run, data, cache__folder=self.folder / "cache", train__batch_size=4, train__micro_batch_size=2
        )
        self.assertIn("5 pictures, batch 4, 6 steps", result.err)
        self.assertIn("captions 6/6", result.err)  # and the empty one
        self.assertIn("latents 5/5", result.err)
        self.assertEqual(len(log_lines(run)), 6)

    def test_bf16_model_trains_fp32_adapter(self):
        self.assertNotEqual(self.loss(), self.loss(model__dtype="bf16"))
        header, _ = read_header(self.folder / "run-2/lora/small-3.safetensors")
        self.assertEqual({entry["dtype"] for name, entry in header.items() if name != "__metadata__"}, {"F32"})


class NonFinite(RunCase):
    def test_stops_and_names_what_it_knows(self):
        self.stop_and_look("The weights were not changed by this step")

    def test_stops_when_updates_happen_in_backward(self):
        self.stop_and_look("checkpoints are from before", optimizer__fused_backward="true")

    def stop_and_look(self, text, **keys):
        run = self.folder / "run"
        result = self.train(
            run,
            code=NON_FINITE,
            texts=["error: step ", text],
            optimizer__lr=1000,
            adapter__alpha=1e38,
            checkpoint__every=1,
            train__max_grad_norm=0,
            **keys,
        )
        self.assertRegex(result.err, r"step \d+: the (loss|gradient) became")
        self.assertRegex(result.err, r"files: \S+\.(png|jpg)")
        for checkpoint in (run / "ckpt").iterdir():
            self.expect(0, ["whole"], "inspect", checkpoint)
            header, data = read_header(checkpoint / "rank-00000.safetensors")
            for name, entry in header.items():
                if entry.get("dtype") == "F32":
                    values = array.array("f", data[slice(*entry["data_offsets"])])
                    self.assertTrue(all(map(math.isfinite, values)), f"{checkpoint}: {name}")
        self.assertFalse(list(run.glob("ckpt/.tmp-*")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
