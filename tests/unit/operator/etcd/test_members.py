"""Members of a managed etcd: single cases, any view at all, and any history of wishes and faults
over a model of etcd's membership."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar_operator.conditions import Reason
from magnetar_operator.etcd.members import plan_members
from magnetar_operator.etcd.membership import (
    AddLearner,
    CorrectAddress,
    EtcdPlan,
    EtcdPod,
    EtcdView,
    Member,
    MoveLeader,
    Promote,
    RemoveMember,
    Restart,
    Voice,
    quorum,
)

READY, GOING = EtcdPod(), EtcdPod(terminating=True)


def view(wanted: int, voters: int, **changes: object) -> EtcdView:
    """`voters` healthy members with ids 10, 11, ...; 10 leads."""
    content: dict[str, object] = {
        "replicas": voters,
        "pods": dict.fromkeys(range(voters), READY),
        "claims": frozenset(range(voters)),
        "known": True,
        "members": tuple(Member(10 + ordinal, ordinal) for ordinal in range(voters)),
        "voices": {ordinal: Voice(10 + ordinal, 10, 5000) for ordinal in range(voters)},
    }
    return EtcdView(wanted, **(content | changes))  # type: ignore[arg-type]


def test_what_is_as_wanted_stays() -> None:
    for count in (1, 3):
        assert plan_members(view(count, count)) == EtcdPlan(count)


def test_a_new_etcd_is_begun_by_its_first_member_and_nobody_else() -> None:
    plan = plan_members(EtcdView(3))
    assert (plan.replicas, plan.admission.ordinal, plan.admission.bootstrap, plan.step) == (
        1,
        0,
        True,
        None,
    )
    begun = plan_members(view(3, 1))
    assert (begun.replicas, begun.admission.ordinal, begun.step) == (1, None, AddLearner(1))


def test_volumes_of_a_previous_incarnation_are_started_and_not_bootstrapped_again() -> None:
    """Pod 0's may be the one that is lost."""
    plan = plan_members(EtcdView(3, claims=frozenset({0, 1, 2})))
    assert (plan.replicas, plan.admission.ordinal) == (3, None)
    empty = EtcdPod(ready=False, empty=True)
    alone = plan_members(
        EtcdView(3, 3, {0: empty, 1: READY, 2: READY}, frozenset({0, 1, 2}), admission=None)
    )
    assert (alone.admission.ordinal, alone.step, alone.reason) == (
        None,
        None,
        Reason.ETCD_DATA_LOST,
    )
    nothing = plan_members(EtcdView(3, 3, dict.fromkeys(range(3), empty), frozenset({0, 1, 2})))
    assert (nothing.admission.ordinal, nothing.admission.bootstrap) == (0, True)


def test_a_set_that_is_gone_is_made_again_with_as_many_pods_as_there_are_volumes() -> None:
    """Fewer would be no quorum of its members, and nobody could say how many there are to be;
    none of them begins again."""
    plan = plan_members(EtcdView(3, claims=frozenset({0, 1, 2}), known=True))
    assert (plan.replicas, plan.admission.ordinal, plan.step, plan.reason) == (
        3,
        None,
        None,
        Reason.ETCD_NO_QUORUM,
    )


def test_a_learner_is_promoted_only_when_it_has_caught_up_and_admission_is_closed() -> None:
    members = (Member(10, 0), Member(11, 1, learner=True))
    behind = view(3, 2, members=members, voices={0: Voice(10, 10, 9000), 1: Voice(11, 10, 10)})
    assert plan_members(behind).step is None
    level = view(
        3, 2, members=members, voices={0: Voice(10, 10, 9000), 1: Voice(11, 10, 8990)}, admission=1
    )
    assert (plan_members(level).step, plan_members(level).admission.ordinal) == (None, None)
    closed = view(3, 2, members=members, voices={0: Voice(10, 10, 9000), 1: Voice(11, 10, 8990)})
    assert plan_members(closed).step == Promote(11, 1)


