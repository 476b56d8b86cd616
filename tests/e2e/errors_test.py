"""Every mistake a user can make before training: one clear message, the right exit code, no stack trace."""

import fcntl
import json
import os
import resource
import unittest

from program import MODEL, QUICKSTART, SMALL, TIMEOUT, Case, main, read_header, settings, write_safetensors

USAGE, BAD_INPUT, NOT_FOUND, UNAVAILABLE, LOCKED, BAD_RECIPE, OUT_OF_MEMORY = 2, 65, 66, 69, 77, 78, 80


class CommandLine(Case):
    def test_unknown_option(self):
        self.expect(USAGE, 'unknown option "--fast"', "run", QUICKSTART, "--fast")
        self.expect(USAGE, ['unknown option "--resum"', 'did you mean "--resume"'], "run", QUICKSTART, "--resum=never")
        self.expect(USAGE, ['unknown option "--jsn"', '"--json"'], "doctor", "--jsn")
        self.expect(USAGE, 'not expected: "second.toml"', "check", QUICKSTART, "second.toml")

    def test_errors_for_programs(self):
        """With --json an error is on stdout too, whoever finds it: the front or the engine."""
        for code, piece, arguments in (
            (BAD_RECIPE, "run.steps", ("run", QUICKSTART, "--set", "run.stps=3")),
            (USAGE, "--resume", ("run", QUICKSTART, "--resum=never")),
            (USAGE, "RECIPE is required", ("run",)),
            (USAGE, "--profile", ("run", QUICKSTART, "--profile", "many")),
            (NOT_FOUND, "nothing.safetensors", ("inspect", self.folder / "nothing.safetensors")),
            (NOT_FOUND, "sometimes", ("run", QUICKSTART, "--resume", "sometimes")),
        ):
            with self.subTest(piece):
                result = self.expect(code, piece, "--json", *arguments)
                error = json.loads(result.out)["error"]
                self.assertEqual(error["exit_code"], code)
                self.assertIn(piece, error["message"])
                self.assertIn(piece, result.err)

    def test_level_of_the_processor(self):
        names = ['TRAINER_CPU_LEVEL is "avx2"', "this processor has baseline"]
        self.expect(USAGE, names, "doctor", env={"TRAINER_CPU_LEVEL": "avx2"})
        self.expect(0, "", "doctor", env={"TRAINER_CPU_LEVEL": "baseline"})

    def test_unknown_command(self):
        self.expect(USAGE, ['unknown command "rnu"', 'did you mean "run"?'], "rnu", QUICKSTART)

    def test_no_command(self):
        self.expect(USAGE, "--help")

    def test_recipe_is_left_out(self):
        self.expect(USAGE, ["error: RECIPE is required"], "run")

    def test_set_without_value(self):
        self.expect(BAD_RECIPE, ["--set nonsense", "KEY=VALUE"], "run", QUICKSTART, "--set", "nonsense")

    def test_set_unknown_key(self):
        self.expect(
            BAD_RECIPE, ["--set run.stps=3", 'did you mean "run.steps"?'], "run", QUICKSTART, "--set", "run.stps=3"
        )

    def test_set_wrong_type(self):
        self.expect(BAD_RECIPE, ["--set run.steps=many", "run.steps"], "run", QUICKSTART, "--set", "run.steps=many")

    def test_set_out_of_range(self):
        self.expect(BAD_RECIPE, ["optimizer.lr"], "run", QUICKSTART, "--set", "optimizer.lr=-1")

    def test_wrong_resume(self):
        self.expect(
            NOT_FOUND,
            ["sometimes", "auto, never, required"],
            "run",
            SMALL,
            "--resume",
            "sometimes",
            *settings(run__output=self.folder / "run"),
        )


