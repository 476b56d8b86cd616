"""What the end-to-end tests share: starting the program, recipes and folders to damage, and checks of its answers.

The program is the one that TRAINER_PROGRAM names; the source tree is TRAINER_SOURCE_ROOT. Standard library only.
"""

import atexit
import ctypes
import json
import os
import pathlib
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

PROGRAM = os.environ["TRAINER_PROGRAM"]
ROOT = pathlib.Path(os.environ["TRAINER_SOURCE_ROOT"])
QUICKSTART = ROOT / "recipes" / "quickstart.toml"
MODEL = ROOT / "recipes" / "quickstart" / "model"
PICTURES = ROOT / "recipes" / "quickstart" / "pictures"
SMALL = ROOT / "tests" / "e2e" / "small.toml"
TIMEOUT = 120
WHOLE = "TRAINER_TEST_WHOLE" in os.environ  # the suite "whole": what is cut short otherwise

# What the program writes for its user must not land in the tester's own folder.
if "XDG_CONFIG_HOME" not in os.environ:
    os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="trainer-e2e-config-")
    atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)

# A shell has a program that it puts in the background ignore SIGINT, and nohup SIGHUP; ours keeps to that. The tests
# send both: a handler of this process, unlike what is ignored, is not inherited.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# What a user must never see, whatever is wrong.
TRACES = (
    "Exception raised from",
    "terminate called",
    "frame #",
    "what():",
    "Segmentation fault",
    "core dumped",
    "basic_string",
    "vector::",
    "std::",
)


def optimised():
    """Whether the program was compiled with optimisation."""
    options = json.loads((pathlib.Path(os.environ["TRAINER_BUILD"]) / "meson-info/intro-buildoptions.json").read_text())
    return {o["name"]: o["value"] for o in options}["optimization"] not in ("plain", "0", "g")


def environment(extra=None):
    # Meson adds the build folders to LD_LIBRARY_PATH; a user has none, and the program must not need it.
    changed = {"OMP_NUM_THREADS": "1", "TERM": "dumb", "LD_LIBRARY_PATH": None, **(extra or {})}
    return {key: value for key, value in {**os.environ, **changed}.items() if value is not None}


class Result:
    """Exit code and output of one call."""

    def __init__(self, arguments, code, out, err):
        self.arguments, self.code, self.out, self.err = arguments, code, out, err
        self.text = out + err

    def __str__(self):
        return (
            f"trainer {' '.join(self.arguments)}\nexit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"
        )


class Case(unittest.TestCase):
    """A test with a folder of its own."""

    maxDiff = None

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="trainer-e2e-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def start(self, *arguments, env=None, program=PROGRAM, **options):
        """The program as a process that the test talks to; killed at the end if it is still there."""
        process = subprocess.Popen(
            [program, *map(str, arguments)],
            env=environment(env),
            cwd=options.pop("cwd", self.folder),
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )
        self.addCleanup(self.stop, process)
        return process

    @staticmethod
    def stop(process):
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()

    def program(self, *arguments, env=None, program=PROGRAM):
        process = self.start(*arguments, env=env, program=program)
        out, err = process.communicate(timeout=TIMEOUT)
        return self.checked(Result(list(map(str, arguments)), process.returncode, out, err))

    def checked(self, result):
        self.assertGreaterEqual(result.code, 0, f"killed by a signal\n{result}")
        for trace in TRACES:
            self.assertNotIn(trace, result.err, f"not a message for users\n{result}")
        return result

    def expect(self, code, texts, *arguments, **options):
        """Runs the program; its exit code is `code` and its output holds every one of `texts`."""
        result = self.program(*arguments, **options)
        self.assertEqual(result.code, code, str(result))
        for text in [texts] if isinstance(texts, str) else texts:
            self.assertIn(text, result.text, str(result))
        return result

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def pictures(self, name, count=4):
        """A copy of the first pictures of the quickstart with their captions."""
        folder = self.folder / name
        folder.mkdir()
        chosen = sorted(path for path in PICTURES.iterdir() if path.suffix in (".png", ".jpg"))[:count]
        for path in chosen:
            shutil.copy(path, folder)
            shutil.copy(path.with_suffix(".txt"), folder)
        return folder, [path.name for path in chosen]

    def model(self, *parts):
        """A folder with these parts of the quickstart's model, copied so that they can be damaged."""
        folder = self.folder / "model"
        for part in parts:
            shutil.copytree(MODEL / part, folder / part)
        return folder


