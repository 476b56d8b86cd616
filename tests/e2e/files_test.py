"""Files and paths as they come: JSON nested without end, links in circles, no permission, devices as output."""

import ctypes
import json
import os
import shutil
import struct
import subprocess

from program import (
    MODEL, PICTURES, PROGRAM, SMALL, TIMEOUT, Case, Result, RunCase, environment, main, read_header, reseal,
    settings, write_safetensors,
)  # fmt: skip

USAGE, BAD_INPUT, NOT_FOUND, UNAVAILABLE, IO, LOCKED, BAD_RECIPE = 2, 65, 66, 69, 74, 77, 78
LIBC = ctypes.CDLL(None)
DEEP = "[" * 100_000 + "]" * 100_000  # 200 kB; a copy of the tree takes more stack than there is
NESTED = "nested deeper than 64 levels"
LAYER = "transformer.transformer_blocks.0.attn.to_q"


def write_lora(path, metadata=None, dtype="F32", size=4, bits=struct.pack("<f", 0.5)):
    """A LoRA of rank 2 on one layer of the quickstart's model, every number the same."""
    sides = {"lora_A": [2, 192], "lora_B": [192, 2]}
    header = {
        f"{LAYER}.{part}.weight": {"dtype": dtype, "shape": shape, "data_offsets": [384 * size * n for n in (i, i + 1)]}
        for i, (part, shape) in enumerate(sides.items())
    }
    if metadata:
        header["__metadata__"] = metadata
    write_safetensors(path, header, bits * 768)
    return path


class Nested(RunCase):
    """A parser reads brackets in brackets without recursion; copies and messages of what it gives do not."""

    def test_metadata_of_a_lora(self):
        for key in ("transformer.r", "use_dora", "lora_alpha", "alpha_pattern"):
            lora = write_lora(self.folder / "a.safetensors", {"lora_adapter_metadata": f'{{"{key}": {DEEP}}}'})
            self.expect(0, [NESTED, "lora_adapter_metadata"], "inspect", lora)
            self.expect(BAD_INPUT, [NESTED], "export", lora, "--format", "kohya")

    def test_configuration_of_a_model(self):
        for part, section, key in (("transformer", "model", "num_layers"), ("vae", "autoencoder", "act_fn"),
                                   ("text_encoder", "text_encoder", "model_type")):  # fmt: skip
            folder = self.folder / part
            shutil.copytree(MODEL / part, folder)
            config = json.loads((folder / "config.json").read_text())
            config[key] = 0
            (folder / "config.json").write_text(json.dumps(config).replace(f'"{key}": 0', f'"{key}": {DEEP}'))
            self.expect(BAD_INPUT, [NESTED, "config.json"], "inspect", folder)
            self.expect(BAD_INPUT, [NESTED, "config.json"], "check", SMALL,
                        *settings(f"{section}.path={folder}", run__output=self.folder / "run"))  # fmt: skip

    def test_files_of_a_run(self):
        run = self.folder / "run"
        self.train(run, run__steps=1)
        note = run / "run.json"
        whole = json.loads(note.read_text())
        note.write_text(json.dumps({**whole, "strangers": 0}).replace('"strangers": 0', f'"strangers": {DEEP}'))
        (run / "ckpt").rename(run / "elsewhere")
        for command in ("run", "check"):
            self.expect(BAD_INPUT, ["run.json", "damaged"], command, *self.arguments(run, run__steps=2)[1:])
        (run / "elsewhere").rename(run / "ckpt")  # whose manifests have the id
        self.expect(0, "goes on after step 1", "check", *self.arguments(run, run__steps=2)[1:])
        (run / "attempts.json").write_text('{"from": ' + "[" * 30_000 + "]" * 30_000 + "}")
        (run / "proof.json").write_text(f'{{"subject": {DEEP}}}')
        (run / "plan.json").write_text(f'{{"budget": {DEEP}}}')
        self.train(run, run__steps=2, texts="going on after step 1")
        self.assertEqual(json.loads(note.read_text())["run_id"], whole["run_id"])
        budget = {"memory__strategies": "[]", "memory__budget": "100GB", "run__steps": 3}
        self.train(run, **budget)  # only what packs the weights counts, and stands in the checkpoint
        checkpoint = max((run / "ckpt").iterdir())
        reseal(checkpoint, "state.json", f'{{"step": {DEEP}}}'.encode())
        self.expect(BAD_INPUT, ["nested deeper"], *self.arguments(run, run__steps=4), "--resume", checkpoint)