def test_a_member_without_data_is_removed_before_it_may_come_back() -> None:
    """Under its old id it could vote against what it has forgotten."""
    pods = {0: READY, 1: READY, 2: EtcdPod(ready=False, empty=True)}
    voices = {0: Voice(10, 10, 5000), 1: Voice(11, 10, 5000)}
    plan = plan_members(view(3, 3, pods=pods, voices=voices))
    assert (plan.admission.ordinal, plan.replicas) == (None, 3)
    assert isinstance(plan.step, RemoveMember)
    assert plan.step.member == 12
    removed = view(3, 3, pods=pods, voices=voices, members=(Member(10, 0), Member(11, 1)))
    assert plan_members(removed).step == AddLearner(2)
    assert plan_members(removed).replicas == 3
    expected = (Member(10, 0), Member(11, 1), Member(13, 2, started=False, learner=True))
    opened = plan_members(view(3, 3, pods=pods, voices=voices, members=expected))
    assert (opened.admission.ordinal, opened.admission.member, opened.step) == (2, 13, None)
    assert plan_members(
        view(3, 3, pods=pods, voices=voices, members=expected, admission=2)
    ).step == Restart(2, "it may join now")


def test_lost_data_without_a_quorum_is_reported_and_nothing_is_done() -> None:
    empty = EtcdPod(ready=False, empty=True)
    plan = plan_members(view(3, 3, pods={0: READY, 1: empty, 2: empty}, members=None, voices={}))
    assert (plan.step, plan.admission.ordinal, plan.reason) == (None, None, Reason.ETCD_DATA_LOST)
    single = plan_members(view(1, 1, pods={0: empty}, members=None, voices={}))
    assert (single.step, single.admission.ordinal, single.reason) == (
        None,
        None,
        Reason.ETCD_DATA_LOST,
    )


def test_members_leave_before_their_pods_and_hand_leadership_on_first() -> None:
    led_by_2 = {ordinal: Voice(10 + ordinal, 12, 5000) for ordinal in range(3)}
    assert plan_members(view(1, 3, voices=led_by_2)).step == MoveLeader(2, 10)
    plan = plan_members(view(1, 3))
    assert isinstance(plan.step, RemoveMember)
    assert (plan.step.ordinal, plan.replicas) == (2, 3)
    assert plan_members(view(1, 3, members=(Member(10, 0), Member(11, 1)))).replicas == 2


def test_a_sick_member_leaves_first_and_nobody_leaves_while_one_that_stays_is_sick() -> None:
    without_1 = {0: Voice(10, 10, 5000), 2: Voice(12, 10, 5000)}
    step = plan_members(view(1, 3, voices=without_1)).step
    assert isinstance(step, RemoveMember)
    assert step.ordinal == 1
    without_0 = {1: Voice(11, 11, 5000), 2: Voice(12, 11, 5000)}
    assert plan_members(view(1, 3, voices=without_0)).step is None


def test_restarts_take_followers_first_the_leader_last_and_wait_for_the_sick() -> None:
    old = EtcdPod(outdated="Image")
    assert plan_members(view(3, 3, pods=dict.fromkeys(range(3), old))).step == Restart(2, "Image")
    assert plan_members(view(3, 3, pods={0: old, 1: READY, 2: READY})).step == MoveLeader(0, 11)
    waiting = view(
        3,
        3,
        pods=dict.fromkeys(range(3), old),
        voices={0: Voice(10, 10, 5000), 1: Voice(11, 10, 5000)},
    )
    assert (plan_members(waiting).step, plan_members(waiting).reason) == (
        None,
        Reason.ETCD_ROLL_WAITS,
    )
    assert plan_members(view(1, 1, pods={0: old})).step == Restart(0, "Image")
    sick = {0: old, 1: old, 2: EtcdPod(ready=False, outdated="Image")}
    assert plan_members(view(3, 3, pods=sick, voices=waiting.voices)).step == Restart(2, "Image")


