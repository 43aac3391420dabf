from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from autorecall.data import from_folder, load
from autorecall.data.folders import read_image
from autorecall.data.shares import split_counts
from autorecall.errors import DataError

from .conftest import Refused

RNG = np.random.default_rng(3)


def photo(path: Path, width: int = 8, height: int = 8, mode: str = "RGB") -> np.ndarray:
    """Write an image of noise and give its pixels."""
    shape = (height, width) if mode == "L" else (height, width, len(mode))
    pixels = RNG.integers(0, 256, shape, dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two classes of three images."""
    for name in ("cat", "dog"):
        for number in range(3):
            photo(tmp_path / "two" / name / f"{number}.png")
    return tmp_path / "two"


def test_classes_and_images_are_sorted_and_split_in_order(tmp_path: Path) -> None:
    written = {}
    for name in ("zebra", "ant", "Bee"):
        for number in RNG.permutation(50):
            written[name, int(number)] = photo(tmp_path / name / f"{number:02}.png")
    data = load("folder", tmp_path, image_size=8)
    assert (data.name, data.input_shape, data.classes) == ("folder", (3, 8, 8), ("Bee", "ant", "zebra"))
    for split, numbers in ((data.train, range(38)), (data.val, range(38, 40)), (data.test, range(40, 50))):
        expected = [written[name, number].transpose(2, 0, 1) for name in data.classes for number in numbers]
        np.testing.assert_array_equal(split.inputs, expected)
        np.testing.assert_array_equal(split.labels, np.repeat([0, 1, 2], len(numbers)))
        assert split.inputs.flags.c_contiguous
        assert split.inputs.flags.writeable
        assert split.labels.dtype == np.int64


def test_split_counts_leave_something_to_train_and_to_test() -> None:
    for count in range(2, 3000):
        train, val, test = split_counts(count)
        assert train + val + test == count
        assert train >= 1
        assert test >= 1
        assert val >= 0
        assert abs(val - 0.04 * count) <= 0.5
        assert abs(test - 0.20 * count) <= 0.6
    assert split_counts(600) == (456, 24, 120)
    assert split_counts(100) == (76, 4, 20)


def test_a_folder_may_be_given_as_text(two: Path) -> None:
    assert (
        from_folder(str(two)).fingerprint() == load("folder", str(two)).fingerprint() == from_folder(two).fingerprint()
    )


def test_default_size_is_32(two: Path) -> None:
    assert load("folder", two).input_shape == (3, 32, 32)
    assert from_folder(two).input_shape == (3, 32, 32)


@pytest.mark.parametrize(("width", "height"), [(60, 20), (20, 60), (28, 20), (20, 20), (5, 15)])
def test_resizing_is_shorter_side_then_centre(width: int, height: int, two: Path) -> None:
    """Against the plain way in two steps; 10 divides or is divided by every side, so both ways must agree."""
    photo(two / "cat" / "0.png", width, height)
    data = load("folder", two, image_size=10)
    with Image.open(two / "cat" / "0.png") as image:
        wide, high = 10 * width // min(width, height), 10 * height // min(width, height)
        whole = np.asarray(image.resize((wide, high), Image.Resampling.BILINEAR))
    left, top = (wide - 10) // 2, (high - 10) // 2
    centre = whole[top : top + 10, left : left + 10].transpose(2, 0, 1)
    np.testing.assert_allclose(data.train.inputs[0].astype(int), centre.astype(int), atol=1)


def test_resizing_averages(tmp_path: Path) -> None:
    """A board of black and white pixels becomes grey, not a pick of its pixels."""
    board = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)
    for path in (tmp_path / f"{name}/{number}.png" for name in "ab" for number in range(2)):
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(board).save(path)
    inputs = load("folder", tmp_path, image_size=8).train.inputs
    assert abs(inputs.astype(float) - 127.5).max() < 10


@pytest.mark.parametrize(("width", "height"), [(60_000, 1), (1, 60_000)])
def test_a_long_strip_needs_no_more_memory_than_itself(width: int, height: int, two: Path) -> None:
    """Its shorter side brought to 1024 would be 60 million pixels wide, more than Pillow or memory takes."""
    Image.new("RGB", (width, height), (1, 2, 3)).save(two / "cat" / "0.png")
    data = load("folder", two, image_size=1024)
    np.testing.assert_array_equal(data.train.inputs[0, :, 0, 0], [1, 2, 3])


def test_grey_images_alone_have_one_channel_and_among_colours_three(two: Path, tmp_path: Path) -> None:
    grey = tmp_path / "grey"
    pixels = [photo(grey / name / f"{number}.png", mode="L") for name in "ab" for number in range(2)]
    (grey / "b" / "1.png").unlink()
    Image.fromarray(pixels[3] > 127).save(grey / "b" / "1.png")  # black and white is grey too
    data = load("folder", grey, image_size=8)
    assert data.input_shape == (1, 8, 8)
    np.testing.assert_array_equal(data.train.inputs[0, 0], pixels[0])
    np.testing.assert_array_equal(data.test.inputs[1, 0], np.where(pixels[3] > 127, 255, 0))
    lone = photo(two / "cat" / "0.png", mode="L")
    mixed = load("folder", two, image_size=8)
    assert mixed.input_shape == (3, 8, 8)
    np.testing.assert_array_equal(mixed.train.inputs[0], np.broadcast_to(lone, (3, 8, 8)))


@pytest.mark.parametrize("mode", ["P", "RGBA", "CMYK"])
def test_every_other_mode_becomes_rgb(mode: str, tmp_path: Path) -> None:
    for name in "ab":
        for number in range(2):
            (tmp_path / name).mkdir(exist_ok=True)
            image = Image.new("RGB", (8, 8), (200, 100, 50)).convert(mode)
            image.save(tmp_path / name / f"{number}.tif")
    data = load("folder", tmp_path, image_size=8)
    assert data.input_shape == (3, 8, 8)
    # A palette of few colours is coarse.
    assert abs(data.train.inputs[0, :, 0, 0].astype(int) - (200, 100, 50)).max() <= 26


@pytest.mark.parametrize("mode", ["LA", "P"])
def test_greys_may_be_stored_with_transparency_or_a_palette(mode: str, tmp_path: Path) -> None:
    for name in "ab":
        for number in range(2):
            (tmp_path / name).mkdir(exist_ok=True)
            Image.new("L", (8, 8), 124).convert(mode).save(tmp_path / name / f"{number}.png")
    data = load("folder", tmp_path, image_size=8)
    assert data.input_shape == (1, 8, 8)
    assert (data.train.inputs == 124).all()


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif"])
def test_photos_are_read_upright(suffix: str, two: Path) -> None:
    """A camera that is held sideways notes so."""
    image = Image.new("L", (8, 8), 0)
    image.paste(255, (0, 0, 8, 4))  # bright above
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° to the right
    path = two / f"sideways.{suffix}"
    image.save(path, exif=exif)
    pixels = read_image(path, 8, "L")[0]
    assert pixels[:, 4:].min() > 200
    assert pixels[:, :4].max() < 55


def test_what_is_transparent_is_white(two: Path) -> None:
    image = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (0, 0, 8, 4))
    image.save(two / "ghost.png")
    pixels = read_image(two / "ghost.png", 8, "RGB")
    assert pixels[:, 0, 0].tolist() == [0, 0, 255]
    assert pixels[:, 7, 0].tolist() == [255, 255, 255]


def test_a_transparent_palette_does_not_warn(tmp_path: Path) -> None:
    for name in "ab":
        for number in range(2):
            (tmp_path / name).mkdir(exist_ok=True)
            image = Image.fromarray(RNG.integers(0, 256, (8, 8), dtype=np.uint8)).convert("P")
            image.save(tmp_path / name / f"{number}.png", transparency=bytes(range(256)))
    assert load("folder", tmp_path, image_size=8).input_shape == (1, 8, 8)


def test_deep_greys_are_scaled_and_not_cut(tmp_path: Path, refused: Refused) -> None:
    deep = np.array([[0, 257], [32_896, 65_535]], dtype=np.uint16)
    for name in "ab":
        for number in range(2):
            (tmp_path / name).mkdir(exist_ok=True)
            Image.fromarray(deep).save(tmp_path / name / f"{number}.png")
    data = load("folder", tmp_path, image_size=2)
    np.testing.assert_array_equal(data.train.inputs[0], [[[0, 1], [128, 255]]])
    Image.fromarray(np.full((2, 2), 70_000, dtype=np.int32)).save(tmp_path / "a" / "0.tif")
    with refused(str(tmp_path / "a" / "0.tif"), "save it with 8 or 16 bits per pixel"):
        load("folder", tmp_path, image_size=2)
    Image.fromarray(np.full((2, 2), 0.5, dtype=np.float32)).save(tmp_path / "a" / "0.tif")
    with refused(str(tmp_path / "a" / "0.tif"), "save it with 8 or 16 bits per pixel"):
        load("folder", tmp_path, image_size=2)


def test_what_is_passed_over(two: Path) -> None:
    before = load("folder", two, image_size=8).fingerprint()
    (two / "notes.txt").write_text("not a class")
    photo(two / ".thumbnails" / "0.png")
    photo(two / "loose.png")
    (two / "cat" / ".0.png").write_bytes(b"hidden")
    (two / "cat" / "Thumbs.db").write_bytes(b"not an image")
    (two / "cat" / "labels.csv").write_text("not an image")
    (two / "cat" / "paper.pdf").write_bytes(b"%PDF-")
    (two / "cat" / "picture.eps").write_bytes(b"%!PS-Adobe")
    photo(two / "cat" / "deeper" / "0.png")
    photo(two / "cat" / "folder.png" / "0.png")
    assert load("folder", two, image_size=8).fingerprint() == before


def test_suffixes_in_capitals_count(two: Path) -> None:
    photo(two / "cat" / "3.PNG")
    data = load("folder", two, image_size=8)
    assert len(data.train) + len(data.val) + len(data.test) == 7


def test_links_to_files_and_folders_are_followed(two: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    (linked / "cat").mkdir(parents=True)
    for number in range(3):
        (linked / "cat" / f"{number}.png").symlink_to(two / "cat" / f"{number}.png")
    (linked / "dog").symlink_to(two / "dog")
    assert load("folder", linked, image_size=8).fingerprint() == load("folder", two, image_size=8).fingerprint()


def png(width: int, height: int) -> bytes:
    """A PNG that declares this size and holds no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(50_000_001, 1), (8_000, 8_000), (10_000, 10_000), (60_000, 60_000)])
