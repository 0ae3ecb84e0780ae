"""`python -m dev.soak.attack --minutes 10 --seed 1`: attacks on what a standalone server with TLS
and tokens has, beside an ordinary client.

Each attack has a phase of its own, by a process of its own, after a calm phase; before all that
each takes place once, to warm up. Owns: the run from the start of the server to the verdict.
Imports: dev's secured server, dev.soak siblings. Invariants: exit code 0 only if the ordinary
client never failed and nothing that it was promised was broken, nothing wrong got in, the server
went on and gave back what the attacks took; a latency fails nothing; traffic goes to the loopback
only; everything that was started is stopped.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dev.secured_server import INTERNAL_KEY, KEY, SecuredServer, token
from dev.server_process import READY_TIMEOUT_S
from dev.soak.attacks.raw import Access
from dev.soak.hostile_peer import RESOURCE_ATTACKS, Plan
from dev.soak.hostile_report import Phase, attack_table, json_lines, logged_errors
from dev.soak.paced import OPERATION_TIMEOUT_S, PARTITIONS, PacedTraffic, Sample
from dev.soak.probes import Probes
from dev.soak.report import percentile
from dev.soak.run_directory import parser_of, run_in_directory
from magnetar.client import Client
from magnetar.security.authorization import INTERNAL_METHOD, INTERNAL_ROLE
from magnetar.security.keys import SecretKey
from magnetar.security.tokens import make

ORDINARY, HOSTILE = "public/ordinary", "public/hostile"
ROLE, HOSTILE_ROLE = "orderly", "hostile"
TOKEN_S = 24 * 3600.0
RATE = 10.0
PAUSE_S = 0.25
PROBE_TIMEOUT_S = 60.0
OPEN_FILES = 6000
"""That the server may open: fewer than there are connections."""
ENVIRONMENT = {"MAGNETAR_TAIL_CACHE_BYTES_MAX": str(16 << 20)}
"""Recent entries are kept in memory on purpose: little, so that what attacks leave can be
distinguished from them."""
TURN_S_MAX = 150.0
"""For one attack, its end included."""
SETTLE_S = 60.0
QUIET_S = 2.0
POLL_S = 0.1
DESCRIPTORS_MORE_MAX = 16
"""Than after the round that warms up: files of the log that the ordinary client's messages fill."""
RESIDENT_MORE_MAX = 192 << 20
"""The same of memory: the allocator keeps buffers of a thousand connections, and has all that it
will keep after three or four turns only."""
SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class Held:
    """What the server's process has."""

    descriptors: int
    resident: int

    def __str__(self) -> str:
        return f"{self.descriptors} descriptors, {self.resident / (1 << 20):.0f} MiB"


def wrong_credentials() -> dict[str, tuple[str, str]]:
    """Method and token of credentials that are good for nothing."""
    now, other = time.time(), SecretKey(b"o" * 32)

    def internal(
        key: SecretKey,
        expires_s: float | None,
        audience: str = "magnetar",
        role: str = INTERNAL_ROLE,
    ) -> tuple[str, str]:
        ends = {} if expires_s is None else {"exp": int(now + expires_s)}
        return INTERNAL_METHOD, make(key, "HS256", {"sub": role, "aud": audience, **ends})

    unsigned = ".".join((*make(KEY, "HS256", {"sub": "admin"}).split(".")[:2], ""))
    return {
        "another key": ("token", token("admin", key=other)),
        "no signature": ("token", unsigned),
        "an expired token": ("token", token("admin", -60)),
        "a client with the cluster's role": ("token", token(INTERNAL_ROLE)),
        "the internal key as a client's": ("token", token("admin", key=INTERNAL_KEY)),
        "an internal token as a client's": ("token", internal(INTERNAL_KEY, 60)[1]),
        "a client's key as the internal one": internal(KEY, 60),
        "an internal token by another key": internal(other, 60),
        "an internal token that was recorded": internal(INTERNAL_KEY, -3600),
        "an internal token without an end": internal(INTERNAL_KEY, None),
        "an internal token for a day": internal(INTERNAL_KEY, 24 * 3600),
        "an internal token for others": internal(INTERNAL_KEY, 60, audience="other"),
        "an internal token of a client's role": internal(INTERNAL_KEY, 60, role="admin"),
        "an unknown method": ("basic", "admin:admin"),
    }


