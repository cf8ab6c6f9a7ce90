"""JSON and hash in C, run alone: here, and under an emulator for aarch64, which has no SSE2."""

from __future__ import annotations

import base64
import importlib.util
import random
import shutil
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import xxhash

from tests.support.jars import ROOT
from tests.support.lane_cases import blob

MAIN = """
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include "lane.h"

int main(void) {
  uint32_t len;
  while (fread(&len, 4, 1, stdin) == 1) {
    char *data = malloc(len + 1), *text = malloc(text_room(data, 0) + text_room("", 0) + 6 * (size_t)len);
    if (len && fread(data, len, 1, stdin) != 1) return 1;
    char *end = text_value(text, data, len);
    if ((size_t)(end - text) > text_room(data, len)) return 2;
    printf("%016" PRIx64 " %.*s\\n", xxh3_64(data, len), (int)(end - text), text);
    free(data);
    free(text);
  }
}
"""
ZIG = f"{sys.executable} -m ziglang cc -target aarch64-linux-musl -static"


@pytest.mark.parametrize(("compiler", "emulator"), [("cc", ""), (ZIG, "qemu-aarch64-static")], ids=["here", "aarch64"])
def test_texts_and_hashes_are_those_of_python(compiler: str, emulator: str, tmp_path: Path) -> None:
    """Of 20,000 strange texts, and of long ones."""
    needed = [emulator] if emulator else [compiler]
    if any(shutil.which(one) is None for one in needed) or (emulator and importlib.util.find_spec("ziglang") is None):
        pytest.skip(f"{needed} or ziglang is missing")
    source, program = tmp_path / "main.c", tmp_path / "main"
    source.write_text(MAIN)
    lane = ROOT / "fastlane" / "src"
    parts = [str(lane / name) for name in ("text.c", "xxh3.c", "memory.c")]
    options = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{lane}", "-o", str(program), str(source), *parts]
    subprocess.run([*compiler.split(), *options], check=True)
    chance = random.Random(7)
    texts = [blob(chance) or b"" for _ in range(20_000)]
    texts += [blob(chance, size) or b"" for size in range(100, 4_000, 100)]
    texts += [make * 10_000 for make in (b"x", b'"', b"\x01", b"\xff", "é".encode())]
    sent = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    done = subprocess.run([*emulator.split(), str(program)], input=sent, capture_output=True, check=True)
    assert done.stdout.splitlines() == [told(text) for text in texts]


def told(text: bytes) -> bytes:
    """What the program should say."""
    try:
        row = orjson.dumps(text.decode())
    except UnicodeDecodeError:
        row = orjson.dumps({"base64": base64.b64encode(text).decode()})
    return b"%016x " % xxhash.xxh3_64_intdigest(text) + row
