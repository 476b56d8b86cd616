"""Interrupted runs: signals, kill -9, damage and changes between two starts. The result is that of an undisturbed run,
byte for byte, or a refusal that says why."""

import json
import shutil
import signal
import time
import unittest

from interrupted import MIXED, PREEMPTED, STEPS, InterruptedCase
from program import RunCase, log_lines, read_header, reseal, write_safetensors, xxh128

BAD_INPUT, BAD_RECIPE, NOT_FOUND, INTERRUPTED = 65, 78, 66, 130


class Interrupted(InterruptedCase):
    def test_signals(self):
        self.assert_same_after_signals()

    def test_signals_with_everything_on(self):
        self.assert_same_after_signals(**MIXED)

    def test_signals_while_all_parameters_are_trained(self):
        self.assert_same_after_signals(recipe=self.full_recipe(), train__batch_size=2, train__micro_batch_size=2)
        self.assertEqual(
            [path.name for path in (self.folder / "run/model").iterdir()], [f"quickstart-{STEPS}.safetensors"]
        )

    def test_signal_while_encoding(self):
        run = self.folder / "run"
        process = self.start(*self.arguments(run, cache__folder=self.folder / "cache"))
        while "captions" not in process.stderr.readline():
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        self.assertEqual(process.returncode, PREEMPTED, err)
        self.assertIn("run the same command again", err)
        self.train(run, cache__folder=self.folder / "cache")

    def test_ctrl_c_that_also_ends_the_reader_of_our_output(self):
        """As in `trainer run ... 2>&1 | tee log`: the next line written must not kill the run before it saves."""
        run = self.folder / "run"
        process = self.start(*self.arguments(run, run__steps=1000))
        self.wait_for_steps(process, run, 2)
        process.stderr.close()
        process.stdout.close()
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(), PREEMPTED)
        self.assertTrue(list(run.glob("ckpt/step-*")))

    def test_second_ctrl_c_ends_at_once(self):
        run = self.folder / "run"
        # A step of a tenth of a second or more: both signals come before its end, when the first would save and end with 75.
        process = self.start(*self.arguments(run, run__steps=1000, train__batch_size=16, train__micro_batch_size=16))
        self.wait_for_steps(process, run, 1)
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(), INTERRUPTED)
        self.assertEqual(list(run.glob("ckpt/step-*")), [], "nothing is saved")