def test_blindness_of_the_operator_restarts_nobody() -> None:
    """No member answers us while the kubelet calls all of them ready: that is our network, not
    their health."""
    old = dict.fromkeys(range(3), EtcdPod(outdated="Template"))
    assert plan_members(view(3, 3, pods=old, members=None, voices={})).step is None


def test_the_address_of_an_etcd_that_came_to_tls_is_corrected_before_it_grows() -> None:
    plain = (Member(10, 0, moved=True),)
    assert plan_members(view(1, 1, members=plain)).step is None
    assert plan_members(view(3, 1, members=plain)).step == CorrectAddress(10, 0)


def test_a_stranger_stops_all_changes_of_members() -> None:
    members = (Member(10, 0), Member(77, None))
    plan = plan_members(view(3, 1, members=members))
    assert (plan.step, plan.reason) == (None, Reason.ETCD_STRANGER)


# --- any view -------------------------------------------------------------------------------------

pods = st.builds(
    EtcdPod,
    ready=st.booleans(),
    terminating=st.booleans(),
    outdated=st.sampled_from(["", "Image"]),
    empty=st.booleans(),
    failing=st.booleans(),
)


@st.composite
def views(draw: st.DrawFn) -> EtcdView:
    ordinals = draw(st.sets(st.integers(0, 2), max_size=3))
    members = tuple(
        Member(10 + ordinal, ordinal, started=draw(st.booleans()), learner=draw(st.booleans()))
        for ordinal in sorted(ordinals)
    )
    leader = draw(st.sampled_from([0, 10, 11, 12]))
    answering = draw(st.sets(st.integers(0, 2)))
    voices = {
        ordinal: Voice(10 + ordinal, leader, draw(st.sampled_from([0, 5000])))
        for ordinal in answering
    }
    return EtcdView(
        wanted=draw(st.sampled_from([1, 3])),
        replicas=draw(st.sampled_from([None, 1, 2, 3])),
        pods=draw(st.dictionaries(st.integers(0, 2), pods)),
        claims=frozenset(draw(st.sets(st.integers(0, 2)))),
        known=draw(st.booleans()),
        members=draw(st.sampled_from([None, members])),
        voices=voices,
        admission=draw(st.sampled_from([None, 0, 1, 2])),
    )


def healthy_of(seen: EtcdView) -> set[int]:
    return {
        member.id
        for member in seen.members or ()
        if member.started
        and member.ordinal is not None
        and member.ordinal in seen.pods
        and not seen.pods[member.ordinal].terminating
        and (voice := seen.voices.get(member.ordinal)) is not None
        and voice.leader
    }


@given(views())
@settings(max_examples=1000, deadline=None)
def test_no_view_makes_a_step_that_leaves_fewer_healthy_voters_than_a_quorum(
    seen: EtcdView,
) -> None:
    plan = plan_members(seen)
    assert 1 <= plan.replicas <= 3
    healthy = healthy_of(seen)
    voters = {member.id for member in seen.members or () if not member.learner}
    match plan.step:
        case RemoveMember(member, ordinal):
            rest = voters - {member}
            assert member not in voters or len(rest & healthy) >= quorum(len(rest))
            assert ordinal >= seen.wanted or seen.pods[ordinal].empty
        case Promote(member):
            assert member in healthy
            assert len((voters | {member}) & healthy) >= quorum(len(voters) + 1)
        case AddLearner():
            assert voters <= healthy
            assert all(not member.learner for member in seen.members or ())
        case MoveLeader(ordinal, target):
            assert target in healthy & voters
            assert seen.voices[ordinal].leader != target
        case Restart(ordinal):
            assert not seen.pods[ordinal].terminating
            voice = seen.voices.get(ordinal)
            mine = next(
                (m.id for m in seen.members or () if m.ordinal == ordinal and m.id in voters), 0
            )
            if voice is not None and mine in healthy and len(voters) > 1:
                assert len((voters - {mine}) & healthy) >= quorum(len(voters))
    if plan.replicas < (seen.replicas or 0):
        assert seen.members is not None
        dropped = range(plan.replicas, seen.replicas or 0)
        assert not [member for member in seen.members if member.ordinal in dropped], (
            "a pod goes only after its member"
        )
    if plan.admission.ordinal is not None and not plan.admission.bootstrap:
        (expected,) = [
            member for member in seen.members or () if member.id == plan.admission.member
        ]
        assert not expected.started
        assert expected.learner


