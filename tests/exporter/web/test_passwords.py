"""Turns and memory of password checks, with a clock and checks of the tests."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable

import bcrypt
import pytest

from rankscope.base.http import HttpRequest
from rankscope.exporter.web import access
from rankscope.exporter.web.access import Passwords

USERS = {"ann": b"hash"}
RIGHT = "right"


class Client:
    """Clients of one exporter. ``checked`` has the passwords in the order of their checks, each of which awaits ``may_check``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passwords = Passwords(USERS)
        self.checked: list[str] = []
        self.may_check = asyncio.Event()
        self.may_check.set()
        monkeypatch.setattr(asyncio, "to_thread", self._check)

    async def _check(self, _check: object, _name: bytes, password: bytes, _users: object) -> bool:
        self.checked.append(password.decode())
        await self.may_check.wait()
        await asyncio.sleep(0.001)
        return password.decode() == RIGHT

    async def log_in(self, password: str, peer: str = "192.0.2.1", leaves: asyncio.Event | None = None) -> int:
        """Return the status that a client gets; it disconnects when ``leaves`` is set."""
        basic = base64.b64encode(f"ann:{password}".encode()).decode()
        event = leaves or asyncio.Event()

        async def disconnected() -> None:
            await event.wait()

        headers = {"authorization": f"Basic {basic}"}
        refusal = await self.passwords.refusal(HttpRequest("GET", "/", "", headers, peer, tls=False, disconnected=disconnected))
        return 200 if refusal is None else refusal.status


Story = Callable[[Client], Awaitable[None]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Story], None]:
    def run(story: Story, pause_s: float = 0.0) -> None:
        monkeypatch.setattr(access, "PAUSE_S", pause_s)

        async def main() -> None:
            await asyncio.wait_for(story(Client(monkeypatch)), 60)

        asyncio.run(main())

    return run


def test_valid_password_is_checked_once_despite_guesses(play: Callable[[Story], None]) -> None:
    async def story(client: Client) -> None:
        assert await client.log_in(RIGHT) == 200
        for number in range(600):
            assert await client.log_in(f"guess {number}") == 401
        assert await client.log_in(RIGHT) == 200
        assert client.checked.count(RIGHT) == 1

    play(story)


@pytest.mark.parametrize(
    ("name", "password", "right"),
    [("ann", "a" * 72, True), ("ann", "a" * 71, False), ("ann", "a" * 73, False), ("bob", "a" * 72, False)],
)
def test_only_the_complete_password_of_a_known_user_is_accepted(name: str, password: str, right: bool) -> None:
    users = {"ann": bcrypt.hashpw(b"a" * 72, bcrypt.gensalt(4))}
    assert access._check(name.encode(), password.encode(), users) is right


def test_repeated_wrong_password_is_checked_once(play: Callable[[Story], None]) -> None:
    async def story(client: Client) -> None:
        assert [await client.log_in("old") for _ in range(5)] == [401] * 5
        assert client.checked == ["old"]

    play(story)


@pytest.mark.parametrize("guesser", ["198.51.100.7", pytest.param("2001:db8::{}", id="addresses of one IPv6 network")])
def test_login_from_another_network_waits_for_at_most_one_check(guesser: str, play: Callable[[Story], None]) -> None:
    async def story(client: Client) -> None:
        client.may_check.clear()
        guesses = [asyncio.create_task(client.log_in(f"guess {number}", guesser.format(number))) for number in range(100)]
        await asyncio.sleep(0.01)
        right = asyncio.create_task(client.log_in(RIGHT))
        await asyncio.sleep(0.01)
        client.may_check.set()
        assert await right == 200
        assert client.checked.index(RIGHT) <= 2
        assert await asyncio.gather(*guesses) == [401] * 100

    play(story)


def test_wrong_password_delays_only_that_network(play: Callable[..., None]) -> None:
    async def story(client: Client) -> None:
        assert await client.log_in("guess") == 401
        late = asyncio.create_task(client.log_in(RIGHT))
        await asyncio.sleep(0.01)
        assert await client.log_in("other", "198.51.100.7") == 401
        assert client.checked == ["guess", "other"]
        assert not late.done()
        assert await late == 200

    play(story, pause_s=0.5)


def test_endless_guesses_do_not_starve_a_valid_login(play: Callable[[Story], None]) -> None:
    async def story(client: Client) -> None:
        async def guess_on(guesser: int) -> None:
            for number in range(10**6):
                await client.log_in(f"{guesser} {number}")

        guessing = [asyncio.create_task(guess_on(guesser)) for guesser in range(8)]
        await asyncio.sleep(0.01)
        assert await asyncio.wait_for(client.log_in(RIGHT), 20) == 200
        for guess in guessing:
            guess.cancel()

    play(story)


@pytest.mark.slow
def test_waiting_clients_of_one_network_share_the_delay(play: Callable[..., None]) -> None:
    async def story(client: Client) -> None:
        assert await client.log_in("guess") == 401
        began = asyncio.get_running_loop().time()
        assert await asyncio.gather(*(client.log_in(f"guess {number}") for number in range(20))) == [401] * 20
        # one after the other they would wait for 20 times as long; the pauses are 0.5 s, 0.5 s / 19, / 18, …, / 1
        assert asyncio.get_running_loop().time() - began < 5

    play(story, pause_s=0.5)


def test_checks_of_disconnected_clients_are_dropped(play: Callable[[Story], None]) -> None:
    async def story(client: Client) -> None:
        client.may_check.clear()
        leaves = asyncio.Event()
        guesses = [asyncio.create_task(client.log_in(f"guess {number}", leaves=leaves)) for number in range(100)]
        await asyncio.sleep(0.01)
        leaves.set()
        await asyncio.gather(*guesses)
        client.may_check.set()
        assert await client.log_in(RIGHT) == 200
        assert len(client.checked) == 2
        assert client.passwords._waiting == {}

    play(story)