class RunCase(Case):
    """Runs of small.toml, all with one cache that is filled once."""

    @classmethod
    def setUpClass(cls):
        cls.shared = pathlib.Path(tempfile.mkdtemp(prefix="trainer-e2e-"))
        cls.addClassCleanup(shutil.rmtree, cls.shared, ignore_errors=True)
        cls.cache = cls.shared / "cache"
        subprocess.run(
            [PROGRAM, "cache", SMALL, *settings(cache__folder=cls.cache)],
            env=environment(),
            check=True,
            capture_output=True,
        )

    def arguments(self, run, *pairs, recipe=SMALL, **more):
        """Arguments of `trainer run` with the output folder `run`; a list, so that options can be added."""
        more.setdefault("cache__folder", self.cache)
        return ["run", recipe, *settings(*pairs, run__output=run, **more)]

    def train(self, run, *pairs, code=0, texts=(), options=(), **more):
        return self.expect(code, texts, *self.arguments(run, *pairs, **more), *options)

    def wait_for_steps(self, process, run, count):
        """Returns when log.jsonl holds `count` steps, or fails when the process ends before."""
        log = pathlib.Path(run) / "log.jsonl"
        deadline = time.monotonic() + TIMEOUT
        while not log.exists() or log.read_bytes().count(b"\n") < count:
            if process.poll() is not None:
                out, err = process.communicate()
                self.fail(f"ended before step {count} with {process.returncode}\n{out}\n{err}")
            self.assertLess(time.monotonic(), deadline, "no progress")
            time.sleep(0.005)


SKIPPED = 77  # Meson's exit code for a test that did not run


def main():
    """unittest.main that names what was skipped and why, for tools/test; a file of which nothing ran is not passed."""
    result = unittest.main(verbosity=2, exit=False).result
    for test, reason in result.skipped:
        print(f"SKIPPED {test.id()}: {reason}", flush=True)
    ran = result.testsRun - sum(isinstance(test, unittest.TestCase) for test, _ in result.skipped)
    if not result.wasSuccessful():
        raise SystemExit(1)
    raise SystemExit(SKIPPED if result.skipped and ran <= 0 else 0)


def settings(*pairs, **more):
    """--set arguments."""
    texts = [*pairs, *(f"{key.replace('__', '.')}={value}" for key, value in more.items())]
    return [argument for text in texts for argument in ("--set", text)]


def processor_time():
    """Of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read_header(path):
    """(header, data) of a safetensors file."""
    raw = pathlib.Path(path).read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write_safetensors(path, header, data):
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


class Hash128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def xxh128(data):
    """As the program writes it; from the library that it uses."""
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_128bits.restype = Hash128
    library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    found = library.XXH3_128bits(data, len(data))
    return f"{found.high:016x}{found.low:016x}"


def hash_of(*fields):
    """Of texts and numbers, as the program hashes them."""
    mark = b"\xff" * 8
    data = b"".join(mark + struct.pack("<q", one) if isinstance(one, int) else struct.pack("<q", len(one)) + one.encode()
                    for one in fields)
    return xxh128(data)


def reseal(checkpoint, name, data, **fingerprints):
    """Replaces a file of a checkpoint, and what it says of others, and makes the manifest right again, as someone who
    edits it could."""
    (checkpoint / name).write_bytes(data)
    path = checkpoint / "MANIFEST.json"
    manifest = json.loads("".join(path.read_text().splitlines(keepends=True)[:-1]))
    for record in manifest["files"]:
        if record["name"] == name:
            record.update(bytes=len(data), xxh128=xxh128(data))
    manifest["fingerprints"].update(fingerprints)
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text + f"xxh128 {xxh128(text.encode())}\n")


def log_lines(run):
    return [json.loads(line) for line in (pathlib.Path(run) / "log.jsonl").read_text().splitlines()]
