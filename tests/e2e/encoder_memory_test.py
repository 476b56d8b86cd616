"""Captions go through a text encoder of 24 billion parameters in 4 GB: a layer's weights are in memory while it runs, and
all captions go through it before the next one is read."""

import os
import re
import time
import unittest

from headers import MISTRAL, mistral, write_model
from program import SMALL, Case, settings

TAPPED, TOKENS, CAPTIONS = 30, 16, 3  # FLUX.2-dev reads the first 30 of 40 layers


def seconds_to_read(folder, count):
    """On the clock and of the processor, for so many bytes of the model's files, once; not from the page cache."""
    files, left = sorted(folder.glob("*.safetensors")), count
    buffer = memoryview(bytearray(16 << 20))
    begin, processor = time.monotonic(), time.process_time()
    for file in files:
        with open(file, "rb", buffering=0) as handle:
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while left > 0 and (got := handle.readinto(buffer)):
                left -= got
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert left <= 0, "the files hold fewer bytes than the layers"
    return time.monotonic() - begin, time.process_time() - processor


class LargeEncoder(Case):
    def test_layers_pass_through_memory_one_by_one(self):
        model = write_model(self.folder / "model")
        read = sum(
            2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            for name, shape in mistral().items()
            if (layer := re.search(r"layers\.(\d+)\.", name)) and int(layer.group(1)) < TAPPED
        )
        self.assertGreater(read, 33e9)
        pictures, _ = self.pictures("pictures", CAPTIONS)
        more = {"text_encoder.path": model / "text_encoder", "cache.folder": self.folder / "cache"}
        more |= {"data.0.folder": pictures, "text_encoder.max_tokens": TOKENS, "text_encoder.dtype": "bf16"}
        more |= {"text_encoder.layers": [10, 20, 30], "run.output": self.folder / "run"}
        once, once_busy = seconds_to_read(model / "text_encoder", read)
        begin = time.monotonic()
        process = self.start("cache", SMALL, *settings(*(f"{key}={value}" for key, value in more.items())))
        out, err = process.stdout.read(), process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0, err)
        self.assertIn(f"{CAPTIONS + 1} text embeddings", out, "the captions, and the empty one")
        peak, seconds = usage.ru_maxrss * 1024, time.monotonic() - begin
        wide = MISTRAL["hidden_size"] * MISTRAL["intermediate_size"]
        each, each_busy = seconds / (CAPTIONS + 1), (usage.ru_utime + usage.ru_stime) / (CAPTIONS + 1)
        print(f"{read / 1e9:.1f} GB of weights in {seconds:.0f} s, {read / 1e9 / seconds:.2f} GB/s; a text {each:.1f} s, "
              f"{each_busy:.1f} s of the processor; a plain read {once:.1f} s, {once_busy:.1f} s of the processor, "
              f"{read / 1e9 / once:.2f} GB/s; peak RSS {peak / 1e9:.2f} GB")
        # A file without content waits for no disk, so the processor's time is the time of a quiet machine.
        self.assertLess(each_busy, once_busy, "a text takes longer than reading the weights once")
        self.assertGreater(peak, 3 * 2 * wide, "a layer's MLP was in memory, so the layers did run")
        self.assertLess(peak, 4e9)


if __name__ == "__main__":
    unittest.main()