class Recipes(Case):
    """None of these may load LibTorch: a mistake is told in milliseconds."""

    def expect_bad(self, code, texts, *arguments):
        result = self.expect(
            code, texts, *arguments, env={"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(self.folder / "ld")}
        )
        opened = "".join(path.read_text(errors="replace") for path in self.folder.glob("ld.*"))
        self.assertIn("libCLI" if "libCLI" in opened else "libc.so", opened)
        self.assertNotIn("libtorch", opened)
        self.assertNotIn("libtrainer.so", opened)
        return result

    def recipe(self, text):
        return self.write("recipe.toml", f'extends = "{QUICKSTART}"\n{text}')

    def test_missing_recipe(self):
        self.expect_bad(NOT_FOUND, ["nowhere.toml"], "run", "nowhere.toml")

    def test_recipe_is_a_folder(self):
        self.expect_bad(BAD_INPUT, [str(self.folder), "is a folder"], "run", self.folder)

    def test_syntax_error(self):
        self.expect_bad(BAD_RECIPE, ["bad.toml:2:"], "run", self.write("bad.toml", "[run]\nsteps = \n"))

    def test_no_utf8(self):
        self.expect_bad(BAD_RECIPE, ["bad.toml:2:"], "run", self.write("bad.toml", b'[run]\nname = "\xff"\n'))

    def test_misspelt_key(self):
        self.expect_bad(
            BAD_RECIPE,
            ['recipe.toml:3:1: unknown key "run.step"', 'did you mean "run.steps"?'],
            "run",
            self.recipe("[run]\nstep = 2\n"),
        )

    def test_misspelt_section(self):
        self.expect_bad(
            BAD_RECIPE, ["recipe.toml:2:", "optimiser", "optimizer"], "run", self.recipe("[optimiser]\nlr = 1e-4\n")
        )

    def test_wrong_type(self):
        self.expect_bad(
            BAD_RECIPE, ["recipe.toml:3:", "run.steps", '"ten"'], "run", self.recipe('[run]\nsteps = "ten"\n')
        )

    def test_unknown_plugin(self):
        self.expect_bad(
            BAD_RECIPE, ["recipe.toml:3:", "flux3", "flux2"], "run", self.recipe('[model]\nkind = "flux3"\n')
        )

    def test_option_of_a_plugin(self):
        self.expect_bad(
            BAD_RECIPE, ["recipe.toml:3:", "adapter.rnk", "rank"], "run", self.recipe("[adapter]\nrnk = 4\n")
        )

    def test_sample_size(self):
        self.expect_bad(
            BAD_RECIPE, ["recipe.toml:3:", "sample.size", "16"], "run", self.recipe("[sample]\nsize = [64, 50]\n")
        )

    def test_missing_model(self):
        self.expect_bad(
            BAD_RECIPE, ["recipe.toml:3:", "model.path", "/nowhere"], "run", self.recipe('[model]\npath = "/nowhere"\n')
        )

    def test_micro_batch_does_not_divide(self):
        self.expect_bad(
            BAD_RECIPE, ["recipe.toml:3:", "3 does not divide"], "run", self.recipe("[train]\nmicro_batch_size = 3\n")
        )

    def test_all_mistakes_at_once(self):
        recipe = self.recipe('[run]\nstep = 2\nseed = "x"\n[sample]\nsize = [1, 2]\n[optimizer]\nlr = 0\n')
        result = self.expect_bad(BAD_RECIPE, ["run.step", "run.seed", "sample.size", "optimizer.lr"], "check", recipe)
        self.assertEqual(result.out, "")


class Models(Case):
    def expect_model(self, code, texts, model, part, commands=("check",)):
        key = {"transformer": "model", "vae": "autoencoder", "text_encoder": "text_encoder"}[part]
        for command in commands:
            self.expect(
                code,
                texts,
                command,
                SMALL,
                *settings(
                    f"{key}.path={model / part}",
                    f"text_encoder.tokenizer={MODEL / 'tokenizer'}",
                    run__output=self.folder / "run",
                ),
            )

    def weights(self, part):
        model = self.model(part)
        return model, next((model / part).glob("*.safetensors"))

    def test_truncated_data(self):
        for part in ("transformer", "vae", "text_encoder"):
            with self.subTest(part):
                model, file = self.weights(part)
                with open(file, "r+b") as stream:
                    stream.truncate(file.stat().st_size - 1000)
                self.expect_model(BAD_INPUT, [file.name, "1000 bytes are missing"], model, part, ("check", "run"))

    def test_empty_file(self):
        model, file = self.weights("vae")
        file.write_bytes(b"")
        self.expect_model(BAD_INPUT, [file.name, "0 bytes"], model, "vae")

    def test_not_safetensors(self):
        model, file = self.weights("vae")
        file.write_bytes(b"<html>404</html>" * 100)
        self.expect_model(BAD_INPUT, [file.name], model, "vae")

    def test_a_tensor_is_missing(self):
        for part, removed in (
            ("transformer", "0.attn.to_k.weight"),
            ("vae", "decoder.conv_out.bias"),
            ("text_encoder", "layers.1.mlp.up_proj.weight"),
        ):
            with self.subTest(part):
                model, file = self.weights(part)
                header, data = read_header(file)
                name = next(key for key in header if key.endswith(removed))
                # What comes after moves up, so that the file itself stays in order.
                begin, end = header.pop(name)["data_offsets"]
                for entry in header.values():
                    if "data_offsets" in entry and entry["data_offsets"][0] >= end:
                        entry["data_offsets"] = [offset - (end - begin) for offset in entry["data_offsets"]]
                write_safetensors(file, header, data[:begin] + data[end:])
                self.expect_model(BAD_INPUT, [removed], model, part, ("check", "run"))

    def test_config_is_missing(self):
        for part, code in (("vae", BAD_INPUT), ("text_encoder", NOT_FOUND)):
            with self.subTest(part):
                model = self.model(part)
                (model / part / "config.json").unlink()
                self.expect_model(code, ["config.json"], model, part)

    def test_config_is_damaged(self):
        model = self.model("vae")
        self.write("model/vae/config.json", '{"latent_channels": ')
        self.expect_model(BAD_INPUT, ["config"], model, "vae")

    def test_tokenizer_is_damaged(self):
        file = self.write("tokenizer/tokenizer.json", '{"model": {"type": "BPE"')
        self.expect(
            BAD_INPUT,
            ["tokenizer.json"],
            "run",
            SMALL,
            *settings(f"text_encoder.tokenizer={file.parent}", run__output=self.folder / "run"),
        )

    def test_layers_out_of_range(self):
        self.expect(BAD_RECIPE, ["layers", "9"], "check", SMALL, *settings("text_encoder.layers=[2, 4, 9]"))

    def test_text_width_of_another_model(self):
        self.expect(
            BAD_INPUT,
            ["prompt_embeds", "128", "192"],
            "run",
            SMALL,
            *settings("text_encoder.layers=[2, 4]", run__output=self.folder / "run"),
        )

    def test_targets_match_nothing(self):
        for command in ("check", "run"):
            self.expect(
                BAD_RECIPE,
                ["to_qq", "to_q"],
                command,
                SMALL,
                *settings('adapter.targets=["*.to_qq"]', run__output=self.folder / "run"),
            )


class Data(Case):
    def expect_data(self, code, texts, folder, commands=("check",)):
        for command in commands:
            result = self.expect(
                code,
                texts,
                command,
                SMALL,
                *settings(f'data=[{{folder="{folder}", resolution=[64, 64]}}]', run__output=self.folder / "run"),
            )
        return result

    def test_broken_pictures_are_all_named(self):
        folder, names = self.pictures("data")
        for name in names[1:3]:
            path = folder / name
            path.write_bytes(path.read_bytes()[:200])
        result = self.expect_data(BAD_INPUT, names[1:3], folder, ("check", "run"))
        self.assertNotIn(names[0], result.err)

    def test_picture_that_breaks_off(self):
        folder, names = self.pictures("data")
        path = folder / names[0]
        path.write_bytes(path.read_bytes()[: -path.stat().st_size // 3])
        result = self.expect_data(BAD_INPUT, names[0], folder, ("check", "run"))
        self.assertNotIn("captions", result.err, "told before anything is encoded")

    def test_text_called_png(self):
        folder, _ = self.pictures("data")
        self.write("data/zebra.png", "not a picture")
        self.write("data/zebra.txt", "a zebra")
        self.expect_data(BAD_INPUT, ["zebra.png"], folder)

    def test_no_captions(self):
        folder, _ = self.pictures("data")
        for path in folder.glob("*.txt"):
            path.unlink()
        self.expect_data(BAD_INPUT, ["caption", str(folder)], folder, ("check", "run"))

    def test_one_caption_is_missing(self):
        folder, names = self.pictures("data")
        (folder / names[2]).with_suffix(".txt").unlink()
        self.expect_data(BAD_INPUT, ["caption", names[2]], folder)

    def test_caption_is_no_utf8(self):
        folder, names = self.pictures("data")
        (folder / names[2]).with_suffix(".txt").write_bytes(b"a caf\xe9")
        self.expect_data(BAD_INPUT, ["UTF-8", names[2].split(".")[0] + ".txt"], folder)

    def test_empty_folder(self):
        folder = self.folder / "data"
        folder.mkdir()
        self.expect_data(BAD_INPUT, [str(folder), "picture"], folder)

    def test_metadata_names_missing_picture(self):
        folder, names = self.pictures("data")
        self.write("data/metadata.jsonl", json.dumps({"file_name": "nobody.png", "text": "a picture"}) + "\n")
        self.expect_data(BAD_INPUT, ["nobody.png"], folder)

    def test_metadata_is_no_json(self):
        folder, names = self.pictures("data")
        self.write("data/metadata.jsonl", '{"file_name": "a.png"\n')
        self.expect_data(BAD_INPUT, ["metadata.jsonl:1"], folder)


class Check(Case):
    def test_lists_everything_at_once(self):
        folder, names = self.pictures("data")
        (folder / names[0]).with_suffix(".txt").unlink()
        (folder / names[1]).write_bytes(b"no picture")
        model = self.model("vae", "transformer")
        (model / "vae/config.json").write_text("{")
        self.write("model/transformer/diffusion_pytorch_model.safetensors", b"x" * 100)
        arguments = [
            "check",
            SMALL,
            *settings(
                f'data=[{{folder="{folder}", resolution=[64, 64]}}]',
                f"model.path={model / 'transformer'}",
                f"autoencoder.path={model / 'vae'}",
                run__output=self.folder / "run",
            ),
        ]
        found = ["model", "autoencoder", names[0], names[1], "3 problems found."]
        self.expect(BAD_INPUT, found, *arguments)
        result = self.program("--json", *arguments)
        self.assertEqual(result.code, BAD_INPUT)
        report = json.loads(result.out)
        self.assertFalse(report["ok"])
        self.assertEqual([error["part"] for error in report["errors"]], ["model", "autoencoder", "data"])
        self.assertIn("text encoder", report["facts"])

    def test_what_the_constructor_refuses_is_one_finding_among_others(self):
        folder, names = self.pictures("data")
        (folder / names[0]).with_suffix(".txt").unlink()
        (folder / names[1]).write_bytes(b"no picture")
        data = f'data=[{{folder="{folder}", resolution=[64, 64]}}]'
        (self.folder / "run").mkdir()
        lock = open(self.folder / "run/.lock", "w")
        self.addCleanup(lock.close)
        fcntl.flock(lock, fcntl.LOCK_EX)
        others = settings(data, run__output=self.folder / "run")
        missing = settings('adapter.init="file"', f'adapter.path="{self.folder / "gone.safetensors"}"')
        result = self.program("check", "--json", SMALL, *others, *missing)
        self.assertEqual(result.code, BAD_RECIPE, str(result))
        errors = json.loads(result.out)["errors"]
        self.assertEqual([error["part"] for error in errors], ["recipe", "data", "run folder"], errors)
        self.assertNotIn("\n", errors[0]["message"], "one mistake, one line")
        self.assertNotIn("needs adapter.path", errors[0]["message"])
        result = self.program("check", "--json", SMALL, *others, *settings('placement.devices=["cuda:7"]'))
        report = json.loads(result.out)
        if report["errors"][0]["part"] != "devices":
            self.skipTest("this machine has eight CUDA devices")
        self.assertEqual(result.code, UNAVAILABLE, str(result))
        self.assertEqual([error["part"] for error in report["errors"]], ["devices", "data", "run folder"], report)
        self.assertIn("16 of 43 linear layers", report["facts"]["model"])
        self.assertIn("text encoder", report["facts"])
        result = self.program("check", SMALL, *others, *missing, *settings('placement.devices=["cuda:7"]'))
        for part in ("recipe", "devices", "data", "run folder"):
            self.assertRegex(result.out, rf"(?m)^ERROR  {part} ")

    def test_good_recipe(self):
        self.expect(
            0,
            ["16 of 43 linear layers", "20 pictures", "ready to run"],
            "check",
            QUICKSTART,
            *settings(run__output=self.folder / "run"),
        )
        report = json.loads(
            self.expect(0, [], "check", "--json", QUICKSTART, *settings(run__output=self.folder / "run")).out
        )
        self.assertTrue(report["ok"])
        self.assertEqual(report["errors"], [])
        self.assertFalse((self.folder / "run").exists(), "check writes nothing")


    def test_more_memory_than_there_is(self):
        huge = settings(run__output=self.folder / "run", train__batch_size=1000000, train__micro_batch_size=1000000,
                        memory__strategies="[]", data__0__resolution="[512, 512]")  # fmt: skip
        result = self.expect(OUT_OF_MEMORY, ["ERROR  free memory", "RAM: the run needs ", "train.micro_batch_size"],
                             "check", SMALL, *huge)  # fmt: skip
        self.assertIn("1 problem found", result.out)
        self.expect(0, "free memory    RAM needs ", "check", SMALL, *settings(run__output=self.folder / "run"))

    def test_run_folder_and_disk(self):
        run = self.folder / "run"
        arguments = ["check", SMALL, *settings(run__output=run)]
        self.expect(0, [f"{run}, a new run", "free for", "checkpoints 700 kB, results 233 kB, cache "], *arguments)
        self.expect(0, ["checkpoints 700 kB, reserve 1.4 MB, results"], *arguments, *settings(checkpoint__reserve="true"))
        (run / "ckpt/step-0000000250").mkdir(parents=True)
        self.expect(66, ["checkpoints exist, but none is whole"], *arguments)
        (run / "ckpt/step-0000000250").rmdir()
        with open(run / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write("pid 1 on here since now\n")
            lock.flush()
            self.expect(LOCKED, ["another run is writing here (pid 1 on here since now)"], *arguments)
        if os.geteuid() != 0:
            (run / "ckpt").rmdir()
            run.chmod(0o500)
            self.expect(LOCKED, ["no permission"], *arguments)


class Strategies(Case):
    """What only a plugin can judge is placed in the recipe as well."""

    def test_options_have_a_place(self):
        selective, packing = "selective_checkpointing", "fp8_weight_only"
        for name, option, text in ((selective, 'save = ["cat"]', '"cat" is no preset'),
                                   (selective, 'save = ["addbmm"]', "matches no operation"),
                                   (selective, 'blocks = "every 1"', '"every 1" is neither'),
                                   (selective, 'blocks = ["dingle.0"]', "matches no block"),
                                   (packing, 'exclude = ["nothing.of.it"]', '"nothing.of.it"')):
            with self.subTest(option):
                recipe = self.write("own.toml", f'extends = "{SMALL}"\n[memory]\nstrategies = ["{name}"]\n'
                                                f"[memory.{name}]\n  {option}\n")
                key = option.split()[0]
                place = f"own.toml:5:{4 + len(key) + 2}: memory.{name}.{key}: "
                self.expect(BAD_RECIPE, [place, text], "check", recipe)
        self.expect(BAD_RECIPE, f"--set memory.{selective}.save=[\"cat\"]: memory.{selective}.save: ", "check", SMALL,
                    *settings(f'memory.strategies=["{selective}"]', f'memory.{selective}.save=["cat"]'))


class Memory(Case):
    def test_the_machine_has_too_little(self):
        """With an address space that ends early, as `ulimit -v` or a container's limit makes it."""
        arguments = ["run", SMALL, *settings(run__output=self.folder / "run", train__batch_size=20000,
                                             train__micro_batch_size=20000)]  # fmt: skip
        process = self.start(*arguments, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30)))
        _, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, OUT_OF_MEMORY, err)
        self.assertIn("out of memory", err)
        self.assertIn("train.micro_batch_size", err)


class Devices(Case):
    def test_cuda_is_missing(self):
        result = self.program(
            "check", SMALL, *settings('placement.devices=["cuda:7"]', run__output=self.folder / "run")
        )
        if result.code == 0:
            self.skipTest("this machine has eight CUDA devices")
        self.assertEqual(result.code, UNAVAILABLE, str(result))
        self.assertIn("cuda", result.text.lower())

    def test_unknown_device(self):
        for device, code in (("tpu", BAD_RECIPE), ("cuda:x", BAD_RECIPE), ("", BAD_RECIPE)):
            with self.subTest(device):
                self.expect(code, [f'"{device}"'], "check", SMALL, *settings(f'placement.devices=["{device}"]'))


if __name__ == "__main__":
    main()
