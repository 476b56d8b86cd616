"""kill -9 at random moments, again and again: the final files are those of an undisturbed run, byte for byte."""

import unittest

from interrupted import MIXED, InterruptedCase

KILLS = 10


class Kills(InterruptedCase):
    def test_lora(self):
        self.assert_same_after_kills(KILLS)

    def test_lora_accumulated_with_everything_on(self):
        self.assert_same_after_kills(KILLS, **{**MIXED, "train__batch_size": 6})

    def test_all_parameters(self):
        self.assert_same_after_kills(KILLS, recipe=self.full_recipe(), train__batch_size=2, train__micro_batch_size=2)

    def test_all_parameters_accumulated(self):
        self.assert_same_after_kills(KILLS, recipe=self.full_recipe(), train__batch_size=3, train__micro_batch_size=1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
