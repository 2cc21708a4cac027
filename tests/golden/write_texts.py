"""Writes the golden texts: what SmolLM2's official tokenizer.json makes of random ones.

`python -m tests.golden.write_texts`, from the repository root; needs the official vocabulary.
"""

import json
import random
from pathlib import Path

from tests.assets import vocabulary

PIECES = (
    *"abcdefghij ABC 0123456789 \n\t\r .,;:!?'\"()[]{}<>|_-+*/=@#$%^&~`\\",
    *(
        "Hello",
        " world",
        " the",
        "ing",
        "'s",
        "don't",
        "  ",
        "    ",
        "\n\n",
        "\r\n",
        "12345",
        "3.14",
    ),
    *(
        "é",
        "ß",
        "ø",
        "e\u0301",
        "Ω",
        "Привет",
        "שלום",
        "مرحبا",
        "नमस्ते",
        "日本語",
        "漢",
        "한국어",
        "ไทย",
    ),
    *(
        "😀",
        "👩‍👩‍👧‍👦",
        "🇨🇭",
        "🏳️‍🌈",
        "\u200b",
        "\u00a0",
        "\u3000",
        "…",
        "—",
        "½",
        "²",
        "٣",
        "५",
        "\x00",
        "\x7f",
    ),
    *(
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<repo_name>",
        "<|im_",
        "_end|>",
        "<empty_output>",
    ),
    *("def f(x):\n    return x", "http://a.b/c?d=1", "ﬁ", "\ufeff", "\U0001d518", "Ġ", "Ċ"),
)


def random_texts(count: int, seed: int) -> list[str]:
    """Texts of up to 24 random pieces and code points."""
    draw = random.Random(seed)

    def piece() -> str:
        if draw.random() < 0.9:
            return draw.choice(PIECES)
        code = draw.randrange(0x20000)
        return "?" if 0xD800 <= code < 0xE000 else chr(code)

    return ["".join(piece() for _ in range(draw.randrange(25))) for _ in range(count)]


if __name__ == "__main__":
    tokenizer = vocabulary("smollm2")
    lines = [
        json.dumps({"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids})
        for text in random_texts(400, seed=0)
    ]
    path = Path(__file__).parent / "smollm2_texts.json"
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
