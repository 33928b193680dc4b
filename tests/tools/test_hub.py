"""The hub for a class: how many servers fit, whose account is whose, and who knows the first password.

That it runs is asked of a running one: tools/hub/ask.py.
"""

import os

import pytest
from tornado.web import HTTPError

from tools.hub import room

accounts = pytest.importorskip("tools.hub.accounts", reason="no accounts of Unix here", exc_type=ImportError)


def test_more_ranks_for_each_are_fewer_readers_and_a_container_that_carries_nobody_is_told_what_it_needs():
    for memory_gb, ranks, servers in ((8, 4, 6), (8, 8, 4), (2, 4, 1), (64, 4, 52)):
        assert room.servers_that_fit(memory_gb * 10**9, ranks) == servers
    with pytest.raises(ValueError, match="1.0 GB do not carry one server with 4 ranks, which needs 1.7 GB"):
        room.servers_that_fit(10**9, 4)
    with pytest.raises(ValueError, match="0 ranks: expected 1 or more"):
        room.servers_that_fit(8 * 10**9, 0)


def test_without_a_limit_the_containers_memory_is_the_machines(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(room, "CGROUP", limit)
    unlimited = room.container_bytes()
    limit.write_text("max\n")
    assert room.container_bytes() == unlimited > 0
    limit.write_text("2000000000\n")
    assert room.container_bytes() == 2_000_000_000


def test_the_first_password_is_made_once_and_only_its_owner_reads_it(tmp_path):
    password = accounts.password_of("teacher", tmp_path)
    assert len(password) >= 16 and accounts.password_of("teacher", tmp_path) == password
    assert (tmp_path / "teacher_password").stat().st_mode & 0o077 == 0
    assert accounts.password_of("other", tmp_path) != password


def test_a_user_may_have_neither_the_name_nor_the_home_of_an_account_of_the_systems(tmp_path, monkeypatch):
    with pytest.raises(HTTPError, match="root is an account of the system's"):
        accounts.give_account("root", tmp_path)
    monkeypatch.setattr(accounts, "FIRST_UID", os.getuid() + 1)
    (tmp_path / "no-such-user").mkdir()
    with pytest.raises(HTTPError, match="or its home is"):
        accounts.give_account("no-such-user", tmp_path)