def obey_permissions():
    """In a process that is about to be the program: takes CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH from a root."""
    drop_from_bounding_set = 24
    for capability in (1, 2):
        if os.geteuid() == 0 and LIBC.prctl(drop_from_bounding_set, capability, 0, 0, 0) != 0:
            raise OSError("prctl")


class Paths(Case):
    """What the file system refuses is told with the path and the reason; the exit code says that it is no defect."""

    def setUp(self):
        super().setUp()
        self.loop = self.folder / "loop"
        self.loop.symlink_to(self.loop)

    def check(self, code, texts, *pairs, command="check"):
        pairs = [*pairs, f"cache.folder={self.folder / 'cache'}"]
        if not any(pair.startswith("run.output") for pair in pairs):
            pairs.append(f"run.output={self.folder / 'run'}")
        result = self.expect(code, texts, command, SMALL, *settings(*pairs))
        self.assertNotIn("filesystem error", result.text)

    def test_links_in_circles(self):
        result = self.expect(IO, [str(self.loop), "symbolic links", "leads back to itself"], "inspect", self.loop)
        self.assertNotIn("filesystem error", result.text)
        lora = write_lora(self.folder / "a.safetensors")
        for options in ([], ["--force"]):
            self.expect(IO, [str(self.loop), "symbolic links"], "export", lora, "--format", "kohya", "--output",
                        self.loop, *options)  # fmt: skip
        self.check(IO, [str(self.loop), "symbolic links"], f"run.output={self.loop}")

    def test_names_that_are_too_long(self):
        name = self.folder / ("x" * 256)
        self.expect(IO, ["File name too long", "255 bytes"], "inspect", name)
        lora = write_lora(self.folder / "a.safetensors")
        self.expect(IO, ["File name too long"], "export", lora, "--format", "kohya", "--output", name)

    def as_user(self, code, texts, *arguments):
        """Runs the program as somebody for whom permissions count: for root too, without what lets it pass them."""
        try:
            process = self.start(*arguments, preexec_fn=obey_permissions)
        except subprocess.SubprocessError:
            self.skipTest("this root may not give up its capabilities")
        out, err = process.communicate(timeout=TIMEOUT)
        result = self.checked(Result(list(map(str, arguments)), process.returncode, out, err))
        self.assertEqual(result.code, code, str(result))
        for text in texts:
            self.assertIn(text, result.text, str(result))
        self.assertNotIn("filesystem error", result.text)

    def closed(self, folder):
        folder.chmod(0)
        self.addCleanup(folder.chmod, 0o700)
        return folder

    def test_no_permission(self):
        denied, secret = "Permission denied", self.folder / "secret"
        secret.mkdir()
        lora = write_lora(secret / "a.safetensors")
        shutil.copytree(PICTURES, self.folder / "pictures")
        (self.folder / "run" / "ckpt").mkdir(parents=True)
        self.closed(secret)
        self.as_user(IO, [str(secret), denied, "allow this user"], "inspect", lora)
        self.as_user(UNAVAILABLE, ["LibTorch", str(secret), denied], "--libtorch", secret, "inspect", lora)
        recipe = [SMALL, *settings(f"cache.folder={self.folder / 'cache'}")]
        output = settings(f"run.output={self.folder / 'run'}")
        pictures = self.closed(self.folder / "pictures")
        for command in ("check", "run"):
            self.as_user(IO, [str(pictures), denied], command, *recipe, *output,
                         *settings(f'data=[{{folder="{pictures}"}}]'))  # fmt: skip
        ckpt = self.closed(self.folder / "run" / "ckpt")
        self.as_user(IO, [str(ckpt), denied], "check", *recipe, *output)
        self.closed(self.folder / "run")
        for command in ("check", "run"):
            self.as_user(LOCKED, [str(self.folder / "run"), "no permission"], command, *recipe, *output)


