"""The cache from outside: what is made, what is found again, and that a changed input is never served from it."""

import json
import os
import unittest

from program import RunCase, SMALL, settings


class Cache(RunCase):
    def setUp(self):
        super().setUp()
        self.data, self.names = self.pictures("data", 4)
        self.folder_of_cache = self.folder / "cache"

    def made(self, *pairs, **more):
        """(latents, texts) that were not in the cache."""
        chosen = {
            "data": f'[{{folder="{self.data}", resolution=[64, 64]}}]',
            "cache__folder": self.folder_of_cache,
            **more,
        }
        report = json.loads(self.expect(0, [], "--json", "cache", SMALL, *settings(*pairs, **chosen)).out)
        self.assertEqual(report["pictures"], len(self.names))
        return report["latents_made"], report["captions_made"]

    def sources(self, **keys):
        extra = "".join(f", {key}={value}" for key, value in keys.items())
        return f'[{{folder="{self.data}"{extra}}}]'

    def test_changed_files_miss_and_nothing_else_does(self):
        self.assertEqual(self.made(), (4, 5))  # four captions and the empty one
        self.assertEqual(self.made(), (0, 0))
        (self.data / self.names[1]).with_suffix(".txt").write_text("another caption")
        self.assertEqual(self.made(), (0, 1))
        first, second = self.data / self.names[0], self.data / self.names[2]
        first.write_bytes(second.read_bytes())
        self.assertEqual(self.made(), (0, 0))  # content counts, not names: the other picture's latents serve
        raw = bytearray(second.read_bytes())
        second.write_bytes(raw + b"trailing bytes make another file")
        self.assertEqual(self.made(), (1, 0))
        (self.data / "new name.png").write_bytes((self.data / self.names[3]).read_bytes())
        (self.data / "new name.txt").write_text("another caption")
        self.names.append("new name.png")
        self.assertEqual(self.made(), (0, 0))

    def test_captions_that_are_cut_are_named(self):
        self.expect(0, ["captions are longer", "max_tokens = 8: the end is left out", ' tokens of "'], "cache", SMALL,
                    *settings(data=self.sources(), cache__folder=self.folder_of_cache, text_encoder__max_tokens=8))

    def test_changed_settings_miss(self):
        self.assertEqual(self.made(), (4, 5))
        self.assertEqual(self.made(data=self.sources(resolution="[48, 64]")), (4, 0))
        self.assertEqual(self.made(data=self.sources(resolution="[64, 64]", trigger='"zebra"')), (0, 4))
        self.assertEqual(self.made(text_encoder__max_tokens=48), (0, 5))
        self.assertEqual(self.made(text_encoder__layers="[1, 2, 3]"), (0, 5))
        self.assertEqual(self.made(text_encoder__dtype="bf16"), (0, 5))
        self.assertEqual(self.made(autoencoder__dtype="bf16"), (4, 0))
        self.assertEqual(self.made(run__seed=3, optimizer__lr=1e-5, adapter__rank=2, train__batch_size=4), (0, 0))
        self.assertEqual(self.made(), (0, 0))

    def test_changed_encoders_miss(self):
        self.assertEqual(self.made(), (4, 5))
        model = self.model("vae", "text_encoder", "tokenizer")
        same = {"autoencoder__path": model / "vae", "text_encoder__path": model / "text_encoder"}
        self.assertEqual(self.made(**same), (0, 0))  # a copy is the same
        config = json.loads((model / "tokenizer/tokenizer.json").read_text())
        config["version"] = "2.0"
        (model / "tokenizer/tokenizer.json").write_text(json.dumps(config))
        self.assertEqual(self.made(**same, text_encoder__tokenizer=model / "tokenizer")[0], 0)
        for part, expected in (("vae", (4, 0)), ("text_encoder", (0, 5))):
            file = next((model / part).glob("*.safetensors"))
            raw = bytearray(file.read_bytes())
            raw[-3] ^= 1  # one bit of one weight
            file.write_bytes(raw)
            self.assertEqual(self.made(**same), expected, part)
            self.assertEqual(self.made(**same), (0, 0), part)

    def test_two_runs_share_it(self):
        data = {
            "data": f'[{{folder="{self.data}", resolution=[64, 64]}}]',
            "cache__folder": self.folder_of_cache,
            "run__steps": 2,
        }
        first = self.train(self.folder / "first", **data)
        second = self.train(self.folder / "second", **data)
        self.assertIn("latents 4/4", first.err)
        self.assertNotIn("latents", second.err)
        self.assertEqual(
            (self.folder / "first/lora/small-2.safetensors").read_bytes(),
            (self.folder / "second/lora/small-2.safetensors").read_bytes(),
        )
        self.assertFalse((self.folder / "second/cache").exists())

    def test_two_runs_at_once(self):
        data = {
            "data": f'[{{folder="{self.data}", resolution=[64, 64]}}]',
            "cache__folder": self.folder_of_cache,
            "run__steps": 2,
        }
        runs = [self.start(*self.arguments(self.folder / name, **data)) for name in ("first", "second")]
        for run in runs:
            _, err = run.communicate()
            self.assertEqual(run.returncode, 0, err)
        self.assertEqual(
            (self.folder / "first/lora/small-2.safetensors").read_bytes(),
            (self.folder / "second/lora/small-2.safetensors").read_bytes(),
        )

    def test_damaged_entry_is_made_again(self):
        self.made()
        entry = sorted(self.folder_of_cache.rglob("latents/*/*.safetensors"))[0]
        good = entry.read_bytes()
        for bad in (b"", good[:-4], good[:-1] + bytes([good[-1] ^ 1])):
            entry.write_bytes(bad)
            self.assertEqual(self.made(), (1, 0), len(bad))
            self.assertEqual(entry.read_bytes(), good)

    def test_an_entry_whose_name_is_taken_is_named(self):
        self.made()
        entry = sorted(self.folder_of_cache.rglob("latents/*/*.safetensors"))[0]
        for take in (os.mkdir, os.mkfifo):
            entry.unlink()
            take(entry)
            result = self.expect(74, [f"cache entry {entry}: ", "delete it"], "cache", SMALL,
                                 *settings(data=self.sources(resolution="[64, 64]"), cache__folder=self.folder_of_cache))  # fmt: skip
            self.assertNotIn("name another file", result.err)
            entry.rmdir() if entry.is_dir() else entry.unlink()
            self.assertEqual(self.made(), (1, 0))

    def test_check_counts_what_this_run_lacks(self):
        """Others' entries in a shared folder are no room for ours."""

        def foretold(**more):
            chosen = {"data": self.sources(resolution="[64, 64]"), "cache__folder": self.folder_of_cache, **more}
            return self.expect(0, "free for", "check", SMALL, *settings(run__output=self.folder / "run", **chosen)).out

        self.assertIn(", cache ", foretold())
        self.made()
        self.assertNotIn(", cache ", foretold())
        self.assertIn(", cache ", foretold(data=self.sources(resolution="[64, 64]", trigger='"zebra"')))
        self.assertIn(", cache ", foretold(sample__prompts='["a zebra"]'))

    def test_all_captions_are_empty(self):
        for path in self.data.glob("*.txt"):
            path.write_text("")
        data = f'folder="{self.data}", resolution=[64, 64]'
        for command in ("check", "cache"):
            arguments = [command, SMALL, *settings(run__output=self.folder / "run", cache__folder=self.folder / "cache")]
            told = self.expect(0, ["warning", "all captions are empty"], *arguments, *settings(data=f"[{{{data}}}]"))
            self.assertEqual(told.err.count("all captions are empty"), 1)
            trigger = f'[{{{data}, trigger="zebra"}}]'
            self.assertNotIn("all captions", self.expect(0, [], *arguments, *settings(data=trigger)).err)

    def test_folder_that_cannot_be_written(self):
        blocked = self.write("file", "in the way")
        result = self.program("cache", SMALL, *settings(cache__folder=blocked / "cache"))
        self.assertEqual(result.code, 74, str(result))
        self.assertIn(str(blocked), result.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
