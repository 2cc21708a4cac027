import pytest

from mintjax.train.byte_sizes import parse_bytes, show_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [(7, 7), ("7", 7), ("2KiB", 2048), (" 1.5 GB ", 1_500_000_000), ("3GiB", 3 * 2**30)],
)
def test_a_size_is_read(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "2gib", "0", "0.2B", "1e9", 0, -3])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match=r"expected bytes, .* KiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(640, "640 B"), (2048, "2.00 KiB"), (15 * 2**19, "7.50 MiB"), (123.4 * 2**30, "123 GiB"), (1023 * 2**30, "1023 GiB")],
)  # fmt: skip
def test_a_size_is_shown(size, text):
    assert show_bytes(size) == text
