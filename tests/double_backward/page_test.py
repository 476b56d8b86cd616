"""The tables of docs/double-backward.md have a row for each form that is tested here, which says what its test asserts.

TRAINER_FORMS and TRAINER_FLUX2 are the test programs.
"""

import os
import re
import subprocess
import unittest

import page

OURS = {"equal to the bit": "EqualToTheBit", "refused by name": "RefusedByName"}


def cases(program):
    """Test -> names of its parameters, of a GoogleTest program."""
    listed, suite, found = subprocess.run([program, "--gtest_list_tests"], check=True, capture_output=True, text=True), "", {}
    for line in listed.stdout.splitlines():
        name = line.split("#")[0].strip()
        if not line.startswith(" "):
            suite = name.split("/")[-1]
        else:
            test, _, parameter = name.partition("/")
            found.setdefault(suite + test, []).append(parameter)
    return found


class Page(unittest.TestCase):
    def test_a_row_a_form_with_what_its_test_asserts(self):
        tested = cases(os.environ["TRAINER_FORMS"])
        rows = [(row[0].strip("`"), OURS[row[-1]]) for row in page.tables()[0]]
        asserted = [(form, test.split(".")[0]) for test in tested for form in tested[test] if test.split(".")[0] in OURS.values()]
        self.assertGreater(len(rows), 10)
        self.assertCountEqual(rows, asserted)

    def test_tests_that_the_page_names_exist(self):
        known = cases(os.environ["TRAINER_FORMS"]).keys() | cases(os.environ["TRAINER_FLUX2"]).keys()
        named = set(re.findall(r"`([A-Z]\w+\.[A-Z]\w+)`", page.PAGE.read_text()))
        self.assertGreater(len(named), 3)
        self.assertLessEqual(named, known)


if __name__ == "__main__":
    unittest.main(verbosity=2)
