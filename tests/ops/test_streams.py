"""`[store]`, `[[stream]]` and `[http]`: read when right, refused with key and remedy when not."""

from pathlib import Path

import pytest

from polybus.errors import ConfigError
from polybus.ops.config import Overrides, load, reloadable_difference
from polybus.ops.streams import Http, Store
from polybus.store.streams.rule import StreamRule

STORE = '[store]\nfolder = "data"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "bus.toml"
    path.write_text(text)
    return path


def test_everything_is_read(tmp_path: Path) -> None:
    config = load(
        write(
            tmp_path,
            """
            [store]
            folder = "data"
            sync = "full"
            [http]
            host = "::1"
            port = 0
            [[stream]]
            name = "a-1"
            filters = ["a/#", "+/b"]
            partitions = 3
            max_age_s = 60
            max_bytes = 1_000_000
            segment_bytes = 5000
            segment_age_s = 0
            compression = "zstd"
            [[stream]]
            name = "b"
            filters = ["#"]
            """,
        )
    )
    assert config.store == Store(tmp_path / "data", "full")
    assert config.http == Http(True, "::1", 0)
    assert config.streams == (
        StreamRule("a-1", ("a/#", "+/b"), 3, 60.0, 1_000_000, 5000, 0.0, "zstd"),
        StreamRule("b", ("#",)),
    )
    assert config.serves_http


def test_nothing_is_kept_and_nothing_listens_without_a_stream(tmp_path: Path) -> None:
    assert not load(None).serves_http
    assert load(None).data_folder is None
    one = '[[stream]]\nname = "a"\nfilters = ["a"]\n'
    assert load(write(tmp_path, STORE + one)).serves_http
    assert not load(write(tmp_path, STORE + one + "[http]\nenabled = false\n")).serves_http


def test_the_data_dir_will_do(tmp_path: Path) -> None:
    path = write(tmp_path, '[[stream]]\nname = "a"\nfilters = ["a"]\n')
    assert load(path, Overrides(data_dir=tmp_path)).data_folder == tmp_path


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('name = "a"\nfilters = ["#"]', "store.folder: is missing; streams need a folder"),
        (STORE, "stream[0].name: is missing; give text in quotes"),
        ('name = "../x"\nfilters = ["#"]', "stream[0].name: '../x' cannot be a name; use up to 64 of"),
        ('name = ""\nfilters = ["#"]', "stream[0].name: '' cannot be a name"),
        ('name = "a"\nfilters = []', "stream[0].filters: is empty; name the topics to keep"),
        ('name = "a"\nfilters = ["a/#/b"]', "stream[0].filters: # must be the last level"),
        ('name = "a"\nfilters = ["$share/g/a"]', "stream[0].filters: a stream keeps every message"),
        ('name = "a"\nfilters = "a"', "stream[0].filters: expected a list of texts in quotes"),
        ('name = "a"\nfilters = ["a"]\npartitions = 0', "stream[0].partitions: expected a whole number from 1"),
        ('name = "a"\nfilters = ["a"]\nmax_bytes = 9', "stream[0].max_bytes: is less than two segments"),
        ('name = "a"\nfilters = ["a"]\ncompression = "gzip"', "stream[0].compression: expected one of"),
        ('name = "a"\nfilters = ["a"]\nmax_age = 9', "stream[0].max_age: unknown key; did you mean max_age_s?"),
        ('name = "a"\nfilters = ["a"]\n[[stream]]\nname = "a"\nfilters = ["b"]', "there is another stream 'a'"),
    ],
)
def test_what_is_wrong_is_told_with_its_remedy(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(write(tmp_path, f"[[stream]]\n{text}" if text != STORE else STORE + "[[stream]]\n"))
    assert problem in str(refused.value)


def test_changes_need_a_restart(tmp_path: Path) -> None:
    before = load(write(tmp_path, STORE + '[[stream]]\nname = "a"\nfilters = ["a"]\n'))
    other = '[store]\nfolder = "b"\n[http]\nport = 1\n[[stream]]\nname = "a"\nfilters = ["b"]'
    after = load(write(tmp_path, other))
    assert reloadable_difference(before, after) == ["store.folder", "stream[0].filters", "http.port"]
