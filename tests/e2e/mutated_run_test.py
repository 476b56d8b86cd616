"""A run folder in which something was changed, deleted or replaced: the next start ends with a code of the table and a
message, or with the bytes of an undisturbed run. Never a crash, never a hang, never another result."""

import os
import random
import shutil
import unittest

from program import RunCase

# done, bad input, not found, io, locked, bad recipe
CODES = {0, 65, 66, 74, 77, 78}
MUTATIONS = int(os.environ.get("TRAINER_TEST_MUTATIONS", "16"))
STEPS, NEWEST = 6, "step-0000000004"


def flip(chance, path):
    raw = bytearray(path.read_bytes()) or bytearray(b"x")
    raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    path.write_bytes(raw)


def cut(chance, path):
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size + 1)])


def grow(chance, path):
    path.write_bytes(path.read_bytes() + chance.randbytes(chance.randrange(1, 200)))


def noise(chance, path):
    path.write_bytes(chance.randbytes(chance.randrange(200)))


def delete(chance, path):
    path.unlink()


def make_folder(chance, path):
    path.unlink()
    path.mkdir()


def make_link(chance, path):
    path.unlink()
    path.symlink_to("/nowhere/at/all")


def make_fifo(chance, path):
    path.unlink()
    os.mkfifo(path)


def delete_folder(chance, path):
    shutil.rmtree(path.parent)


def copy_checkpoint(chance, path):
    if path.parent.name.startswith("step-"):
        shutil.copytree(path.parent, path.parent.with_name(f"step-{chance.randrange(1, 99):010}"), dirs_exist_ok=True)


WAYS = [flip, flip, flip, cut, cut, grow, noise, delete, make_folder, make_link, make_fifo, delete_folder, copy_checkpoint]


class MutatedRun(RunCase):
    def test_start_after_a_mutation(self):
        settings = {"checkpoint__every": 2, "checkpoint__keep": 2, "metrics__tensorboard": "true"}
        whole, first = self.folder / "whole", self.folder / "first"
        self.train(whole, run__steps=STEPS, **settings)
        expected = (whole / f"lora/small-{STEPS}.safetensors").read_bytes()
        self.train(first, run__steps=4, **settings)
        seed = random.randrange(1 << 30)
        print(f"seed {seed}", end=" ", flush=True)
        chance, ends = random.Random(seed), {}
        for number in range(MUTATIONS):
            run = self.folder / "run"
            shutil.copytree(first, run)
            done, harmless = [], False
            for _ in range(chance.choice([1, 1, 2])):
                files = sorted(path for path in run.rglob("*") if path.is_file())
                path, way = chance.choice(files), chance.choice(WAYS)
                if way is delete_folder and path.parent == run:
                    continue  # a new run
                way(chance, path)
                done.append(f"{way.__name__} {path.relative_to(run)}")
                harmless = len(done) == 1 and way is not delete_folder and path.parent.name == NEWEST
            with self.subTest(f"{number} of seed {seed}: {', '.join(done)}"):
                result = self.program(*self.arguments(run, run__steps=STEPS, **settings))
                # An older checkpoint is whole.
                self.assertIn(result.code, {0} if harmless else CODES, str(result))
                ends[result.code] = ends.get(result.code, 0) + 1
                if result.code == 0:
                    self.assertEqual((run / f"lora/small-{STEPS}.safetensors").read_bytes(), expected, str(result))
                else:
                    self.assertIn("error: ", result.err)
            shutil.rmtree(run)
        print(f"{MUTATIONS} mutations, exit codes {dict(sorted(ends.items()))}", end=" ", flush=True)

    def test_what_the_newest_checkpoint_says_of_the_recipe_counts_when_it_is_whole(self):
        settings = {"checkpoint__every": 2, "checkpoint__keep": 2}
        whole, first, run = self.folder / "whole", self.folder / "first", self.folder / "run"
        self.train(whole, run__steps=STEPS, **settings)
        self.train(first, run__steps=4, **settings)
        state = (first / "ckpt" / NEWEST / "state.json").read_bytes()
        self.assertEqual(state.count(b"lr = 0.001"), 1, state)
        for text, step in [(b"lr = 0.003", 4), (b"lq = 0.001", 4), (b"lr = 0.003", 9)]:
            for options in [], ["--resume-with", "checkpoint"]:
                shutil.copytree(first, run)
                file = run / f"ckpt/step-{step:010}/state.json"
                file.parent.mkdir(exist_ok=True)
                file.write_bytes(state.replace(b"lr = 0.001", text))
                with self.subTest(f"{text} at {step}, {options}"):
                    texts = ["set aside as " + file.parent.name, f"going on after step {2 if step == 4 else 4}"]
                    self.train(run, run__steps=STEPS, **settings, texts=texts, options=options)
                    name = f"lora/small-{STEPS}.safetensors"
                    self.assertEqual((run / name).read_bytes(), (whole / name).read_bytes())
                shutil.rmtree(run)


if __name__ == "__main__":
    unittest.main(verbosity=2)
