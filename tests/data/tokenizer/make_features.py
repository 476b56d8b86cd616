#!/usr/bin/env python3
"""Writes features.json: small tokenizers that use one feature each, with the ids that the `tokenizers` library gives.

    make_features.py [features.json]          (made with tokenizers 0.23.3)

The test tests/unit/text/features_test.cpp loads each of them and compares. The file holds byte-level BPE tokenizers only.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, pre_tokenizers

WORDS = ["hello", "world", "red", "fox", "don't", "forest"]
TEXTS = [
    "hello world",
    " hello  world ",
    "red-fox, red--fox",
    "don't",
    "a\nb\r\n\n c",
    "Straße é e\u0301 ﬁ ²",
    "",
    "1234 x1y22",
    "hello<mask>world",
    "hello <mask> world",
    "x<mask>",
    "<mask><mask>",
    "<mask>\u3000\u00a0<mask> \n",
    "\u00e9<mask>_",
    "ⓐ<mask>.",
    "<é>fox<é>",
    "<e\u0301>fox",
    "<m<mask>>",
    "<ab<abc<abcd<",
    "\u180ered\u180e fox",
    "日本\u3000語",
]
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def model(**options):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(letters)}
    merges = []
    for word in WORDS + ["Ġ" + w for w in WORDS] + ["<mask", "Ġmask"]:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocab:
                vocab[word[:end]] = len(vocab)
                merges.append([word[: end - 1], word[end - 1]])
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": merges,
    } | options


def byte_level(**options):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False} | options


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def added(content, number, **options):
    return {
        "id": number,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    } | options


def tokenizer(pre_tokenizer, tokens=(), **parts):
    base = model()
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            added(c, base["vocab"].get(c, len(base["vocab"]) + i), **o) for i, (c, o) in enumerate(tokens)
        ],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": base,
    } | parts


def template(single, **ids):
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {k: {"id": k, "ids": v, "tokens": [k] * len(v)} for k, v in ids.items()},
    }


def cases():
    plain = sequence(split({"Regex": QWEN}), byte_level())
    yield "split regex", tokenizer(plain)
    for behavior in ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]:
        for invert in [False, True]:
            yield f"behavior {behavior} invert {invert}", tokenizer(
                sequence(split({"Regex": r"[-\s]"}, behavior, invert), byte_level())
            )
    yield "split string", tokenizer(sequence(split({"String": "-"}), byte_level()))
    yield "empty matches", tokenizer(sequence(split({"Regex": r"o*"}), byte_level()))
    yield "space and word escapes", tokenizer(sequence(split({"Regex": r"\s+|\w+|[^\s\w]+"}), byte_level()))
    yield "negated escapes", tokenizer(sequence(split({"Regex": r"\S+|\W"}), byte_level()))
    yield "ByteLevel alone, use_regex", tokenizer(byte_level(use_regex=True))
    yield "ByteLevel prefix space", tokenizer(byte_level(use_regex=True, add_prefix_space=True))
    yield "prefix space behind a split", tokenizer(sequence(split({"Regex": r"-"}), byte_level(add_prefix_space=True)))
    for form in ["NFC", "NFD", "NFKC", "NFKD"]:
        yield f"normalizer {form}", tokenizer(plain, normalizer={"type": form})
    yield "normalizer sequence", tokenizer(
        plain, normalizer={"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "NFC"}]}
    )
    for options in [
        dict(lstrip=True),
        dict(rstrip=True),
        dict(lstrip=True, rstrip=True),
        dict(single_word=True),
        dict(special=False),
    ]:
        yield f"added token {options}", tokenizer(plain, [("<mask>", options)])
    yield "longest added token", tokenizer(
        plain, [("<ab", {}), ("<abc", {}), ("<abcd<", {}), ("<", {"special": False})]
    )
    yield "normalized added token", tokenizer(plain, [("<é>", {"normalized": True})], normalizer={"type": "NFC"})
    yield "decomposed added token", tokenizer(plain, [("<e\u0301>", {"normalized": True})], normalizer={"type": "NFC"})
    yield "not normalized added token", tokenizer(plain, [("<e\u0301>", {})], normalizer={"type": "NFC"})
    yield "ignore_merges", tokenizer(plain, model=model(merges=[], ignore_merges=True))
    joined = model()
    joined["merges"] = ["#version: 0.2"] + [" ".join(m) for m in joined["merges"]]
    yield "merges as text", tokenizer(plain, model=joined)
    a, seq = len(model()["vocab"]), {"Sequence": {"id": "A", "type_id": 0}}
    special = lambda t: {"SpecialToken": {"id": t, "type_id": 0}}
    both = template([special("<a>"), seq, special("<b>")], **{"<a>": [a], "<b>": [a + 1, a]})
    yield "template", tokenizer(plain, [("<a>", {}), ("<b>", {})], post_processor=both)
    yield "processor sequence", tokenizer(
        plain,
        [("<a>", {}), ("<b>", {})],
        post_processor={
            "type": "Sequence",
            "processors": [
                {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
                both,
            ],
        },
    )
    for fuse in [False, True]:
        less = model(unk_token="#", fuse_unk=fuse)
        for letter in "Ãſ©":
            less["vocab"].pop(letter, None)
        yield f"unknown token, fuse {fuse}", tokenizer(plain, model=less)


def main():
    out = []
    for name, data in cases():
        tok = Tokenizer.from_str(json.dumps(data))
        vectors = []
        for text in TEXTS:
            ids = tok.encode(text, add_special_tokens=False).ids
            vector = {"text": text, "ids": ids, "with_special": tok.encode(text).ids}
            # the library takes the letters of an added token for bytes, which spoils those that are not ASCII
            if all(t["content"].isascii() for t in data["added_tokens"]):
                vector |= {
                    "decoded": tok.decode(ids, skip_special_tokens=False),
                    "skipped": tok.decode(ids, skip_special_tokens=True),
                }
            vectors.append(vector)
        # the model repeats: store only what differs from the default one
        changed = {k: v for k, v in data["model"].items() if v != model()[k]}
        out.append(
            {
                "name": name,
                "tokenizer": {k: v for k, v in data.items() if k != "model"},
                "model": changed,
                "cases": vectors,
            }
        )
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in out)
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("features.json")
    path.write_text(
        f'{{"model": {json.dumps(model(), ensure_ascii=False)},\n"tokenizers": [\n{lines}\n]}}\n', encoding="utf-8"
    )
    print(len(out), "tokenizers,", sum(len(c["cases"]) for c in out), "vectors ->", path)


if __name__ == "__main__":
    main()