def test_image_bombs_are_refused_before_decoding(width: int, height: int, two: Path, refused: Refused) -> None:
    """Just above the limit, then beyond where Pillow warns (89 million) and where it raises (179 million)."""
    (two / "dog" / "1.png").write_bytes(png(width, height))
    with refused(str(two / "dog" / "1.png"), "has more than 50,000,000 pixels"):
        load("folder", two)


def test_a_bomb_within_an_icon_is_refused(two: Path, refused: Refused) -> None:
    """An ICO declares at most 256 x 256, but the PNG in it may declare anything."""
    inside = png(10_000, 10_000)
    entry = struct.pack("<BBBBHHII", 0, 0, 0, 0, 1, 32, len(inside), 22)
    (two / "dog" / "1.ico").write_bytes(struct.pack("<HHH", 0, 1, 1) + entry + inside)
    with refused(str(two / "dog" / "1.ico"), "has more than 50,000,000 pixels"):
        load("folder", two)


def test_just_below_the_limit_is_decoded(two: Path, refused: Refused) -> None:
    (two / "dog" / "1.png").write_bytes(png(7_000, 7_000))
    with refused(str(two / "dog" / "1.png"), "cannot be read as an image"):  # it is decoded, and has no pixels
        load("folder", two)


def broken(kind: str, whole: bytes) -> bytes:
    match kind:
        case "empty":
            return b""
        case "text":
            return b"this is no image"
        case "half":
            return whole[: len(whole) // 2]
        case "header":
            return whole[:20]
        case _:
            flipped = bytearray(whole)
            flipped[len(whole) // 2] ^= 0xFF
            return bytes(flipped)


@pytest.mark.parametrize("kind", ["empty", "text", "half", "header", "flipped"])
def test_damaged_images_are_named(kind: str, two: Path, refused: Refused) -> None:
    path = two / "dog" / "2.png"
    path.write_bytes(broken(kind, path.read_bytes()))
    with refused(str(path), "cannot be read as an image; replace or remove it"):
        load("folder", two)


def test_postscript_is_not_run(two: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    """Pillow would hand it to another program, whatever its suffix."""
    path, run = two / "dog" / "2.png", []
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n")
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_: run.append(True))
    with refused(str(path), "cannot be read as an image"):
        load("folder", two)
    assert run == []


def test_random_damage_never_raises_anything_else(two: Path, tmp_path: Path) -> None:
    """Bytes changed at random in many formats: read, or refused by a DataError, and no warning."""
    path, source = two / "dog" / "2.png", Image.open(two / "cat" / "0.png")
    outcomes = set()
    for format in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "ICO", "TGA", "PCX", "SGI", "DDS", "JPEG2000"):
        source.save(tmp_path / "whole", format)
        whole = (tmp_path / "whole").read_bytes()
        for _ in range(30):
            damaged = bytearray(whole)
            for position in RNG.integers(0, min(len(whole), 200), RNG.integers(1, 6)):
                damaged[position] = RNG.integers(0, 256)
            path.write_bytes(bytes(damaged))
            try:
                load("folder", two, image_size=4)
                outcomes.add("read")
            except DataError:
                outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_a_broken_link_and_a_pipe_are_named(two: Path, refused: Refused) -> None:
    link = two / "cat" / "9.png"
    link.symlink_to(two / "gone.png")
    with refused(str(link), "is a broken link or not a regular file"):
        load("folder", two)
    link.unlink()
    os.mkfifo(link)
    with refused(str(link), "is a broken link or not a regular file"):
        load("folder", two)


def test_too_few_images_or_classes(two: Path, refused: Refused) -> None:
    for number in range(2):
        (two / "cat" / f"{number}.png").unlink()
    with refused(str(two / "cat"), "holds 1 images; put at least two there"):
        load("folder", two)
    for path in [*(two / "cat").iterdir()]:
        path.unlink()
    with refused(str(two / "cat"), "holds 0 images"):
        load("folder", two)
    (two / "cat").rmdir()
    with refused(str(two), "holds 1 class folders"):
        load("folder", two)


def test_class_names_are_kept_but_for_control_characters(tmp_path: Path) -> None:
    odd = ["[red]x", "a b; rm -rf", "ünï 猫", "tab\there", "esc\x1b[2J", "line\nbreak", "byte\udcff", "<b>x&amp;"]
    for name in odd:
        for number in range(2):
            photo(tmp_path / "odd" / name / f"{number}.png")
    shown = [
        "[red]x",
        "a b; rm -rf",
        "ünï 猫",
        "tab\ufffdhere",
        "esc\ufffd[2J",
        "line\ufffdbreak",
        "byte\ufffd",
        "<b>x&amp;",
    ]
    data = load("folder", tmp_path / "odd")
    assert data.classes == tuple(shown[odd.index(name)] for name in sorted(odd))
    "".join(data.classes).encode()
    assert len(data.fingerprint()) == 64


@pytest.mark.parametrize("names", [("caf\udce9", "caf\udce8"), ("caf\u00e9", "cafe\u0301")])
def test_two_classes_that_would_have_one_name_are_refused(
    tmp_path: Path, refused: Refused, names: tuple[str, str]
) -> None:
    for name in names:
        for number in range(2):
            photo(tmp_path / "odd" / name / f"{number}.png")
    with refused("two class folders are called caf", "as far as it can be read; rename one of them"):
        load("folder", tmp_path / "odd")


def test_control_characters_stay_out_of_sentences(two: Path, refused: Refused) -> None:
    (two / "line\nbreak\x1b turned\u202ename\u2028\x9b").mkdir()
    with refused("line\ufffdbreak\ufffd turned\ufffdname\ufffd\ufffd holds 0 images"):
        load("folder", two)


def test_a_class_name_that_is_written_the_other_way_round_is_the_same_data_as_ever(tmp_path: Path) -> None:
    """A fingerprint has the names in it, and finished runs have the fingerprint."""
    for name in ("cat", "dog\u202e\u200d"):
        for number in range(2):
            photo(tmp_path / "odd" / name / f"{number}.png")
    assert load("folder", tmp_path / "odd").classes == ("cat", "dog\u202e\u200d")


@pytest.mark.parametrize("size", [0, -1, 1025, 10**9, 10**400, 10**5000, 32.5, "32"], ids=range(8))
def test_image_size_must_make_sense(size: Any, two: Path, refused: Refused) -> None:
    named = "a int too large" if size == 10**5000 else f"{size!r}"[:80]
    with refused(f"image_size is {named}", "from 1 to 1024"):
        load("folder", two, image_size=size)


@pytest.mark.parametrize("name", ["mini-imagenet", "miniimagenet"])
def test_miniimagenet_is_84_in_rgb(name: str, tmp_path: Path) -> None:
    for number in range(25):
        photo(tmp_path / name / "n1" / f"{number:02}.jpg", 100, 90, mode="L")
        photo(tmp_path / name / "n0" / f"{number:02}.jpg", 84, 84, mode="L")
    data = load("miniimagenet", tmp_path)
    assert (data.name, data.input_shape, data.classes) == ("miniimagenet", (3, 84, 84), ("n0", "n1"))
    assert (len(data.train), len(data.val), len(data.test)) == (2 * 19, 2 * 1, 2 * 5)
    with Image.open(tmp_path / name / "n0" / "24.jpg") as last:
        np.testing.assert_array_equal(data.test.inputs[4, 0], np.asarray(last))


def test_miniimagenet_says_what_to_put_where(tmp_path: Path, cache: Path, refused: Refused) -> None:
    where = f"put one sub-folder of images per class into {tmp_path / 'mini-imagenet'}"
    with refused(f"miniimagenet is not in {tmp_path} or {cache}", "licence", where):
        load("miniimagenet", tmp_path)


def test_miniimagenet_of_the_real_files(real: Path) -> None:
    data = load("miniimagenet", real)
    counts = [len(list(folder.iterdir())) for folder in sorted((real / "mini-imagenet").iterdir())]
    expected = np.array([split_counts(count) for count in counts])
    for split, of_class in zip((data.train, data.val, data.test), expected.T, strict=True):
        np.testing.assert_array_equal(np.bincount(split.labels), of_class)
    first = sorted((real / "mini-imagenet" / data.classes[3]).iterdir())[0]
    with Image.open(first) as image:  # already 84 x 84, so nothing may be resampled
        pixels = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    np.testing.assert_array_equal(data.train.inputs[expected[:3, 0].sum()], pixels)
