"""Chains in a bucket: the history of each writer in a folder of its own, each number one object."""

from __future__ import annotations

import json

import pytest
from small_runs import SPEC, run

import lakepond as lp
from lakepond.cloud.chains import Skip, chain_names, chain_store, parse_slot, read_boundary, read_slot
from lakepond.cloud.layout import commit_name
from lakepond.cloud.store import Store
from lakepond.lake.format.commits import Commit

CHAIN = "collector-3.6553f100abcd"


@pytest.mark.parametrize("kind", ["file", "memory", "moto"])
def test_the_chains_of_a_place_are_listed_by_their_folders(request, kind, name, tmp_path):
    if kind == "moto":
        cloud = request.getfixturevalue(kind).cloud(name)
    else:
        cloud = lp.Cloud(f"file://{tmp_path}/cloud" if kind == "file" else f"memory://{name}/run")
    store = Store(cloud)
    assert chain_names(store) == []
    for chain in (CHAIN, "b.6553f100abce"):
        chain_store(store, chain).replace(commit_name(0), b"x")
    store.replace("writers/notes.txt", b"not a chain")
    store.replace("writers/no-incarnation/commits/0000000000.json", b"not a chain")
    assert chain_names(store) == ["b.6553f100abce", CHAIN]
    store.replace(commit_name(4), b"x")
    assert chain_names(store) == ["", "b.6553f100abce", CHAIN]
    assert store.read(f"writers/{CHAIN}/{commit_name(0)}") == b"x"


def test_places_on_one_server_share_what_is_known_of_it(name):
    store = Store(lp.Cloud(f"memory://{name}/run", max_rate=1e6))
    below = chain_store(store, CHAIN)
    assert str(below.cloud) == f"memory://{name}/run/writers/{CHAIN}"
    below.server.conditions = True
    assert store.server.conditions is True
    assert below.bucket is store.bucket
    assert chain_store(store, "") is store


def test_a_slot_is_a_commit_a_skip_or_nothing(name, tmp_path):
    cloud = lp.Cloud(f"memory://{name}")
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=100, cloud=cloud) as replay:
        run(replay, commits=1)
    store = Store(cloud)
    found = read_slot(store, 0)
    assert isinstance(found, Commit)
    assert found.recorded == 40
    assert read_slot(store, 1) is None
    store.replace(commit_name(1), Skip(1, 5).to_json())
    assert read_slot(store, 1) == Skip(1, 5)
    store.replace(commit_name(2), store.read(commit_name(0)))
    with pytest.raises(lp.LakeCorrupt, match="says that it is number 0"):
        read_slot(store, 2)
    for damaged in (Skip(3, 3).to_json(), Skip(3, 9).to_json().replace(b"9", b"8", 1), b"{}", b"x"):
        with pytest.raises(lp.LakeCorrupt, match="damaged"):
            parse_slot(damaged, 3)
    later = json.dumps({"format": 99, "skip_to": 7}).encode()
    with pytest.raises(lp.LakeTooNew):
        parse_slot(later, 3)


def test_a_boundary_that_cannot_be_read_is_not_taken_for_none(name):
    store = Store(lp.Cloud(f"memory://{name}"))
    assert read_boundary(store) == 0
    store.replace("boundary.json", b'{"first": 7}')
    assert read_boundary(store) == 7
    for damaged in (b"", b"[]", b'{"first": "7"}', b'{"first": -1}'):
        store.replace("boundary.json", damaged)
        with pytest.raises(lp.CloudCorrupt, match="damaged"):
            read_boundary(store)