class AttackRun:
    """One run. `scale`: of how much the attacks take; `only`: these attacks, all if none is
    named."""

    def __init__(
        self,
        directory: Path,
        minutes: float,
        seed: str,
        *,
        plain: str = "internal",
        rate: float = RATE,
        scale: float = 1.0,
        only: Sequence[str] = (),
    ) -> None:
        self._directory, self._seed, self._plain, self._scale = directory, seed, plain, scale
        self._attacks = list(only) or list(RESOURCE_ATTACKS)
        self._phase_s = minutes * 60 / (2 * len(self._attacks))
        self._turns_path, self._plan_path = directory / "turns.jsonl", directory / "plan.json"
        program = ("dev.soak.skewed_main", str(directory))  # which notes when the event loop stops
        self.server = SecuredServer(
            directory, plain=plain, environment=ENVIRONMENT, open_files=OPEN_FILES, program=program
        )
        self._context = ssl.create_default_context(cafile=str(self.server.authority.file))
        self.traffic = PacedTraffic(self._client, ORDINARY, rate)
        self.probes = Probes(
            {
                "live": lambda: self._ask("/live"),
                "ready": lambda: self._ask("/ready"),
                "REST": lambda: self._ask(f"/admin/v2/persistent/{ORDINARY}/exclusive/stats"),
                "new client": lambda: self.traffic.call(self._come_and_go()),
            },
            PAUSE_S,
        )
        self.phases: list[Phase] = []
        self.problems: list[str] = []
        self.before = self.after = Held(0, 0)
        self.peaks: dict[str, Held] = {}

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The attacks that took place, those that warmed up included."""
        return json_lines(self._turns_path)

    def run(self) -> int:
        """The exit code."""
        self._start()
        try:
            self.traffic.start()
            self.probes.start()
            for attack in self._attacks:
                self._attack(attack, 0.0)
            self.before = self._held_at_least()
            for attack in self._attacks:
                self._calm()
                self.phases.append(self._attack(attack, self._phase_s))
                held = self.peaks.get(attack, self.before)
                print(
                    f"{attack:<30} {self.phases[-1].ended - self.phases[-1].began:6.1f} s, at most "
                    f"{held}",
                    flush=True,
                )
            self._judge()
        finally:
            self.probes.close()
            self.traffic.close()
        return self._verdict()

    def stop(self) -> None:
        """End the server."""
        if self.server.process.running:
            self.server.process.kill()

    # --- the ordinary client ----------------------------------------------------------------------

    def _client(self) -> Client:
        url, shown = self.server.process.service_url_tls, token(ROLE, TOKEN_S)
        return Client(url, token=shown, tls=self._context, operation_timeout_s=OPERATION_TIMEOUT_S)

    async def _come_and_go(self) -> None:
        client = self._client()
        try:
            producer = await client.create_producer(f"persistent://{ORDINARY}/fresh")
            await producer.send(b"x")
        finally:
            await client.close()

    def _ask(self, path: str) -> None:
        asked = urllib.request.Request(
            self.server.process.https_url + path, headers={"Authorization": f"Bearer {token(ROLE)}"}
        )
        with urllib.request.urlopen(
            asked, timeout=PROBE_TIMEOUT_S, context=self._context
        ) as answer:
            answer.read()

    # --- phases -----------------------------------------------------------------------------------

    def _start(self) -> None:
        process = self.server.process
        process.start(wait=False)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:  # by TLS: there may be no port without
            try:
                self._ask("/ready")
                break
            except OSError:
                assert process.running, process.log_tail()
                assert time.monotonic() < deadline, process.log_tail()
                time.sleep(POLL_S)
        for name, role in ((ORDINARY, ROLE), (HOSTILE, HOSTILE_ROLE)):
            self.server.rest("PUT", f"/admin/v2/namespaces/{name}", {"bundles": {"numBundles": 4}})
            self.server.permit(role, "produce", "consume", namespace=name)
        self.server.rest("POST", f"/admin/v2/namespaces/{ORDINARY}/deduplication", True)
        kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        self.server.rest("POST", f"/admin/v2/namespaces/{ORDINARY}/retention", kept)
        self.server.rest("PUT", f"/admin/v2/persistent/{ORDINARY}/parts/partitions", PARTITIONS)

    def _plan(self, attack: str) -> Plan:
        process, opened = self.server.process, self._plain != "closed"
        access = Access(
            plain=process.broker_port if opened else 0,
            tls=process.tls_port,
            http=process.http_port if opened else 0,
            https=process.https_port,
            authority=str(self.server.authority.file),
            token=token(HOSTILE_ROLE, TOKEN_S),
            wrong=wrong_credentials(),
        )
        return Plan(
            seed=self._seed,
            http_urls=[],
            coordinators=[],
            namespace=HOSTILE,
            rest_namespace=HOSTILE,
            victims=[topic.name for topic in self.traffic.all_topics],
            servers=[],
            skew_directory=str(self._directory),
            turns_path=str(self._turns_path),
            entries=0,
            only=[attack],
            clocks=False,
            access=access,
            scale=self._scale,
        )

    def _calm(self) -> None:
        began = time.monotonic()
        while time.monotonic() - began < self._phase_s:
            time.sleep(POLL_S)
        self.phases.append(Phase(False, began, time.monotonic()))

    def _attack(self, attack: str, seconds: float) -> Phase:
        """So long, but at least once."""
        self._plan_path.write_text(json.dumps(asdict(self._plan(attack))))
        before, began = len(self.turns), time.monotonic()
        with (self._directory / "hostile-peer.log").open("ab") as log:
            peer = subprocess.Popen(
                [sys.executable, "-m", "dev.soak.hostile_peer", str(self._plan_path), str(before)],
                stdout=log,
                stderr=log,
            )
        try:
            while time.monotonic() - began < TURN_S_MAX and peer.poll() is None:
                if len(self.turns) > before and time.monotonic() - began >= seconds:
                    break
                time.sleep(POLL_S)
                self._watch(attack)
            if peer.poll() is not None:
                self.problems.append(
                    f"{attack}: the hostile client itself ended with {peer.returncode}; see "
                    "hostile-peer.log"
                )
            peer.send_signal(signal.SIGTERM)
            peer.wait(TURN_S_MAX)
        except subprocess.TimeoutExpired:
            self.problems.append(f"{attack}: the hostile client did not end")
        finally:
            if peer.poll() is None:
                peer.kill()
                peer.wait()
        self.server.rest("POST", f"/magnetar/v1/transactions/abort?role={HOSTILE_ROLE}")
        return Phase(True, began, time.monotonic(), attack)

    def _held(self) -> Held:
        process = self.server.process
        return Held(len(os.listdir(f"/proc/{process.pid}/fd")), process.resident_bytes())

    def _watch(self, attack: str) -> None:
        """Raises AssertionError if the server has ended."""
        assert self.server.process.running, (
            f"{attack}: the server has ended: {self.server.process.log_tail()[-1000:]}"
        )
        now, most = self._held(), self.peaks.get(attack, Held(0, 0))
        self.peaks[attack] = Held(
            max(now.descriptors, most.descriptors), max(now.resident, most.resident)
        )

    def _held_at_least(self) -> Held:
        """The least that is held in a quiet moment."""
        seen, deadline = [self._held()], time.monotonic() + QUIET_S
        while time.monotonic() < deadline:
            time.sleep(POLL_S)
            seen.append(self._held())
        return Held(min(held.descriptors for held in seen), min(held.resident for held in seen))

    # --- the verdict ------------------------------------------------------------------------------

    def _returned(self) -> bool:
        more = (
            self.after.descriptors - self.before.descriptors,
            self.after.resident - self.before.resident,
        )
        return more[0] <= DESCRIPTORS_MORE_MAX and more[1] <= RESIDENT_MORE_MAX

    def _judge(self) -> None:
        self.probes.close()
        deadline = time.monotonic() + SETTLE_S
        while True:
            self.after = self._held_at_least()
            if self._returned() or time.monotonic() > deadline:
                break
        if not self._returned():
            self.problems.append(
                f"the server keeps what it took: {self.before} became {self.after}"
            )
        self.problems += self.traffic.settled(SETTLE_S)
        self.problems += [str(violation) for violation in self.traffic.violations()]
        self.problems += [
            f"ordinary client: {text}" for text in (*self.traffic.trouble, *self.probes.failures)
        ]
        self.problems += [
            f"{turn['attack']}: {note}" for turn in self.turns for note in turn["notes"]
        ]
        process = self.server.process
        self.problems += [
            f"the server logged {count} x {text}"
            for text, count in logged_errors(process.log_path).items()
        ]
        if not process.running:
            self.problems.append(f"the server has ended: {process.log_tail()[-1000:]}")

    def table(self) -> list[str]:
        """Per attack: 99th percentiles in milliseconds while it took place, and how many times
        those of calm phases they are."""
        kinds = {
            "receipt": self.traffic.receipts,
            "delivery": self.traffic.deliveries,
            "transaction": self.traffic.commits,
            **self.probes.samples,
        }
        calm = {kind: self._p99(samples, "") for kind, samples in kinds.items()}
        lines = [f"{'p99, ms (times calm)':<30}" + "".join(f"{kind:>16}" for kind in kinds)]
        lines.append(f"{'calm':<30}" + "".join(f"{calm[kind] * 1000:>16.1f}" for kind in kinds))
        for attack in self._attacks:
            cells = [
                (value := self._p99(samples, attack), value / calm[kind] if calm[kind] else 0.0)
                for kind, samples in kinds.items()
            ]
            lines.append(
                f"{attack:<30}"
                + "".join(f"{f'{value * 1000:.1f} ({ratio:.1f})':>16}" for value, ratio in cells)
            )
        return lines

    def _p99(self, samples: Sequence[Sample], attack: str) -> float:
        mine = [phase for phase in self.phases if phase.attack == attack]
        return percentile(
            [sample.seconds for sample in samples if any(phase.holds(sample.at) for phase in mine)],
            0.99,
        )

    def _verdict(self) -> int:
        counts = {
            attack: [turn["outcome"] for turn in self.turns if turn["attack"] == attack]
            for attack in self._attacks
        }
        print("\n".join(["", *self.table(), ""]))
        for attack, outcomes in counts.items():
            print(
                f"{attack:<30} {len(outcomes)} times: {', '.join(sorted({*outcomes}))}; at most "
                f"{self.peaks.get(attack)}"
            )
        stops = json_lines(self._directory / f"{self.server.process.name}.stops")
        print(
            "\n".join(
                ["", *attack_table(self.turns, {"the server": stops}, self.traffic.deliveries), ""]
            )
        )
        print(
            f"before: {self.before}; after: {self.after}; at most {DESCRIPTORS_MORE_MAX} and "
            f"{RESIDENT_MORE_MAX >> 20} MiB more"
        )
        for problem in self.problems[:SHOWN_MAX]:
            print(f"PROBLEM  {problem}")
        good = not self.problems and all(counts.values()) and bool(self.traffic.deliveries)
        print("The ordinary client never failed." if good else "FAILED", flush=True)
        return 0 if good else 1


def main() -> None:
    parser = parser_of(
        "Attacks on the resources of a server with TLS and tokens, beside an ordinary client.",
        10.0,
        "what attacks choose",
    )
    parser.add_argument(
        "--plain",
        choices=("open", "internal", "closed"),
        default="internal",
        help="the server's ports without TLS",
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of how much the attacks take")
    parser.add_argument(
        "--only", action="append", default=[], metavar="ATTACK", choices=list(RESOURCE_ATTACKS)
    )
    chosen = parser.parse_args()
    # everything that was started ends with this process
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))

    def run(directory: Path) -> int:
        attack = AttackRun(
            directory,
            chosen.minutes,
            chosen.seed,
            plain=chosen.plain,
            scale=chosen.scale,
            only=chosen.only,
        )
        try:
            return attack.run()
        finally:
            attack.stop()

    sys.exit(run_in_directory("attack", chosen, run))


if __name__ == "__main__":
    main()
