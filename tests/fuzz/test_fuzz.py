"""Every decoder raises errors of ours alone, whatever bytes it gets (SPEC SEC-36); `make fuzz` searches for minutes."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltamq.mq.errors import DeltaMQError
from tests.fuzz.decoders import DECODERS
from tests.fuzz.search import CORPUS, Search, corpus_of, name_of, pool_of
from tests.fuzz.seeds import SEEDS

#: Inputs for each decoder in `make test`.
_INPUTS = 300


def test_sec_36_every_decoder_has_seeds_and_every_file_its_decoder() -> None:
    assert DECODERS.keys() == SEEDS.keys()
    assert {one.name for one in CORPUS.iterdir() if one.is_dir()} <= DECODERS.keys()


@pytest.mark.parametrize("decoder", [name for name in DECODERS if name not in ("folder", "settings")])
def test_sec_36_a_decoder_takes_some_of_its_seeds(decoder: str) -> None:
    search = Search(decoder, 0)
    assert [search.try_one(data) for data in SEEDS[decoder]] == [None] * len(SEEDS[decoder])
    assert search.taken > 0


@pytest.mark.parametrize(
    "path",
    [one for decoder in DECODERS for one in corpus_of(decoder)],
    ids=lambda path: f"{path.parent.name}-{path.name}",
)
def test_sec_36_what_was_found_once_is_not_found_again(path: Path) -> None:
    data = path.read_bytes()
    assert path.name == name_of(data)
    assert Search(path.parent.name, 0).try_one(data) is None


@pytest.mark.parametrize("decoder", DECODERS)
def test_sec_36_a_decoder_survives_changed_inputs(decoder: str) -> None:
    search = Search(decoder, 1)
    for data in islice(search.inputs(), _INPUTS):
        failure = search.try_one(data)
        assert failure is None, (data, failure)


@pytest.mark.parametrize("decoder", DECODERS)
def test_sec_36_a_decoder_survives_any_bytes(decoder: str) -> None:
    @settings(max_examples=30)
    @given(st.binary(max_size=256) | st.text(max_size=64).map(str.encode))
    def check(data: bytes) -> None:
        try:
            DECODERS[decoder](data)
        except DeltaMQError as error:
            assert error.code

    check()


def test_sec_36_the_search_is_the_same_for_the_same_seed_and_finds_what_is_wrong() -> None:
    first, again = (list(islice(Search("filter", 7).inputs(), 200)) for _ in range(2))
    assert first == again != list(islice(Search("filter", 8).inputs(), 200))
    search = Search("filter", 7)

    def broken(data: bytes) -> None:
        if b"LIKE" in data:
            raise KeyError("planted")

    search.decode = broken
    found = [search.try_one(data) for data in islice(search.inputs(), 200)]
    assert any(one is not None and isinstance(one.error, KeyError) for one in found)
    assert pool_of("filter")[: len(SEEDS["filter"])] == list(SEEDS["filter"])
