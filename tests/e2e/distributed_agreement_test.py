"""What ranks find out about each other before anything expensive: a file that one lacks, other recipes, models, encoders,
a device that two would use. All end at once and name the rank."""

import os
import shutil
import time
import unittest

from program import MODEL, SMALL
from ranks import FOUR, RanksCase

BAD_RECIPE, NOT_FOUND, UNAVAILABLE = 78, 66, 69
OWN = "/proc/self/cwd/"
AT_ONCE = 40  # seconds, on a machine with other work; distributed.timeout is longer


class Agreement(RanksCase):
    def folders(self, *parts):
        """A folder for each of two ranks with these parts of the model."""
        folders = [self.folder / f"rank-{rank}" for rank in range(2)]
        for folder in folders:
            for part in parts:
                shutil.copytree(MODEL / part, folder / part)
        return folders

    def damage(self, file):
        """Another value; the header stays."""
        with open(file, "r+b") as weights:
            weights.seek(-1, os.SEEK_END)
            last = weights.read(1)[0]
            weights.seek(-1, os.SEEK_END)
            weights.write(bytes([last ^ 1]))

    def refused(self, code, *pairs, **more):
        """Both end with the code before anything is cached; their stderr."""
        begin = time.monotonic()
        cache = self.folder / "cache"
        more.setdefault("cache__folder", cache)
        told = self.ends(self.launch(self.folder / "run", 2, *pairs, distributed__timeout=120, **more), code)
        self.assertLess(time.monotonic() - begin, AT_ONCE)
        self.assertEqual(list(cache.rglob("*.safetensors")), [])
        return told

    def test_a_file_that_one_rank_lacks(self):
        for lacking in (1, 0):
            folders = self.folders("transformer")
            shutil.rmtree(folders[lacking] / "transformer")
            told = self.refused(BAD_RECIPE, f"model.path={OWN}transformer", folders=folders)
            for err in told:
                self.assertIn(OWN + "transformer", err)
            self.assertIn(f"stopped, because rank {lacking} (host ", told[1 - lacking])
            shutil.rmtree(folders[1 - lacking])
            shutil.rmtree(folders[lacking])

    def test_a_recipe_that_is_wrong_for_all(self):
        for err in self.refused(BAD_RECIPE, "optimizer.lr=-1"):
            self.assertIn("optimizer.lr", err)

    def test_models_that_differ(self):
        folders = self.folders("transformer")
        self.damage(folders[1] / "transformer/diffusion_pytorch_model.safetensors")
        for err in self.refused(BAD_RECIPE, f"model.path={OWN}transformer", folders=folders):
            self.assertIn(f"the model ({OWN}transformer) of rank 1 (host ", err)

    def test_encoders_that_differ(self):
        folders = self.folders("vae")
        self.damage(folders[1] / "vae/diffusion_pytorch_model.safetensors")
        for err in self.refused(BAD_RECIPE, f"autoencoder.path={OWN}vae", folders=folders):
            self.assertIn("the set of encoders of rank 1 (host ", err)

    def test_a_cache_that_is_not_shared(self):
        """Each rank has a folder of that name, or only rank 0 has one: told before hours of encoding."""
        for of_both in (True, False):
            folders = [self.folder / f"{of_both}-{rank}" for rank in range(2)]
            for folder in folders:
                folder.mkdir()
            for folder in folders if of_both else folders[:1]:
                (folder / "cache").mkdir()
            told = self.refused(NOT_FOUND, cache__folder=OWN + "cache", folders=folders)
            self.assertIn(f"error: rank 1: {OWN}cache: what rank 0 writes there is not seen here", told[1])
            self.assertIn("stopped, because rank 1 (host ", told[0])
            self.assertEqual([path for folder in folders for path in folder.rglob("*") if path.is_file()], [])

    def test_recipes_that_differ(self):
        folders = self.folders("transformer")
        for rank, folder in enumerate(folders):
            (folder / "small.toml").write_text(f'extends = "{SMALL}"\n[optimizer]\nlr = {rank + 1}e-3\n')
        for err in self.refused(BAD_RECIPE, recipe=OWN + "small.toml", folders=folders):
            self.assertIn("the recipe of rank 1 (host ", err)

    def test_one_device_for_two(self):
        for err in self.refused(UNAVAILABLE, 'placement.devices=["sim:0"]', 'placement.simulated=["1TB"]'):
            self.assertIn("rank 0 (host ", err)
            self.assertIn("would both use sim:0", err)

    def test_a_batch_that_cannot_be_shared_out(self):
        told = self.refused(BAD_RECIPE, **{**FOUR, "train__batch_size": 3})
        for err in told:
            self.assertIn("train.batch_size = 3 cannot be shared out evenly among 2 ranks", err)

    def test_updates_in_backward(self):
        for err in self.refused(BAD_RECIPE, "optimizer.fused_backward=true", "train.max_grad_norm=0", train__micro_batch_size=4):
            self.assertIn("optimizer.fused_backward", err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
