"""A disk that is full for a while, or for good: training goes on, the log stays readable, the last save gets through.

Each run writes into a file system of its own, a small tmpfs that is mounted in a mount namespace.
"""

import json
import pathlib
import subprocess
import time
import unittest

from program import PROGRAM, RunCase, environment, log_lines, main

IO_ERROR, BAD_RECIPE = 74, 78
MOUNT = 'mount -t tmpfs -o size="$1" tmpfs "$2" && echo ready && exec sleep 300'


class FullDisk(RunCase):
    def begin(self, size="6m", action="run", **more):
        """Starts a run, or another command, in disk/run; returns the process and the disk as seen from here."""
        disk = self.folder / "disk"
        disk.mkdir()
        command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MOUNT, "sh", size, str(disk)]
        holder = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(self.stop, holder)
        if holder.stdout.readline() != "ready\n":
            self.skipTest(f"no tmpfs can be mounted here: {holder.stderr.read().strip()}")
        enter = ["nsenter", "--preserve-credentials", "--user", "--mount", "--target", str(holder.pid)]
        arguments = self.arguments(disk / "run", metrics__tensorboard="true", **more)
        process = subprocess.Popen([*enter, PROGRAM, action, *map(str, arguments[1:])], env=environment(), text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        self.addCleanup(self.stop, process)
        return process, pathlib.Path(f"/proc/{holder.pid}/root{disk}")

    def fill(self, inside, but=0):
        with open(inside / "filler", "wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError:
                pass
            filler.truncate(max(0, filler.tell() - but))

    def wait_for(self, process, condition, what):
        deadline = time.monotonic() + 60
        while not condition():
            if process.poll() is not None:
                self.fail(f"ended before {what}: {process.communicate()}")
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.01)

    def test_training_outlives_a_full_disk(self):
        # Room for all 20 exports, however few saves the full disk makes fail.
        process, inside = self.begin("8m", run__steps=200, checkpoint__every=10, train__batch_size=1,
                                     train__micro_batch_size=1)  # fmt: skip
        log = inside / "run/log.jsonl"
        self.wait_for_steps(process, inside / "run", 3)
        self.fill(inside)
        size = log.stat().st_size
        checkpoints = set((inside / "run/ckpt").iterdir())
        # Lines still go to the log's last page; then none does.
        self.wait_for(process, lambda: log.stat().st_size > size, "the next line")
        time.sleep(1.5)
        self.assertIsNone(process.poll(), "a full disk ended the run")
        for line in log.read_text().splitlines():
            json.loads(line)
        self.assertTrue(checkpoints <= set((inside / "run/ckpt").iterdir()), "a checkpoint is lost")
        (inside / "filler").unlink()
        out, err = process.communicate()
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("is not in the log, training goes on", err)
        self.assertIn("is not completely saved, training goes on", err)
        self.assertEqual(err.count("is not in the log"), 1, "told once, not at each step")
        steps = [line["step"] for line in log_lines(inside / "run")]
        self.assertEqual(steps, sorted(set(steps)))
        self.assertLess(len(steps), 200)
        self.assertEqual(steps[-1], 200)
        self.assertTrue((inside / "run/ckpt/step-0000000200/MANIFEST.json").exists())

    def test_the_last_save_uses_the_reserve(self):
        process, inside = self.begin(run__steps=30, checkpoint__reserve="true", checkpoint__final_save_wait=60)
        self.wait_for_steps(process, inside / "run", 2)
        self.assertTrue((inside / "run/reserve.bin").exists())
        self.fill(inside)
        out, err = process.communicate()
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("the room that was kept for this save is used", err)

    def test_the_last_save_goes_to_the_fallback_and_the_run_goes_on_from_there(self):
        spare, run = self.folder / "spare", self.folder / "run"
        process, inside = self.begin(run__steps=300, checkpoint__fallback=spare, checkpoint__final_save_wait=60)
        self.wait_for_steps(process, inside / "run", 2)
        self.fill(inside)
        process.terminate()
        out, err = process.communicate()
        self.assertEqual(process.returncode, 75, err)
        saved = list(spare.glob("run-*/ckpt/step-*"))
        self.assertEqual(len(saved), 1, err)
        self.assertIn(f"saved {saved[0]}", err)
        run.mkdir()
        (run / "run.json").write_text(json.dumps({"run_id": saved[0].parents[1].name.removeprefix("run-")}))
        step = int(saved[0].name.removeprefix("step-"))
        self.train(run, texts=f"going on after step {step}", run__steps=step + 1, checkpoint__fallback=spare)

    def test_a_fallback_that_is_no_use_does_not_end_the_wait_for_room(self):
        spare = self.folder / "spare"
        spare.write_text("a file, not a folder")
        process, inside = self.begin(run__steps=300, checkpoint__fallback=spare, checkpoint__final_save_wait=60)
        self.wait_for_steps(process, inside / "run", 2)
        self.fill(inside)
        process.terminate()
        time.sleep(3)
        (inside / "filler").unlink()
        out, err = process.communicate()
        self.assertEqual(process.returncode, 75, err)
        self.assertIn("waiting for room, at most 60 s", err)

    def test_check_foretells_a_full_disk(self):
        for size, code in (("1500k", IO_ERROR), ("20m", 0)):
            process, _ = self.begin(size, "check", run__steps=40, checkpoint__every=10)
            out, err = process.communicate()
            self.assertEqual(process.returncode, code, out + err)
            (self.folder / "disk").rmdir()
            if code == IO_ERROR:
                self.assertIn("ERROR  disk", out)
                self.assertIn("the checkpoints and results that are still to be written take", out)

    def test_check_looks_at_the_fallback(self):
        """It lowers what the run's own disk must take, but only where it can take that."""
        spare, file = self.folder / "spare", self.folder / "file"
        file.write_text("")
        inside = self.folder / "disk" / "spare"  # on the disk that is too small
        for fallback, code, text in ((spare, 0, "ready to run"), (inside, IO_ERROR, "still to be written take"),
                                     (file, IO_ERROR, f"checkpoint.fallback {file}: {file} is a file, not a folder"),
                                     (file / "spare", IO_ERROR, f"{file} is a file, not a folder")):
            process, _ = self.begin("1500k", "check", run__steps=40, checkpoint__every=10, checkpoint__fallback=fallback)
            out, err = process.communicate()
            self.assertEqual(process.returncode, code, out + err)
            self.assertIn(text, out)
            (self.folder / "disk").rmdir()
        self.assertFalse(spare.exists(), "checking makes nothing")
        mount = 'mount -t tmpfs -o size=64k tmpfs "$1" && shift && exec "$@"'
        spare.mkdir()
        arguments = ["check", *map(str, self.arguments(self.folder / "run", checkpoint__fallback=spare)[1:])]
        result = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh", spare, PROGRAM,
                                 *arguments], env=environment(), text=True, capture_output=True)  # fmt: skip
        self.assertEqual(result.returncode, IO_ERROR, result.stdout + result.stderr)
        self.assertIn(f"{spare}: one checkpoint, in checkpoint.fallback, would take", result.stdout)

    def test_check_names_a_file_where_a_folder_is_wanted(self):
        file = self.folder / "file"
        file.write_text("")
        for key, arguments in (("run.output", self.arguments(file)),
                               ("cache.folder", self.arguments(self.folder / "run", cache__folder=file))):
            text = f"{key} {file}: {file} is a file, not a folder; choose another {key}"
            self.expect(IO_ERROR, [text], "check", *arguments[1:])

    def test_check_of_absurd_steps(self):
        for command in ("run", "check"):
            arguments = self.arguments(self.folder / "run", run__steps=10**9 + 1)[1:]
            self.expect(BAD_RECIPE, ["run.steps", "1 to 1000000000"], command, *arguments)
        arguments = self.arguments(self.folder / "run", run__steps=10**9, checkpoint__every=1, checkpoint__keep=0)[1:]
        self.expect(IO_ERROR, ["ERROR  disk", "are still to be written take ", " TB, "], "check", *arguments)

    def test_check_says_that_a_disk_is_read_only(self):
        mount = 'mount -t tmpfs -o ro tmpfs "$1" && shift && exec "$@"'
        arguments = ["check", *map(str, self.arguments(self.folder / "run")[1:])]
        result = subprocess.run(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh", self.folder, PROGRAM, *arguments],
            env=environment(), text=True, capture_output=True,
        )  # fmt: skip
        if not result.stdout:
            self.skipTest(f"no tmpfs can be mounted here: {result.stderr.strip()}")
        self.assertIn("cannot be written to: Read-only file system", result.stdout)
        self.assertNotIn("no permission", result.stdout)

    def test_a_result_is_written_where_its_checkpoint_has_no_room(self):
        self.train(self.folder / "other", run__steps=1)
        lora = (self.folder / "other/lora/small-1.safetensors").stat().st_size
        process, inside = self.begin(run__steps=30, checkpoint__final_save_wait=1)
        self.wait_for_steps(process, inside / "run", 2)
        self.fill(inside, lora * 2)
        out, err = process.communicate()
        self.assertEqual(process.returncode, IO_ERROR, err)
        self.assertTrue((inside / "run/lora/small-30.safetensors").exists())
        self.assertIn(f"The result of step 30 is written: {self.folder}/disk/run/lora/small-30.safetensors", err)

    def test_without_room_the_run_waits_and_gives_up(self):
        process, inside = self.begin(run__steps=30, checkpoint__final_save_wait=2)
        self.wait_for_steps(process, inside / "run", 2)
        self.fill(inside)
        out, err = process.communicate()
        self.assertEqual(process.returncode, IO_ERROR, err)
        self.assertIn("waiting for room, at most 2 s", err)


if __name__ == "__main__":
    main()