class Changed(RunCase):
    def setUp(self):
        """The same run for every test, trained once: in the same place, since it notes where its files are."""
        super().setUp()
        self.folder, trained = self.shared / "here", self.shared / "trained"
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        if trained.exists():
            shutil.copytree(trained, self.folder, symlinks=True)
        else:
            self.folder.mkdir()
            self.pictures("data", 4)
            self.model("transformer")
        self.run_folder, self.data = self.folder / "run", self.folder / "data"
        self.names = sorted(path.name for path in self.data.iterdir() if path.suffix != ".txt")
        self.transformer = self.folder / "model/transformer"
        self.base = {
            "data": f'[{{folder="{self.data}", resolution=[64, 64]}}]',
            "run__steps": 2,
            "model__path": self.transformer,
            "cache__folder": self.folder / "cache",
        }
        if not trained.exists():
            self.train(self.run_folder, **self.base)
            shutil.copytree(self.folder, trained, symlinks=True)

    def check(self, code, texts, options=(), **more):
        """What `trainer check` says of the run that `again` would start."""
        arguments = self.arguments(self.run_folder, **{**self.base, **more})[1:]
        return self.expect(code, texts, "check", *arguments, *options)

    def again(self, code, texts, **more):
        return self.train(self.run_folder, code=code, texts=texts, **{**self.base, **more})

    def test_recipe(self):
        result = self.again(
            BAD_RECIPE,
            [
                "optimizer.lr: checkpoint 0.001, recipe 5e-4",
                "adapter.rank: checkpoint 4, recipe 8",
                "train.batch_size",
                "run.output",
            ],
            optimizer__lr=5e-4,
            adapter__rank=8,
            train__batch_size=4,
            run__steps=4,
        )
        self.assertNotIn("run.steps", result.err)
        self.assertNotIn("run.seed", result.err)

    def test_the_user_chooses_which_side_counts(self):
        changed = {"optimizer__lr": 5e-4, "train__batch_size": 4, "run__steps": 4}
        refused = self.again(BAD_RECIPE, ["--resume-with checkpoint", "--resume-with recipe"], **changed)
        self.assertIn("optimizer.lr: checkpoint 0.001, recipe 5e-4", refused.err)
        self.check(BAD_RECIPE, ["--resume-with checkpoint", "optimizer.lr: checkpoint 0.001, recipe 5e-4"], **changed)
        self.check(0, ["goes on after step 2", "as the recipe says", "optimizer.lr: checkpoint 0.001, recipe 5e-4"],
                   options=["--resume-with", "recipe"], **changed)
        self.check(0, ["goes on after step 2", "as the checkpoint was trained", "optimizer.lr=0.001"],
                   options=["--resume-with", "checkpoint"], **changed)
        self.check(BAD_RECIPE, ["has not the tensors that this recipe trains", "adapter.rank"],
                   options=["--resume-with", "recipe"], adapter__rank=8)
        other = self.folder / "other"
        shutil.copytree(self.run_folder, other)
        listed = ["going on after step 2", "as the recipe says", "optimizer.lr: checkpoint 0.001, recipe 5e-4"]
        self.again(0, listed, options=["--resume-with", "recipe"], **changed)
        self.assertEqual([line["lr"] for line in log_lines(self.run_folder)], [1e-3, 1e-3, 5e-4, 5e-4])
        self.again(0, "", **{**changed, "run__steps": 5})  # from then on the recipe and the checkpoint agree
        listed = ["as the checkpoint was trained", "optimizer.lr=0.001", "train.batch_size="]
        self.train(other, texts=listed, options=["--resume-with", "checkpoint"], **{**self.base, **changed})
        straight = self.folder / "straight"
        self.train(straight, **{**self.base, "run__steps": 4})
        results = [run / "lora/small-4.safetensors" for run in (other, straight)]
        self.assertEqual(results[0].read_bytes(), results[1].read_bytes(), "the checkpoint's side is exact")

    def test_what_a_checkpoint_cannot_be_changed_in(self):
        """Told before anything is encoded, and not offered."""
        kept = (self.run_folder / "log.jsonl").read_bytes()
        for key, value in (("adapter.rank", 8), ("adapter.targets", "all"), ("train.ema.decay", 0.9)):
            with self.subTest(key):
                changed = {key.replace(".", "__"): value, "cache__folder": self.folder / "new-cache", "run__steps": 4}
                refused = self.again(BAD_RECIPE, [f"{key}: checkpoint ", "--resume-with checkpoint"], **changed)
                self.assertNotIn("--resume-with recipe", refused.err)
                texts = ["has not the tensors that this recipe trains", f"{key}: checkpoint ", "run.output"]
                refused = self.again(BAD_RECIPE, texts, options=["--resume-with", "recipe"], **changed)
                self.assertNotIn("captions", refused.err)
        self.assertEqual((self.run_folder / "log.jsonl").read_bytes(), kept)
        named = ["--resume-with", "recipe", "--resume", self.run_folder / "ckpt/step-0000000002"]
        more = {**self.base, "cache__folder": self.folder / "new-cache", "adapter__rank": 8, "run__steps": 4}
        refused = self.train(self.folder / "other", code=BAD_RECIPE, texts="adapter.rank", options=named, **more)
        self.assertNotIn("captions", refused.err)
        averaged, more = self.folder / "averaged", {**self.base, "train__ema__decay": 0.9}
        self.train(averaged, **more)
        more.update(run__steps=4, train__ema__decay=0.5)
        self.train(averaged, options=["--resume-with", "recipe"], texts="train.ema.decay: checkpoint 0.9", **more)
        more["train__ema__decay"] = 0
        self.train(averaged, code=BAD_RECIPE, options=["--resume-with", "recipe"], texts="train.ema.decay: checkpoint 0.5",
                   **more)

    def test_the_order_of_targets_changes_nothing(self):
        runs = {name: self.folder / name for name in ("straight", "turned")}
        more = {**self.base, "adapter__targets": '["*.to_q", "*.to_k"]'}
        self.train(runs["straight"], **{**more, "run__steps": 4})
        self.train(runs["turned"], **more)
        more.update(run__steps=4, adapter__targets='["*.to_k"]')
        self.train(runs["turned"], code=BAD_RECIPE, texts="adapter.targets: checkpoint ", **more)
        more["adapter__targets"] = '["*.to_k", "*.to_q"]'
        result = self.train(runs["turned"], texts="going on after step 2", **more)
        self.assertNotIn("adapter.targets", result.text)
        results = [run / "lora/small-4.safetensors" for run in runs.values()]
        self.assertEqual(results[0].read_bytes(), results[1].read_bytes())

    def test_the_user_may_take_other_pictures_too(self):
        (self.data / self.names[0]).with_suffix(".txt").write_text("something else")
        self.check(0, ["the pictures or captions are not those", "data, weights and encoders are not those of"],
                   options=["--resume-with", "recipe"], run__steps=4)
        self.again(0, "the pictures or captions are not those", options=["--resume-with", "recipe"], run__steps=4)

    def test_the_number_of_threads_is_the_checkpoints(self):
        run = self.folder / "threads"
        self.train(run, **{**self.base, "train__threads": 2})
        self.assertEqual(self.manifest(run, 2)["fingerprints"]["threads"], "2")
        self.train(run, **{**self.base, "run__steps": 4})  # the recipe says nothing, the environment 1
        self.assertEqual(self.manifest(run, 4)["fingerprints"]["threads"], "2")
        more = {**self.base, "run__steps": 6, "train__threads": 1}
        self.train(run, texts="train.threads = 1 is not used: the checkpoint was made with 2 threads", **more)
        self.assertEqual(self.manifest(run, 6)["fingerprints"]["threads"], "2")

    @staticmethod
    def manifest(run, step):
        text = (run / f"ckpt/step-{step:010}/MANIFEST.json").read_text()
        return json.loads(text[: text.rindex("xxh128 ")])

    def test_what_makes_a_resume_inexact_is_stored_and_told(self):
        stored = self.manifest(self.run_folder, 2)["fingerprints"]
        self.assertEqual((stored["processes"], stored["cuda"]), ("1", ""))
        self.assertRegex(stored["plugins"], r"^flow_matching.so [0-9a-f]{8}, flux2.so [0-9a-f]{8}, .*flux2_vae.so [0-9a-f]{8}, .*lora.so [0-9a-f]{8}, ")
        folder = self.run_folder / "ckpt/step-0000000002"
        text = (folder / "MANIFEST.json").read_text()
        old = {"plugins": "flux2.so 00000000", "processes": "4", "cuda": "runtime 12.8, driver 12.8, NVIDIA H100", "torch": "2.10.0"}
        body = json.loads(text[: text.rindex("xxh128 ")])
        body["fingerprints"].update(old)
        changed = json.dumps(body, indent=1, ensure_ascii=False) + "\n"
        (folder / "MANIFEST.json").write_text(changed + f"xxh128 {xxh128(changed.encode())}\n")
        told = [f"{name}: checkpoint {old[key]}, now " for key, name in
                (("plugins", "plugins"), ("processes", "processes"), ("cuda", "CUDA"), ("torch", "LibTorch"))]
        self.again(0, ["not to the last bit", *told], run__steps=4)

    def test_what_is_unchanged_goes_on_without_a_warning(self):
        """The second start opens no text encoder, since all captions are cached."""
        self.assertNotIn("warning", self.again(0, "going on after step 2", run__steps=4).err)

    def test_another_recipe_is_refused_before_anything_is_encoded(self):
        """The log and the results of a run are nobody else's, also when its checkpoints are gone."""
        shutil.rmtree(self.run_folder / "ckpt")
        log = (self.run_folder / "log.jsonl").read_bytes()
        more = {"optimizer__lr": 5e-4, "cache__folder": self.folder / "new-cache"}
        texts = ["the log and the results", "optimizer.lr: then 0.001, recipe 5e-4", "--resume never"]
        result = self.again(BAD_RECIPE, texts, **more)
        self.assertNotIn("captions", result.err)
        self.assertEqual((self.run_folder / "log.jsonl").read_bytes(), log)
        arguments = ["check", *self.arguments(self.run_folder, **{**self.base, **more})[1:]]
        self.expect(BAD_RECIPE, texts[:2], *arguments)
        self.again(0, "", options=["--resume", "never"], **more)
        self.assertEqual(len(log_lines(self.run_folder)), 2)

    def test_a_checkpoint_of_another_recipe_is_refused_before_anything_is_encoded(self):
        result = self.again(BAD_RECIPE, "optimizer.lr", optimizer__lr=5e-4, cache__folder=self.folder / "new-cache")
        self.assertNotIn("captions", result.err)

    def test_another_processor_is_told(self):
        """What is computed with other instructions may differ in the last bit."""
        levels = {"processor": ("ATEN_CPU_CAPABILITY", "default", "DEFAULT"),
                  "level of the fused kernels": ("TRAINER_CPU_LEVEL", "baseline", "baseline"),
                  "level of matrix products": ("ONEDNN_MAX_CPU_ISA", "SSE41", "oneDNN SSE41, MKL ")}
        for steps, (name, (variable, value, now)) in enumerate(levels.items(), 3):
            arguments = self.arguments(self.run_folder, **{**self.base, "run__steps": steps})
            told = self.expect(0, ["not to the last bit", f"going on after step {steps - 1}"], *arguments, env={variable: value})
            self.assertRegex(told.err, f"\n  {name}: checkpoint (.+), now {now}")

    def test_another_library_of_products_is_told(self):
        """As "auto" chooses it on another machine."""
        def using(library, steps, **more):
            return self.again(0, "", run__steps=steps, train__matmul=library, options=["--resume-with", "recipe"], **more)

        using("mkl", 3)
        told = using("onednn", 4)
        self.assertRegex(told.err, r"\n  level of matrix products: checkpoint .*fp32 by mkl, now .*fp32 by onednn")

    def test_longer_with_a_schedule(self):
        run = self.folder / "other"
        self.train(run, **{**self.base, "optimizer__schedule__kind": "cosine"})
        self.train(
            run,
            code=BAD_RECIPE,
            texts="run.steps: checkpoint 2, recipe 4",
            **{**self.base, "optimizer__schedule__kind": "cosine", "run__steps": 4},
        )

    def test_harmless_keys(self):
        self.again(
            0,
            "going on after step 2",
            run__steps=4,
            metrics__smoothing=0.5,
            checkpoint__every=1,
            run__name="other",
            memory__strategies="[]",
        )
        self.assertEqual(len(log_lines(self.run_folder)), 4)
        self.assertTrue((self.run_folder / "lora/other-4.safetensors").exists())

    def test_caption(self):
        (self.data / self.names[0]).with_suffix(".txt").write_text("something else")
        self.check(BAD_RECIPE, ["the pictures or captions are not those", "--resume-with recipe"], run__steps=4)
        self.again(BAD_RECIPE, "the pictures or captions are not those", run__steps=4)

    def test_base_weights(self):
        file = next(self.transformer.glob("*.safetensors"))
        header, data = read_header(file)
        write_safetensors(file, header, bytes([data[0] ^ 1]) + data[1:])
        self.again(BAD_RECIPE, [f"the weights in {self.transformer} are not those"], run__steps=4)

    def test_configuration_of_the_model(self):
        file = self.transformer / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "rope_theta": 3000}))
        refused = f"the values of config.json in {self.transformer} are not those"
        self.check(BAD_RECIPE, refused, run__steps=4)
        self.again(BAD_RECIPE, refused, run__steps=4)
        self.again(0, refused, options=["--resume-with", "recipe"], run__steps=4)

    def test_damaged_newest_checkpoint(self):
        self.again(0, "", run__steps=4)
        expected = (self.run_folder / "lora/small-4.safetensors").read_bytes()
        file = self.run_folder / "ckpt/step-0000000004/rank-00000.safetensors"
        raw = bytearray(file.read_bytes())
        raw[-100] ^= 1
        file.write_bytes(raw)
        self.check(0, ["goes on after step 2; not taken: ", "step-0000000004", "(hash)"], run__steps=6)
        self.assertTrue(file.exists(), "a check changes nothing")
        result = self.again(0, ["going on after step 2", "set aside as step-0000000004.bad-CKPT_HASH"], run__steps=4)
        self.assertEqual((self.run_folder / "lora/small-4.safetensors").read_bytes(), expected)
        self.assertEqual([line["step"] for line in log_lines(self.run_folder)], [1, 2, 3, 4])

    def test_crash_loop(self):
        notes = self.run_folder / "attempts.json"
        four = {"from": 2, "reached": 3, "failures": 3, "ended_at": 3}
        notes.write_text(json.dumps(four))
        warned = self.again(0, "4 runs in a row went on from the checkpoint of step 2 and ended after step 3", run__steps=4)
        self.assertIn("after 5 no further one is made", warned.err)
        self.assertFalse(notes.exists(), "the run ended well")
        notes.write_text(json.dumps({"from": 4, "reached": 5, "failures": 4, "ended_at": 5}))
        for run in (self.check, self.again) * 2:
            run(BAD_INPUT, ["5 runs in a row went on", f"delete {notes}"], run__steps=6)
        self.assertEqual(json.loads(notes.read_text())["failures"], 4)
        notes.unlink()
        self.again(0, "going on after step 4", run__steps=6)

    def test_no_whole_checkpoint(self):
        (self.run_folder / "ckpt/step-0000000002/MANIFEST.json").write_text("{}")
        why, aside = "step-0000000002/MANIFEST.json", "step-0000000002.bad-CKPT_"
        for run, text in ((self.check, why), (self.again, why), (self.check, aside), (self.again, aside)):
            run(NOT_FOUND, ["none is whole", text], run__steps=4)  # never a silent restart, the second time neither

    def refused(self, texts, **more):
        """`run` and `check` miss a checkpoint; nothing of the run changes."""
        log = (self.run_folder / "log.jsonl").read_bytes()
        self.again(NOT_FOUND, texts, **more)
        arguments = self.arguments(self.run_folder, **{**self.base, **more})
        self.expect(NOT_FOUND, texts, "check", *arguments[1:])
        self.assertEqual((self.run_folder / "log.jsonl").read_bytes(), log)

    def test_newest_checkpoint_is_gone(self):
        self.again(0, "", run__steps=4)
        ckpt = self.run_folder / "ckpt"
        ckpt.rename(self.folder / "elsewhere")
        self.refused(["of step 4", str(ckpt / "step-0000000004"), "no other is found"], run__steps=6)
        (self.folder / "elsewhere").rename(ckpt)
        (ckpt / "step-0000000004").rename(self.folder / "newest")
        self.refused(["of step 4", str(ckpt / "step-0000000004"), "the newest found is of step 2"], run__steps=6)
        self.again(0, "going on after step 4", run__steps=6, options=["--resume", self.folder / "newest"])
        shutil.rmtree(ckpt)
        self.refused(["of step 6"], run__steps=6)
        self.again(0, "", run__steps=2, options=["--resume", "never"])
        self.assertEqual([line["step"] for line in log_lines(self.run_folder)], [1, 2])
        self.again(0, "going on after step 2", run__steps=4)

    def move_to_fallback(self):
        """As after saves that only the fallback folder took; returns that folder and where the checkpoints are in it."""
        spare = self.folder / "spare"
        note = json.loads((self.run_folder / "run.json").read_text())
        kept = spare / f"run-{note['run_id']}/ckpt"
        kept.parent.mkdir(parents=True)
        (self.run_folder / "ckpt").rename(kept)
        note["newest_checkpoint"]["folder"] = str(kept / "step-0000000002")
        (self.run_folder / "run.json").write_text(json.dumps(note))
        return spare, kept

    def test_fallback_is_gone(self):
        spare, kept = self.move_to_fallback()
        self.refused(["of step 2", str(kept)], run__steps=4)
        self.refused(["of step 2", str(kept)], run__steps=4, checkpoint__fallback=self.folder / "other")
        found = self.arguments(self.run_folder, **{**self.base, "checkpoint__fallback": spare})
        self.expect(0, "goes on after step 2", "check", *found[1:])
        self.again(0, "going on after step 2", run__steps=4, checkpoint__fallback=spare)

    def test_the_user_chooses_for_checkpoints_that_only_the_fallback_took(self):
        spare, kept = self.move_to_fallback()
        changed = {"optimizer__lr": 5e-4, "run__steps": 4, "checkpoint__fallback": spare}
        self.expect(NOT_FOUND, ["name what in it is meant: " + str(kept / "step-0000000002")], "inspect", self.run_folder)
        texts = ["optimizer.lr: checkpoint 0.001, recipe 5e-4"]
        self.check(BAD_RECIPE, texts, **changed)
        self.again(BAD_RECIPE, [*texts, "--resume-with checkpoint", "--resume-with recipe"], **changed)
        listed = ["going on after step 2", "as the checkpoint was trained", "optimizer.lr=0.001"]
        self.again(0, listed, options=["--resume-with", "checkpoint"], **changed)
        self.assertEqual([line["lr"] for line in log_lines(self.run_folder)], [1e-3] * 4)

    def test_a_named_checkpoint_does_not_cut_another_recipes_log(self):
        self.train(self.folder / "other", **{**self.base, "optimizer__lr": 5e-4})
        shutil.rmtree(self.folder / "other/ckpt")
        log = (self.folder / "other/log.jsonl").read_bytes()
        self.train(
            self.folder / "other",
            code=BAD_RECIPE,
            texts=["optimizer.lr", "the log and the results"],
            options=["--resume", self.run_folder / "ckpt/step-0000000002"],
            **{**self.base, "run__steps": 4},
        )
        self.assertEqual((self.folder / "other/log.jsonl").read_bytes(), log)

    def test_edited_state_with_a_right_hash(self):
        folder = self.run_folder / "ckpt/step-0000000002"
        good = (folder / "state.json").read_bytes()
        state = json.loads(good)
        secret = self.write("secret.toml", "very secret = ")
        for text, expected in [
            (json.dumps({**state, "threads": 100000}), '"threads" is no whole number of 1 to 1024'),
            (json.dumps({**state, "threads": 0}), '"threads" is no whole number of 1 to 1024'),
            (json.dumps({**state, "threads": 4294967297}), '"threads" is no whole number of 1 to 1024'),
            ("{", "is no JSON object"),
        ]:
            reseal(folder, "state.json", text.encode())
            result = self.again(BAD_INPUT, ["state.json: " + expected], run__steps=4)
            self.assertNotIn("nlohmann", result.err)
            self.assertNotIn("json.exception", result.err)
        stored = json.dumps({**state, "recipe": f'extends = "{secret}"\n' + state["recipe"]})
        reseal(folder, "state.json", stored.encode())
        self.assertNotIn("very", self.again(BAD_RECIPE, "extends no other", run__steps=4).text)
        reseal(folder, "state.json", good)
        self.again(0, "going on after step 2", run__steps=4)

    def test_moved_files(self):
        shutil.move(self.data, self.folder / "moved")
        shutil.move(self.transformer, self.folder / "moved-model")
        self.again(
            0,
            "going on after step 2",
            run__steps=4,
            data=f'[{{folder="{self.folder / "moved"}", resolution=[64, 64]}}]',
            model__path=self.folder / "moved-model",
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)
