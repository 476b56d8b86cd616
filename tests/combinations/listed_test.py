"""recipes/combinations is the only list: the tests, the README's table and the jobs of .github/workflows/ci.yml have what it
has, and each command of those jobs exists here."""

import contextlib
import io
import json
import os
import pathlib
import re
import shlex
import shutil
import sys
import unittest
import unittest.mock

sys.dont_write_bytecode = True
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[2] / "tools")]

import run_tests
from combinations import PLACEMENTS, ROOT, names, readme_rows, rows, strategies

WORKFLOW = ROOT / ".github/workflows/ci.yml"
TESTS = json.loads((pathlib.Path(os.environ["TRAINER_BUILD"]) / "meson-info/intro-tests.json").read_text())


def combinations():
    return sorted("-".join(name) for name in names())


def jobs():
    """[(job, its lists by name, its commands)], of the little YAML that the workflow is written in."""
    text = re.sub(r"\[\s+([^]]*?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", WORKFLOW.read_text().split("\njobs:\n")[1])
    for job in re.split(r"^  (?=\w+:$)", text, flags=re.MULTILINE)[1:]:
        lists = {name: items.split(", ") for name, items in re.findall(r"^ {8}(\w+): \[(.*)\]$", job, re.MULTILINE)}
        yield job.split(":")[0], lists, re.findall(r"^ {6}- run: (.*)$", job, re.MULTILINE)


def commands():
    """Every command of every job, as it runs with each item of its list."""
    for _, lists, runs in jobs():
        for run in runs:
            name = re.search(r"\$\{\{ matrix\.(\w+) \}\}", run)
            for item in lists[name[1]] if name else [""]:
                for command in re.sub(r"\$\{\{.*?\}\}", item, run).split(" && "):
                    yield command


class Listed(unittest.TestCase):
    def test_each_row_has_both_placements(self):
        self.assertEqual(set(names()), {(row, placement) for row in rows() for placement in PLACEMENTS})

    def test_each_is_a_test(self):
        """Meson read the folder when it was configured."""
        known = {test["name"] for test in TESTS}
        self.assertEqual({name for name in known if name.startswith("combination_")}, {f"combination_{name}" for name in combinations()},
                         "configure again: meson setup --reconfigure")

    def test_the_readme_has_the_rows(self):
        self.assertEqual(list(readme_rows()), rows())
        for row, cells in readme_rows().items():
            self.assertEqual(re.findall(r"`(\w+)`", cells[0]), strategies(row), row)

    def test_the_workflow_has_the_combinations_and_all_tests(self):
        lists = {job: items for job, items, _ in jobs()}
        self.assertEqual(lists["combination"]["combination"], combinations())
        chosen = set(lists["suite"]["suite"])
        for test in TESTS:
            suites = run_tests.suites_of(test)
            if run_tests.WHOLE not in suites and not test["name"].startswith("combination_"):
                self.assertTrue(suites & chosen, f"no job runs {test['name']}")

    def test_the_workflow_has_the_legs(self):
        lists = {job: items for job, items, _ in jobs()}
        legs = re.findall(r"^ *leg (\w+) ", (ROOT / ".ci/run").read_text(), re.MULTILINE)
        self.assertEqual(["tests", *lists["leg"]["leg"]], legs, "the jobs of combinations and suites are the first leg")

    def test_each_command_exists(self):
        seen = 0
        for command in commands():
            program, *arguments = shlex.split(command)
            here = ROOT / program
            self.assertTrue(os.access(here, os.X_OK) if "/" in program else shutil.which(program), command)
            if program != "tools/test":
                continue
            with unittest.mock.patch.object(sys, "argv", [program, *arguments]), contextlib.redirect_stderr(io.StringIO()):
                options = run_tests.parse_arguments()
                chosen = run_tests.choose_suites(TESTS, options)
            if options.filter:
                chosen = [test for test in chosen if test["name"] == options.filter]
            self.assertTrue(chosen, f"{command} runs no test")
            seen += 1
        self.assertGreater(seen, len(combinations()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