class Outputs(RunCase):
    def test_only_a_file_is_replaced(self):
        lora = write_lora(self.folder / "a.safetensors")
        fifo, folder, link = self.folder / "fifo", self.folder / "folder", self.folder / "link"
        os.mkfifo(fifo)
        folder.mkdir()
        link.symlink_to(fifo)
        for target, what in ((fifo, "FIFO"), (folder, "a folder"), (link, "FIFO")):
            for options in ([], ["--force"]):
                self.expect(IO, [str(target), what], "export", lora, "--format", "kohya", "--output", target, *options)
            self.expect(IO, [str(target), what], "sample", SMALL, "--prompt", "a fox", "--output", target)
        self.assertTrue(fifo.is_fifo() and link.is_symlink() and folder.is_dir())
        file = self.write("old.safetensors", "old")
        self.expect(0, [], "export", lora, "--format", "kohya", "--output", file, "--force")
        self.assertGreater(file.stat().st_size, 1000)

    def test_every_type_of_numbers_is_exported(self):
        for dtype, bits in (("F64", struct.pack("<d", 0.5)), ("F32", struct.pack("<f", 0.5)), ("F16", b"\x00\x38"),
                            ("BF16", b"\x00\x3f"), ("F8_E4M3", b"\x30"), ("F8_E5M2", b"\x38")):  # fmt: skip
            lora = write_lora(self.folder / f"{dtype}.safetensors", None, dtype, len(bits), bits)
            self.expect(0, ["LoRA for FLUX.2"], "inspect", lora)
            for kind in ("diffusers", "comfyui", "kohya"):
                output = self.folder / f"{dtype}-{kind}.safetensors"
                self.expect(0, [], "export", lora, "--format", kind, "--output", output)
                self.expect(0, ["finite         true"], "inspect", output)
        run = self.folder / "run"
        lora = self.folder / "F8_E4M3.safetensors"
        self.train(run, f'adapter.path="{lora}"', 'adapter.init="file"', f'adapter.targets=["{LAYER[12:]}"]',
                   adapter__rank=2, adapter__alpha=2, run__steps=1)  # fmt: skip

    def test_nothing_of_the_user_is_in_a_lora(self):
        """Files are shared: no path, name of user or machine, or value of the environment goes with them."""
        planted = {key: f"planted-{key.lower()}" for key in ("USER", "LOGNAME", "HOSTNAME", "SECRET_TOKEN", "EMAIL")}
        home = self.folder / "planted-home"
        home.mkdir()
        env = {**planted, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
        run = home / "planted-run"
        self.expect(0, [], *self.arguments(run, run__steps=1, run__name="mine"), env=env)
        files = [run / "lora/mine-1.safetensors"]
        for kind in ("diffusers", "comfyui", "kohya"):
            files.append(home / f"{kind}.safetensors")
            self.expect(0, [], "export", files[0], "--format", kind, "--output", files[-1], env=env)
        words = ["planted", self.folder.name, str(MODEL.parent), os.getcwd()]
        words += [name for name in (os.uname().nodename, os.environ.get("USER", "")) if len(name) > 4]
        for file in files:
            metadata = json.dumps(read_header(file)[0]["__metadata__"])
            for word in words:
                self.assertNotIn(word, metadata, f"{file}: {word}")
            self.assertNotIn(b"planted", file.read_bytes(), file)

    def test_a_full_folder_for_temporary_files_does_not_stop_a_resume(self):
        run = self.folder / "run"
        self.train(run, run__steps=1)
        env = {"TMPDIR": str(self.folder / "gone")}
        self.expect(0, ["after step 1"], *self.arguments(run, run__steps=2), env=env)


class Names(RunCase):
    """Names and texts of strangers: bytes that are no UTF-8, and what would command the terminal."""

    def raw(self, *arguments):
        """(exit code, stdout, stderr) as bytes."""
        process = subprocess.run([PROGRAM, *map(os.fsencode, map(str, arguments))], env=environment(), cwd=self.folder,
                                 capture_output=True, timeout=TIMEOUT)  # fmt: skip
        return process.returncode, process.stdout, process.stderr

    def settings(self, *pairs, **more):
        return settings(*pairs, cache__folder=self.cache, **{"run__output": self.folder / "run", **more})

    def test_a_path_that_is_no_utf8_is_told_before_the_run(self):
        odd = os.fsdecode(b"odd\xff")
        for pair in ({"run__output": self.folder / odd}, {"cache__folder": odd}):
            for command in ("check", "run"):
                code, _, err = self.raw(command, SMALL, *settings(**pair))
                self.assertEqual((code, b"is not UTF-8: " in err), (BAD_RECIPE, True), err)
        (self.folder / odd).mkdir()
        recipe = self.folder / odd / "small.toml"
        recipe.write_text(f'extends = "{SMALL}"\n')
        for command in (["check", recipe, *self.settings()], ["inspect", self.folder / odd],
                        ["export", self.folder / odd, "--format", "kohya"]):  # fmt: skip
            for json_too in ([], ["--json"]):
                code, _, err = self.raw(*json_too, *command)
                self.assertEqual((code, rb'odd\xff' in err, b"is not UTF-8: rename" in err), (USAGE, True, True), err)

    def test_a_picture_with_an_odd_name(self):
        folder, names = self.pictures("pictures")
        odd = folder / os.fsdecode(b"a\x1b[2J\xc2\x9b2J\nok     everything fine\nERROR  forged\xff.gif")
        odd.write_bytes(b"x")
        data = self.settings(f'data=[{{folder="{folder}"}}]')
        code, out, err = self.raw("check", SMALL, *data)
        self.assertEqual(code, BAD_INPUT, out + err)
        for output in (out, err):
            self.assertNotRegex(output, rb"[\x00-\x09\x0b-\x1f\x7f-\xff]")
            self.assertNotRegex(output, rb"(?m)^(ok     everything|ERROR  forged)")
        self.assertIn(rb"a\x1b[2J\xc2\x9b2J\x0aok     everything fine\x0aERROR  forged\xff.gif", out)
        code, out, err = self.raw("--json", "check", SMALL, *data)
        self.assertEqual(code, BAD_INPUT, out + err)
        self.assertIn("data", [error["part"] for error in json.loads(out)["errors"]])
        code, out, err = self.raw("run", SMALL, *data)
        self.assertEqual(code, BAD_INPUT, out + err)
        self.assertNotIn(b"\x1b", err)
        odd.rename(folder / os.fsdecode(b"a\x1b\xff.png"))
        shutil.copy(folder / names[0], folder / os.fsdecode(b"a\x1b\xff.png"))
        (folder / os.fsdecode(b"a\x1b\xff.txt")).write_text("a fox")
        code, out, err = self.raw("run", SMALL, *data, *settings(run__steps=1))
        self.assertEqual(code, 0, out + err)

    def test_errors_of_files_command_no_terminal(self):
        metadata = {"lora_adapter_metadata": '{"lora_alpha": "\\u001b[2J"}'}
        lora = write_lora(self.folder / "a\x1b[2J.safetensors", metadata)
        for command in (["inspect", lora], ["export", lora, "--format", "kohya"], ["--json", "inspect", lora],
                        ["inspect", self.folder / "b\x1b[2J"]):  # fmt: skip
            _, out, err = self.raw(*command)
            self.assertNotIn(b"\x1b", out + err)


class Inspect(RunCase):
    def inspect(self, path):
        return json.loads(self.expect(0, [], "--json", "inspect", path).out)

    def test_programs_that_read_a_file(self):
        for part, readers in (
            ("transformer", 'trainer (model.kind = "flux2"), diffusers (Flux2Transformer2DModel)'),
            ("vae", 'trainer (autoencoder.kind = "flux2_vae"), diffusers (AutoencoderKLFlux2)'),
        ):
            report = self.inspect(MODEL / part)
            self.assertEqual(report["read_by"], readers)
            self.assertEqual(next(iter(report)), "what")
            self.assertNotIn("not_a_model_of", report)
        other = self.folder / "other.safetensors"
        name = "encoder.conv.decoder."
        write_safetensors(other, {name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4))
        report = self.inspect(other)
        self.assertEqual(list(report)[:1], ["what"])
        self.assertIn("flux2", report["not_a_model_of"])
        self.assertNotIn("read_by", report)

    def test_a_lora_whose_names_are_known_is_no_strangers(self):
        unknown = "LoRA of a family that no model plugin knows"
        for metadata, text in (({"lora_adapter_metadata": '{"lora_alpha": "8"}'}, "no number above 0"),
                               ({"lora_adapter_metadata": '{"use_dora": true}'}, "DoRA")):  # fmt: skip
            lora = write_lora(self.folder / "a.safetensors", metadata)
            report = self.inspect(lora)
            self.assertEqual(report["what"], "damaged or unsupported LoRA for FLUX.2")
            self.assertIn(text, report["problem"])
            result = self.expect(BAD_INPUT, [text], "export", lora, "--format", "kohya")
            self.assertNotIn("no model plugin knows", result.text)
        header, data = read_header(write_lora(self.folder / "b.safetensors"))
        header[f"{LAYER}.alpha"] = {"dtype": "F32", "shape": [], "data_offsets": [len(data), len(data) + 4]}
        write_safetensors(self.folder / "b.safetensors", header, data + bytes(4))
        report = self.inspect(self.folder / "b.safetensors")
        self.assertEqual(report["what"], "damaged or unsupported LoRA for FLUX.2")
        self.assertIn("no positive number, as an alpha must be", report["problem"])
        peft = {name.replace("transformer.", "base_model.model.", 1): entry for name, entry in header.items()}
        write_safetensors(self.folder / "c.safetensors", peft, data + bytes(4))
        os.mkfifo(self.folder / "adapter_config.json")
        self.assertEqual(self.inspect(self.folder / "c.safetensors")["what"], "damaged or unsupported LoRA for FLUX.2")
        one_more = {**header, "lora_te.to_q.alpha": header[f"{LAYER}.alpha"]}
        one_more["lora_te.to_q.alpha"] = {**header[f"{LAYER}.alpha"], "data_offsets": [len(data) + 4, len(data) + 8]}
        write_safetensors(self.folder / "e.safetensors", one_more, data + struct.pack("<2f", 2, 2))
        report = self.inspect(self.folder / "e.safetensors")
        self.assertEqual(report["what"], "damaged or unsupported LoRA for FLUX.2")
        self.assertIn("lora_te.to_q.alpha", report["problem"])
        other = {name.replace("to_q", "to_x"): entry for name, entry in header.items()}
        write_safetensors(self.folder / "d.safetensors", other, data + bytes(4))
        self.assertEqual(self.inspect(self.folder / "d.safetensors")["what"], unknown)

    def test_metadata_of_millions_of_lines(self):
        lora = write_lora(self.folder / "a.safetensors", {"note": "\n" * (3 << 20)})
        self.expect(0, ["LoRA for FLUX.2", "finite         true"], "inspect", lora)  # in minutes, as `program` asks

    def test_a_cache_entry_says_who_reads_it(self):
        entries = sorted(path for path in self.cache.rglob("*.safetensors"))
        for entry in (entries[0], entries[-1]):
            report = self.inspect(entry)
            self.assertTrue(report["what"].startswith("cache entry: "), report)
            self.assertIn("trainer", report["read_by"])

    def test_what_is_in_a_run(self):
        run = self.folder / "run"
        self.train(run, run__steps=2, adapter__alpha=6)
        report = self.inspect(run / "ckpt/step-0000000002")
        self.assertEqual({key: report[key] for key in ("model", "trains", "rank", "alpha", "family")},
                         {"model": "flux2", "trains": "lora", "rank": 4, "alpha": 6, "family": "FLUX.2"})  # fmt: skip
        self.assertEqual(report["read_by"], f"trainer run RECIPE --resume {run / 'ckpt/step-0000000002'}")
        self.assertGreaterEqual(report["dtypes"]["F32"], 3 * report["trained"], "two moments each")
        self.expect(NOT_FOUND, ["folder of a run", "ckpt/step-0000000002", "lora/small-2.safetensors"], "inspect", run)
        manifest = run / "ckpt/step-0000000002/MANIFEST.json"
        self.assertEqual(self.inspect(manifest), self.inspect(manifest.parent))
        shutil.rmtree(run / "lora")
        shutil.rmtree(run / "ckpt")
        self.expect(NOT_FOUND, ["the folder of a run", "no checkpoint and no result yet"], "inspect", run)


if __name__ == "__main__":
    main()