# --- a model --------------------------------------------------------------------------------------


@dataclass
class ModelPod:
    template: int
    age: int = 0
    running: bool = False
    empty: bool = False
    failing: bool = False
    terminating: bool = False


@dataclass
class Etcd:
    """Membership, volumes and pods; raft's votes are reduced to: a quorum of running voters, or
    nothing moves."""

    members: dict[int, Member] = field(default_factory=dict)
    # ordinal -> the id whose data it holds; 0 = a volume without data
    volumes: dict[int, int] = field(default_factory=dict)
    caught_up: set[int] = field(default_factory=set)
    pods: dict[int, ModelPod] = field(default_factory=dict)
    replicas: int | None = None
    admission: int | None = None
    admission_member: int = 0
    admission_bootstrap: bool = False
    known: bool = False
    template: int = 1
    leader: int = 0
    next_id: int = 100
    blind: set[int] = field(default_factory=set)

    def running(self) -> set[int]:
        """Ids of the members whose process is up on their own data."""
        up = {
            self.volumes.get(ordinal, 0)
            for ordinal, pod in self.pods.items()
            if pod.running and not pod.terminating
        }
        return {member for member in up if member in self.members}

    def voters(self) -> set[int]:
        return {member.id for member in self.members.values() if not member.learner}

    def has_quorum(self) -> bool:
        return bool(self.voters()) and len(self.running() & self.voters()) >= quorum(
            len(self.voters())
        )

    def look(self, wanted: int) -> EtcdView:
        quorate = self.has_quorum()
        if not quorate or self.leader not in self.running() & self.voters():
            self.leader = min(self.running() & self.voters()) if quorate else 0
        if quorate and self.running() - self.blind:
            self.known = True
        front = {member: 9000 if member in self.caught_up else 1 for member in self.members}
        voices = {
            member.ordinal: Voice(member.id, self.leader, front[member.id])
            for member in self.members.values()
            if member.id in self.running()
            and member.id not in self.blind
            and member.ordinal is not None
        }
        return EtcdView(
            wanted,
            self.replicas,
            {
                ordinal: EtcdPod(
                    ready=pod.running and quorate,
                    terminating=pod.terminating,
                    outdated="" if pod.template == self.template else "Template",
                    empty=pod.empty,
                    failing=pod.failing,
                )
                for ordinal, pod in self.pods.items()
            },
            frozenset(self.volumes),
            self.known,
            tuple(self.members.values()) if quorate and voices else None,
            voices,
            self.admission,
        )

    def obey(self, plan: EtcdPlan) -> None:
        was_quorate = self.has_quorum()
        lowered = range(plan.replicas, self.replicas or 0)
        assert not [member for member in self.members.values() if member.ordinal in lowered], (
            "members go before their pods"
        )
        self.replicas = plan.replicas
        self.admission, self.admission_member, self.admission_bootstrap = (
            plan.admission.ordinal,
            plan.admission.member,
            plan.admission.bootstrap,
        )
        match plan.step:
            case AddLearner(ordinal):
                assert was_quorate
                assert not any(member.learner for member in self.members.values())
                self.next_id += 1
                self.members[self.next_id] = Member(
                    self.next_id, ordinal, started=False, learner=True
                )
            case Promote(member, ordinal):
                assert member in self.caught_up, "no vote before it has caught up"
                assert member in self.running()
                self.members[member] = Member(member, ordinal)
            case RemoveMember(member):
                del self.members[member]
            case MoveLeader(_, target):
                assert target in self.running()
                self.leader = target
            case Restart(ordinal):
                single = len(self.voters()) == 1 or not was_quorate
                self.pods[ordinal].terminating = True
                assert single or self.has_quorum(), "no restart costs the quorum"
                return
        assert not was_quorate or self.has_quorum(), "no step costs the quorum"

    def tick(self) -> None:
        """StatefulSet controller, kubelet and raft go on a little."""
        for ordinal, pod in list(self.pods.items()):
            if pod.terminating or ordinal >= (self.replicas or 0):
                del self.pods[ordinal]
        for ordinal in range(self.replicas or 0):
            self.volumes.setdefault(ordinal, 0)
            if ordinal not in self.pods:
                self.pods[ordinal] = ModelPod(self.template)
            elif not self.pods[ordinal].running:
                self._start(ordinal, self.pods[ordinal])
        if self.has_quorum():
            self.caught_up |= self.running()

    def _start(self, ordinal: int, pod: ModelPod) -> None:
        held = self.volumes[ordinal]
        if (
            pod.age == 0
            and self.admission == ordinal
            and (self.admission_bootstrap or held != self.admission_member)
        ):
            if self.admission_bootstrap and not held:
                self.next_id += 1
                self.members = {self.next_id: Member(self.next_id, ordinal)}
                self.volumes[ordinal] = self.next_id
            elif not self.admission_bootstrap and self.has_quorum():
                self.volumes[ordinal] = self.admission_member
                self.members[self.admission_member] = Member(
                    self.admission_member, ordinal, learner=True
                )
        held = self.volumes[ordinal]
        pod.empty = not held
        pod.failing = bool(held) and held not in self.members
        pod.running = bool(held) and held in self.members
        pod.age += 1

    def lose(self, ordinal: int) -> None:
        """The volume comes back without data."""
        if ordinal in self.volumes:
            self.caught_up.discard(self.volumes[ordinal])
            self.volumes[ordinal] = 0
        self.pods.pop(ordinal, None)


