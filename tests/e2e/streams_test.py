"""stdin, stdout and stderr that are closed or lie on a full disk, and limits on the size of files."""

import os
import pathlib
import subprocess

from program import MODEL, PROGRAM, SMALL, TIMEOUT, Result, RunCase, environment, log_lines, main, settings, write_safetensors

IO = 74


class Streams(RunCase):
    def in_shell(self, how, *arguments):
        """The program, started by a shell with `how` before or behind `"$@"`."""
        process = subprocess.run(
            ["sh", "-c", how, "sh", PROGRAM, *map(str, arguments)],
            env=environment(), cwd=self.folder, text=True, capture_output=True, timeout=TIMEOUT,
        )  # fmt: skip
        return Result(list(map(str, arguments)), process.returncode, process.stdout, process.stderr)

    def test_closed_streams_are_no_files_of_the_run(self):
        """A lock or a weight file that got number 1 or 2 would take what is printed."""
        for number, closed in enumerate(("2>&-", ">&-", "<&- >&- 2>&-")):
            with self.subTest(closed):
                run = self.folder / f"run-{number}"
                result = self.in_shell(f'exec "$@" {closed}', *self.arguments(run, run__steps=3))
                self.assertEqual(result.code, 0, str(result))
                self.assertEqual([line["step"] for line in log_lines(run)], [1, 2, 3])
                self.expect(0, "LoRA", "inspect", run / "lora/small-3.safetensors")

    def test_the_lock_of_a_run_without_stderr_says_who_holds_it(self):
        run = self.folder / "run"
        process = subprocess.Popen(["sh", "-c", 'exec "$@" 2>&-', "sh", PROGRAM, *map(str, self.arguments(run, run__steps=1000))],
                                   env=environment(), stdout=subprocess.DEVNULL)  # fmt: skip
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.wait_for_steps(process, run, 3)
        self.assertRegex((run / ".lock").read_text(), rf"^pid {process.pid} on [^\n]*\ntoken [^\n]*\n$")

    def test_results_that_could_not_be_printed(self):
        if not pathlib.Path("/dev/full").exists():
            self.skipTest("no /dev/full")
        long = self.folder / "long.safetensors"  # told in more than the buffer of stdout holds
        tensor = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
        write_safetensors(long, {"__metadata__": {"note": "x" * 9000}, "tensor": tensor}, bytes(4))
        for arguments in (["inspect", MODEL / "transformer"], ["--json", "plugins", "list"],
                          ["--json", "inspect", long],
                          ["check", SMALL, *settings(run__output=self.folder / "run")], ["--help"]):  # fmt: skip
            with self.subTest(str(arguments[:2])):
                result = self.checked(self.in_shell('exec "$@" >/dev/full', *arguments))
                self.assertEqual(result.code, IO, str(result))
                self.assertIn("not all results could be written to stdout: No space left on device", result.err)

    def test_a_file_that_was_cut_off_holds_results_alone(self):
        long = self.folder / "long.safetensors"
        tensor = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
        write_safetensors(long, {"__metadata__": {"note": "x" * 9000}, "tensor": tensor}, bytes(4))
        whole = self.expect(0, [], "--json", "inspect", long).out
        result = self.checked(self.in_shell('ulimit -f 8; exec "$@" >cut', "--json", "inspect", long))
        self.assertEqual(result.code, IO, str(result))
        self.assertIn("not all results could be written to stdout: File too large", result.err)
        cut = (self.folder / "cut").read_text()
        self.assertTrue(0 < len(cut) < len(whole) and whole.startswith(cut), cut[-20:])

    def test_a_reader_that_goes_is_no_error(self):
        reader, writer = os.pipe()
        os.close(reader)
        self.addCleanup(os.close, writer)
        process = subprocess.run([PROGRAM, "--json", "plugins", "list"], env=environment(), stdout=writer, text=True,
                                 stderr=subprocess.PIPE, timeout=TIMEOUT, restore_signals=False)  # fmt: skip
        self.assertEqual((process.returncode, process.stderr), (0, ""))

    def test_limit_on_the_size_of_files(self):
        run = self.folder / "run"
        self.train(run, run__steps=1)
        lora = run / "lora/small-1.safetensors"
        few = settings(cache__folder=self.cache, sample__size="[64, 64]", sample__steps=1, sample__seeds="[1]")
        # What a sample keeps in the cache is there already.
        self.expect(0, [], "sample", SMALL, "--prompt", "a fox", "--output", self.folder / "first.png", *few)
        for arguments in (["export", lora, "--format", "kohya", "--output", self.folder / "out/result"],
                          ["sample", SMALL, "--prompt", "a fox", "--output", self.folder / "out/result", *few]):  # fmt: skip
            with self.subTest(arguments[0]):
                (self.folder / "out").mkdir(exist_ok=True)
                result = self.checked(self.in_shell('ulimit -f 1; exec "$@"', *arguments))
                self.assertEqual(result.code, IO, str(result))
                self.assertIn("ulimit -f", result.err)
                self.assertEqual(list((self.folder / "out").iterdir()), [])


if __name__ == "__main__":
    main()