histories = st.lists(
    st.tuples(
        st.sampled_from(
            ["look", "tick", "tick", "want", "template", "lose", "kill", "blind", "see"]
        ),
        st.integers(0, 2),
    ),
    max_size=60,
)


def settle(etcd: Etcd, wanted: int) -> None:
    for _ in range(150):
        etcd.obey(plan_members(etcd.look(wanted)))
        etcd.tick()


@given(histories)
@settings(max_examples=300, deadline=None)
@pytest.mark.slow
def test_any_history_keeps_the_quorum_and_ends_as_wanted(history: list[tuple[str, int]]) -> None:
    """`Etcd.obey` checks every step. Data is lost only where the rest is a quorum with all its
    data, as replicas are meant to bear."""
    etcd, wanted = Etcd(), 1
    settle(etcd, wanted)
    for step, value in history:
        if step == "want":
            wanted = 3 if value else 1
        elif step == "template":
            etcd.template += 1
        elif step == "lose":
            rest = etcd.voters() - {etcd.volumes.get(value, 0)}
            if len(rest & etcd.running() & etcd.caught_up) >= quorum(len(etcd.voters())):
                etcd.lose(value)
        elif step == "kill":
            etcd.pods.pop(value, None)
        elif step == "blind":
            etcd.blind |= {member.id for member in etcd.members.values() if member.ordinal == value}
        elif step == "see":
            etcd.blind.clear()
        elif step == "tick":
            etcd.tick()
        etcd.obey(plan_members(etcd.look(wanted)))
    etcd.blind.clear()
    settle(etcd, wanted)
    assert sorted(member.ordinal or 0 for member in etcd.members.values()) == list(range(wanted))
    assert not any(member.learner for member in etcd.members.values())
    assert etcd.running() == set(etcd.members)
    assert etcd.replicas == wanted
    assert {pod.template for pod in etcd.pods.values()} == {etcd.template}
    assert etcd.admission is None
    assert plan_members(etcd.look(wanted)) == EtcdPlan(wanted)
